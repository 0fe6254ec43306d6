"""Learning rates, chosen on validation images by short runs of every row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bgn_lab.recipe import Recipe
from bgn_lab.report.collect import Run
from studies.ledger import Ledger

STEP = 4.0
"""Between learning rates, where the best one is at an edge and a further one is tried."""


class Row(NamedTuple):
    """What one row of a table trains: shortly, to choose its learning rate, and to the end."""

    short: Recipe
    full: Recipe


def each(rows: Mapping[str, Row], rates: Sequence[float]) -> Iterator[Recipe]:
    """Short runs of every row with every learning rate; all rows at one rate before the next.

    Rows may share them.
    """
    for rate in rates:
        for short in dict.fromkeys(row.short for row in rows.values()):
            yield replace(short, lr=rate)


def runs(row: Row, rates: Sequence[float], ledger: Ledger) -> list[Run]:
    """Finished short runs of a row, one for each rate that was tried."""
    found = (ledger.get(replace(row.short, lr=rate)) for rate in rates)
    return [run for run in found if run is not None]


def score(run: Run) -> float:
    """What runs are judged by on validation images, such as accuracy or mean IoU; 0 where the run
    did not converge."""
    if run.result is None or run.failed:
        return 0.0
    return run.result.measure(run.recipe.curves[0].key) or 0.0


def best(row: Row, rates: Sequence[float], ledger: Ledger) -> float | None:
    """The rate that is best on validation images; None until all were tried."""
    found = runs(row, rates, ledger)
    return max(found, key=score).recipe.lr if len(found) == len(rates) else None


def climbed(row: Row, rates: Sequence[float], ledger: Ledger) -> tuple[list[float], bool]:
    """The rates that are trained to the end, and whether the best of them is the best of all.

    The first is the best of the short runs; then, one at a time, a rate next to the best so far,
    unless its short run was less than half as good as the best. None until all short runs are done.
    """
    short = {run.recipe.lr: score(run) for run in runs(row, rates, ledger)}
    if len(short) < len(rates):
        return [], False
    order, most = sorted(short), max(short.values())
    climb = [max(short, key=lambda lr: short[lr])]
    while True:
        full = {lr: run for lr in climb if (run := ledger.get(replace(row.full, lr=lr)))}
        if len(full) < len(climb):
            return climb, False
        top = order.index(max(full, key=lambda lr: score(full[lr])))
        near = order[max(top - 1, 0) : top + 2]
        left = [lr for lr in near if lr not in climb and 2 * short[lr] >= most]
        if not left:
            return climb, True
        climb.append(max(left, key=lambda lr: short[lr]))


def widened(row: Row, rates: Sequence[float], ledger: Ledger, most: int) -> tuple[float, ...]:
    """The rates, and further ones in steps of four while the best is at an edge.

    Some of them may not have been tried. There are at most ``most`` in all.
    """
    found = tuple(sorted(rates))
    while len(found) < most and (lr := best(row, found, ledger)) in (found[0], found[-1]):
        assert lr is not None
        found = (lr / STEP, *found) if lr == found[0] else (*found, lr * STEP)
    return found


def ordered(full: Mapping[str, Recipe], ledger: Ledger) -> dict[str, Recipe]:
    """Rows that were trained to the end, the best on validation images first."""
    done = {name: run for name, recipe in full.items() if (run := ledger.get(recipe)) is not None}
    return {name: full[name] for name in sorted(done, key=lambda name: -score(done[name]))}

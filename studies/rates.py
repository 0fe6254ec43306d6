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


def close(row: Row, rates: Sequence[float], ledger: Ledger, near: float) -> tuple[float, ...]:
    """The best rate, and the second best where it is at most ``near`` behind; none until all rates
    were tried. A short run cannot tell such rates apart."""
    found = sorted(runs(row, rates, ledger), key=score, reverse=True)
    if len(found) < len(rates):
        return ()
    return tuple(run.recipe.lr for run in found[:2] if score(found[0]) - score(run) <= near)


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

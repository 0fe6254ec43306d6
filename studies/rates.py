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
    """What runs are judged by on validation images, such as accuracy or mean IoU."""
    if run.result is None:
        return 0.0
    return run.result.measure(run.recipe.curves[0].key) or 0.0


def best(row: Row, rates: Sequence[float], ledger: Ledger) -> float | None:
    """The rate that is best on validation images; None until all were tried."""
    found = runs(row, rates, ledger)
    return max(found, key=score).recipe.lr if len(found) == len(rates) else None


def widened(row: Row, rates: Sequence[float], ledger: Ledger, most: int) -> tuple[float, ...]:
    """The rates, and further ones in steps of four while the best is at an edge.

    Some of them may not have been tried. There are at most ``most`` in all.
    """
    found = tuple(sorted(rates))
    while len(found) < most and (lr := best(row, found, ledger)) in (found[0], found[-1]):
        assert lr is not None
        found = (lr / STEP, *found) if lr == found[0] else (*found, lr * STEP)
    return found


class Search(NamedTuple):
    """What is known of a row's learning rate."""

    tried: tuple[Recipe, ...] = ()
    """Runs to the end, wanted or done; none until the short runs are done."""
    best: Recipe | None = None
    """The best of these; None until no rate is left to try."""
    short: tuple[Recipe, ...] = ()
    """A short run that is wanted: the best run to the end has a rate at an edge."""


def search(row: Row, rates: Sequence[float], ledger: Ledger, most: int) -> Search:
    """Choose the rate of a row by runs to the end, for short runs mislead.

    The first has the best rate of the short runs. Then come the neighbors of the best rate so far,
    one at a time; a neighbor whose short run was less than half as good as the best is left out.
    Short runs are widened where the best rate is at an edge, to at most ``most`` rates.
    """
    order = list(widened(row, rates, ledger, most))
    short = {run.recipe.lr: score(run) for run in runs(row, order, ledger)}
    if len(short) < len(order):
        return Search()
    climb = [max(short, key=lambda lr: short[lr])]
    while True:
        full = {lr: replace(row.full, lr=lr) for lr in climb}
        done = {lr: score(run) for lr in climb if (run := ledger.get(full[lr])) is not None}
        if len(done) < len(climb):
            return Search(tuple(full.values()))
        top = max(done, key=lambda lr: done[lr])
        if top in (order[0], order[-1]) and len(order) < most:
            further = replace(row.short, lr=top / STEP if top == order[0] else top * STEP)
            run = ledger.get(further)
            if run is None:
                return Search(tuple(full.values()), short=(further,))
            short[further.lr] = score(run)
            order = sorted(short)
        place = order.index(top)
        near = [lr for lr in order[max(place - 1, 0) : place + 2] if lr not in climb]
        left = [lr for lr in near if 2 * short[lr] >= max(short.values())]
        if not left:
            return Search(tuple(full.values()), full[top])
        climb.append(max(left, key=lambda lr: short[lr]))


def ordered(full: Mapping[str, Recipe], ledger: Ledger) -> dict[str, Recipe]:
    """Rows that were trained to the end, the best on validation images first."""
    done = {name: run for name, recipe in full.items() if (run := ledger.get(recipe)) is not None}
    return {name: full[name] for name in sorted(done, key=lambda name: -score(done[name]))}

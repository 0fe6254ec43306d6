"""Which runs the study wants next, given those that are done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bgn_lab.recipe import Recipe
from studies import rates
from studies.ledger import Ledger
from studies.many_workers.cells import CELLS, MOST_RATES, RATES, ROWS, row

FIRST = "mini-2"
"""The cell in which all rows are trained."""
ALWAYS = ("bn", "bn+ws", "gn", "gn+ws")


class Stage(NamedTuple):
    """Rows of a cell, trained with some seeds."""

    cell: str
    seeds: tuple[int, ...]
    every_row: bool = False


STAGES = (
    Stage(FIRST, (0,), every_row=True),
    Stage("mini-32", (0,)),
    Stage(FIRST, (1, 2)),
    Stage("mini-32", (1, 2)),
    *(Stage(f"cifar-{n}", (0,)) for n in (2, 32)),
    *(Stage(f"paper-{n}", (0,)) for n in (2, 32)),
    *(Stage(f"cifar-{n}", (1, 2)) for n in (2, 32)),
    Stage("mini-8", (0,)),
    *(Stage(f"paper-{n}", (0,)) for n in (8, 4)),
    *(Stage(f"wide-{n}", (0,)) for n in (2, 32)),
    Stage("mini-4", (0,)),
)
"""The most informative first."""


def best(cell: str, name: str, mini: Path, ledger: Ledger) -> Recipe | None:
    """A row at its learning rate; None until that is chosen."""
    own = row(CELLS[cell], name, mini)
    if CELLS[cell].paper:
        return own.full
    tried = rates.widened(own, RATES, ledger, MOST_RATES)
    lr = rates.best(own, tried, ledger)
    return None if lr is None else replace(own.full, lr=lr)


def deciding(mini: Path, ledger: Ledger) -> tuple[str, ...]:
    """Rows that are trained in every cell; none until all rows of the first cell are done."""
    full = {name: best(FIRST, name, mini, ledger) for name in ROWS}
    chosen = {name: recipe for name, recipe in full.items() if recipe is not None}
    order = list(rates.ordered(chosen, ledger))
    if len(order) < len(ROWS):
        return ()
    groups = [name for name in order if name.startswith("bgn")]
    plain = [name for name in groups if "+" not in name]
    partnered = [name for name in groups if "+" in name]
    return (*ALWAYS, plain[0], *partnered[:2])


def wanted(stage: Stage, mini: Path, ledger: Ledger) -> Iterator[Recipe]:
    """Recipes of a stage, as far as what is done decides them: short runs before full ones."""
    names = tuple(ROWS) if stage.every_row else deciding(mini, ledger)
    rows = {name: row(CELLS[stage.cell], name, mini) for name in names}
    full = {name: best(stage.cell, name, mini, ledger) for name in names}
    if not CELLS[stage.cell].paper:
        yield from _short(rows.values(), ledger)
    if all(recipe is not None for recipe in full.values()):
        for seed in stage.seeds:
            yield from (replace(r, seed=seed) for r in full.values() if r is not None)


def _short(rows: Iterable[rates.Row], ledger: Ledger) -> Iterator[Recipe]:
    by_short = {own.short: own for own in rows}  # rows may share them
    by_row = [(own, rates.widened(own, RATES, ledger, MOST_RATES)) for own in by_short.values()]
    for lr in RATES:
        yield from (replace(own.short, lr=lr) for own, _ in by_row)
    for own, tried in by_row:
        yield from (replace(own.short, lr=lr) for lr in tried if lr not in RATES)

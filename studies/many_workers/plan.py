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
CORE = ("bn", "bgn+ws, G = 1", "bn+ws", "bgn+ws, G = 8", "gn+ws", "bgn, G = 1", "bgn, G = 8", "gn")
"""Rows of the first stage, out of which those that decide are chosen."""
ALWAYS = ("bn", "bn+ws", "gn", "gn+ws")


class Stage(NamedTuple):
    """Rows of a cell, trained with some seeds."""

    cell: str
    rows: str
    """core, all or deciding."""
    seeds: tuple[int, ...] = (0,)


STAGES = (
    Stage(FIRST, "core"),
    Stage("mini-32", "deciding"),
    Stage(FIRST, "deciding", (1, 2)),
    Stage("mini-32", "deciding", (1, 2)),
    *(Stage(f"paper-{n}", "deciding") for n in (2, 32)),
    *(Stage(f"cifar-{n}", "deciding") for n in (2, 32)),
    Stage(FIRST, "all"),
    Stage("mini-8", "deciding"),
    *(Stage(f"cifar-{n}", "deciding", (1, 2)) for n in (2, 32)),
    *(Stage(f"paper-{n}", "deciding") for n in (8, 4)),
    *(Stage(f"wide-{n}", "deciding") for n in (2, 32)),
    Stage("mini-4", "deciding"),
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
    """Rows that are trained in every cell; none until the core rows of the first cell are done."""
    full = {name: best(FIRST, name, mini, ledger) for name in CORE}
    chosen = {name: recipe for name, recipe in full.items() if recipe is not None}
    order = list(rates.ordered(chosen, ledger))
    if len(order) < len(CORE):
        return ()
    groups = [name for name in order if name.startswith("bgn")]
    plain = [name for name in groups if "+" not in name]
    partnered = [name for name in groups if "+" in name]
    return (*ALWAYS, plain[0], *partnered)


def names(stage: Stage, mini: Path, ledger: Ledger) -> tuple[str, ...]:
    """Rows of a stage, as far as what is done decides them."""
    if stage.rows == "deciding":
        return deciding(mini, ledger)
    return CORE if stage.rows == "core" else tuple(ROWS)


def wanted(stage: Stage, mini: Path, ledger: Ledger) -> Iterator[Recipe]:
    """Recipes of a stage, as far as what is done decides them: short runs before full ones."""
    own = names(stage, mini, ledger)
    rows = {name: row(CELLS[stage.cell], name, mini) for name in own}
    full = {name: best(stage.cell, name, mini, ledger) for name in own}
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

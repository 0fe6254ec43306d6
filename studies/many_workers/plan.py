"""Which runs the study wants next, given those that are done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bgn_lab.recipe import Recipe
from studies import rates
from studies.ledger import Ledger
from studies.many_workers.cells import CELLS, MOST_RATES, RATES, ROWS, row, tuned_as

FIRST = "mini-2"
"""The cell in which all rows are trained."""
CORE = ("bn", "bgn+ws, G = 1", "bn+ws", "bgn+ws, G = 8", "gn+ws", "bgn, G = 1", "bgn, G = 8", "gn")
"""Rows of the first stage, out of which those that decide are chosen."""
ALWAYS = ("bn", "bn+ws", "gn", "gn+ws")
BASES = ("bn", "bn+ws")
"""Rows that others are compared with, and that may fall with fewer images."""
AUTO = ("bgn, auto",)


class Stage(NamedTuple):
    """Rows of a cell, trained with some seeds."""

    cell: str
    rows: str
    """core, bases, auto, all or deciding."""
    seeds: tuple[int, ...] = (0,)


STAGES = (
    Stage(FIRST, "core"),
    Stage("mini-32", "bases"),
    Stage(FIRST, "deciding", (1, 2)),
    Stage("mini-32", "bases", (1, 2)),
    Stage(FIRST, "auto", (0, 1, 2)),
    Stage("mini-32", "deciding"),
    *(Stage(f"paper-{n}", "deciding") for n in (2, 32)),
    *(Stage(f"cifar-{n}", "deciding") for n in (2, 32)),
    Stage(FIRST, "all"),
    Stage("mini-32", "deciding", (1, 2)),
    Stage("mini-8", "deciding"),
    *(Stage(f"cifar-{n}", "deciding", (1, 2)) for n in (2, 32)),
    *(Stage(f"paper-{n}", "deciding") for n in (8, 4)),
    *(Stage(f"wide-{n}", "deciding") for n in (2, 32)),
    Stage("mini-4", "deciding"),
)
"""The most informative first."""


def search(cell: str, name: str, mini: Path, ledger: Ledger) -> rates.Search:
    """What is known of the learning rate of a row."""
    own, like = row(CELLS[cell], name, mini), tuned_as(name)
    if CELLS[cell].paper:
        return rates.Search((own.full,), own.full)
    if like == name:
        return rates.search(own, RATES, ledger, MOST_RATES)
    chosen = best(cell, like, mini, ledger)
    if chosen is None:
        return rates.Search()
    full = replace(own.full, lr=chosen.lr)
    return rates.Search((full,), full)


def best(cell: str, name: str, mini: Path, ledger: Ledger) -> Recipe | None:
    """A row at its learning rate; None until that is chosen."""
    return search(cell, name, mini, ledger).best


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
    return {"core": CORE, "bases": BASES, "auto": AUTO, "all": tuple(ROWS)}[stage.rows]


def wanted(stage: Stage, mini: Path, ledger: Ledger) -> Iterator[Recipe]:
    """Recipes of a stage, as far as what is done decides them: short runs, then the first seed to
    the end at one rate after the other, then all seeds at the best."""
    own = names(stage, mini, ledger)
    rows = {name: row(CELLS[stage.cell], name, mini) for name in own}
    if not CELLS[stage.cell].paper:
        yield from _short(rows.values(), ledger)
    found = [search(stage.cell, name, mini, ledger) for name in own]
    yield from (recipe for one in found for recipe in (*one.short, *one.tried))
    for seed in filter(None, stage.seeds):  # seed 0 is among the former
        yield from (replace(one.best, seed=seed) for one in found if one.best is not None)


def _short(rows: Iterable[rates.Row], ledger: Ledger) -> Iterator[Recipe]:
    by_short = {own.short: own for own in rows}  # rows may share them
    by_row = [(own, rates.widened(own, RATES, ledger, MOST_RATES)) for own in by_short.values()]
    for lr in RATES:
        yield from (replace(own.short, lr=lr) for own, _ in by_row)
    for own, tried in by_row:
        yield from (replace(own.short, lr=lr) for lr in tried if lr not in RATES)

"""Which runs the study wants next, given those that are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bgn_lab.recipe import Recipe
from studies import rates
from studies.ledger import Ledger
from studies.segmentation.rows import CELLS, MOST_RATES, RATES, Sources, row

SEEDS = (0, 1, 2)
ALWAYS = ("bn", "bn+frozen", "gn")
"""Rows that decide, in every cell that has them."""
CORE = (*ALWAYS, "bgn+renorm, G = 8", "bgn, G = 1", "bn+renorm")
"""Rows of the first stages."""


class Stage(NamedTuple):
    """Rows of a cell, trained with some seeds."""

    cell: str
    rows: str
    """core, all or deciding."""
    seeds: tuple[int, ...] = (0,)


STAGES = (
    Stage("mobilenet-2", "core"),
    Stage("mobilenet-1", "core"),
    Stage("mobilenet-2", "deciding", SEEDS),
    Stage("mobilenet-1", "deciding", SEEDS),
    Stage("mobilenet-16", "deciding"),
    Stage("mobilenet-2", "all"),
    Stage("unet-2", "core"),
    Stage("unet-1", "core"),
    Stage("mobilenet-4", "deciding"),
    Stage("mobilenet-4-neighbors", "deciding"),
    Stage("unet-2", "deciding", SEEDS),
    Stage("unet-16", "deciding"),
    Stage("mobilenet-1", "all"),
    Stage("unet-4", "deciding"),
    Stage("unet-4-neighbors", "deciding"),
    Stage("mobilenet-16", "deciding", SEEDS),
    Stage("unet-2", "all"),
)
"""The most informative first."""


def home(cell: str) -> str:
    """The cell in which the deciding rows of another one are chosen: of the same network, 2."""
    return f"{cell.partition('-')[0]}-2"


def rate_cell(cell: str) -> str:
    """The cell whose learning rates a cell uses: neighbors have those of other images."""
    return cell.removesuffix("-neighbors")


def search(cell: str, name: str, sources: Sources, ledger: Ledger) -> rates.Search:
    """What is known of the learning rate of a row."""
    found = rates.search(row(CELLS[rate_cell(cell)], name, sources), RATES, ledger, MOST_RATES)
    if cell == rate_cell(cell) or found.best is None:
        return found
    full = replace(row(CELLS[cell], name, sources).full, lr=found.best.lr)
    return rates.Search((full,), full)


def best(cell: str, name: str, sources: Sources, ledger: Ledger) -> Recipe | None:
    """A row at its learning rate; None until that is chosen."""
    return search(cell, name, sources, ledger).best


def deciding(cell: str, sources: Sources, ledger: Ledger) -> tuple[str, ...]:
    """BN, frozen BN and GN, the best row of BGN with renormalization and the best without, all
    judged on validation images; none until the core rows of the network's cell are done."""
    where = home(cell)
    chosen = {name: best(where, name, sources, ledger) for name in CELLS[where].rows}
    full = {name: recipe for name, recipe in chosen.items() if recipe is not None}
    order = list(rates.ordered(full, ledger))
    core = [name for name in CORE if name in CELLS[where].rows]
    if any(name not in order for name in core):
        return ()
    groups = [name for name in order if name.startswith("bgn") and name in CORE]
    plain = next(name for name in groups if "renorm" not in name)
    partnered = next(name for name in groups if "renorm" in name)
    always = [name for name in ALWAYS if name in CELLS[cell].rows]
    return (*always, partnered, plain, "bn+renorm")


def names(stage: Stage, sources: Sources, ledger: Ledger) -> tuple[str, ...]:
    """Rows of a stage, as far as what is done decides them."""
    own = CELLS[stage.cell].rows
    if stage.rows == "deciding":
        return deciding(stage.cell, sources, ledger)
    return tuple(name for name in own if stage.rows == "all" or name in CORE)


def wanted(stage: Stage, sources: Sources, ledger: Ledger) -> Iterator[Recipe]:
    """Recipes of a stage: short runs, then the first seed to the end at one rate after the other,
    then all seeds at the best."""
    own = names(stage, sources, ledger)
    yield from _short(stage.cell, own, sources, ledger)
    found = [search(stage.cell, name, sources, ledger) for name in own]
    yield from (recipe for one in found for recipe in (*one.short, *one.tried))
    for seed in filter(None, stage.seeds):  # seed 0 is among the former
        yield from (replace(one.best, seed=seed) for one in found if one.best is not None)


def _short(cell: str, own: Sequence[str], sources: Sources, ledger: Ledger) -> Iterator[Recipe]:
    rows = [row(CELLS[rate_cell(cell)], name, sources) for name in own]
    for lr in RATES:
        yield from (replace(one.short, lr=lr) for one in rows)
    for one in rows:
        tried = rates.widened(one, RATES, ledger, MOST_RATES)
        yield from (replace(one.short, lr=lr) for lr in tried if lr not in RATES)

"""What the study of BGN's partners trains: rows, settings, learning rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bgn_lab import partners
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from studies.rates import Row

FOLDER = Path("runs/partners")
LEDGER = Path("results/partners/runs.jsonl")
# for 32 images per step, as --lr; at the study's 16 images a step takes half of it
RATES = (0.1, 0.025, 0.4)
SEEDS = (1, 2)
SLOW = {"norm_momentum": 0.01}
"""The card of renormalization: with two images the reference must average over many batches."""

ROWS: dict[str, dict[str, Any]] = {
    "bn": {},
    "bn+ws": {},
    "bgn": {"groups": 1},
    "bgn+ws": {"groups": 1},
    "gn": {},
    "gn+ws": {},
    "bgn+ws+renorm": {"groups": 1, **SLOW},
    "bn+ws+renorm": SLOW,
    "bgn+renorm": {"groups": 1, **SLOW},
    "bn+renorm": SLOW,
    "bgn+center": {"groups": 1},
    "bgn, G = 8": {"groups": 8},
    "bgn+ws, G = 8": {"groups": 8},
    "bgn+ws+renorm, G = 8": {"groups": 8, **SLOW},
    "bgn+renorm, G = 8": {"groups": 8, **SLOW},
    "bgn+center, G = 8": {"groups": 8},
    # the momentum of the rows with renormalization, without it
    "bn, momentum 0.01": SLOW,
    "bgn, momentum 0.01": {"groups": 1, **SLOW},
}
"""By name, the most informative first. ``num_groups="auto"`` was BN in every layer of this
network at two images when the study ran, so it has no rows."""

EPOCHS, SHORT = 10, 3
"""Length of the runs that are compared, and of those that choose a learning rate."""
ALONE = (
    *("bn", "bn+ws", "gn", "gn+ws", "bgn", "bgn+ws", "bgn+ws+renorm", "bn+ws+renorm"),
    "bgn+ws, G = 8",
)
"""Rows that one worker trains, too."""


def tuned_as(name: str) -> str:
    """The row whose short runs choose the learning rate of a row: itself, or the one that has
    neither renormalization nor its momentum.

    >>> tuned_as("bgn+ws+renorm, G = 8"), tuned_as("bgn, momentum 0.01"), tuned_as("gn")
    ('bgn+ws, G = 8', 'bgn', 'gn')
    """
    return name.replace("+renorm", "").partition(", momentum")[0]


def rows(data: str, root: Path | None) -> dict[str, Row]:
    """Every row with eight workers, in the order of ROWS."""
    full = {name: recipe(name, data, root) for name in ROWS}
    return {name: Row(replace(full[tuned_as(name)], epochs=SHORT), full[name]) for name in ROWS}


def alone(name: str, data: str, root: Path | None) -> ClassificationRecipe:
    """A row with one worker of two images."""
    return replace(recipe(name, data, root), epochs=SHORT, simulate_workers=1)


def recipe(name: str, data: str, root: Path | None) -> ClassificationRecipe:
    """A row with eight workers of two images."""
    cell = ClassificationRecipe(
        data=data,
        root=root,
        model="resnet20",
        width=8,
        batch_size=2,
        epochs=EPOCHS,
        simulate_workers=8,
        validation=0.1,
        channels_last=True,  # faster on most CPUs
    )
    norm = name.split(",")[0]
    return replace(cell, **{**partners.row(norm), **ROWS[name]})

"""Cells of the study: data, network, and how the images of a step are shared out to workers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgn_lab import paper, partners
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from studies.rates import Row

EPOCHS, SHORT = 20, 3
"""Length of the runs that are compared, and of those that choose a learning rate."""
STEP = 128
"""Images."""
RATES = (0.05, 0.0125, 0.2)
"""Learning rates for 32 images, as --lr; four times as much for a step of 128."""
MOST_RATES = 4
PAPER_RATE = paper.LEARNING_RATES[32] / paper.WORKERS
SLOW = {"norm_momentum": 0.01}
"""The card of renormalization: with two images the reference must average over many batches."""

ROWS: dict[str, dict[str, Any]] = {
    "bn": {},
    "bn+ws": {},
    "bgn, G = 1": {"groups": 1},
    "bgn+ws, G = 1": {"groups": 1},
    "gn": {},
    "gn+ws": {},
    "bgn+ws, G = 8": {"groups": 8},
    "bgn, G = 8": {"groups": 8},
    "bgn+ws+renorm, G = 1": {"groups": 1, **SLOW},
    "bn+ws+renorm": SLOW,
    "bgn, auto": {"groups": "auto"},
    "bgn, G = 4": {"groups": 4},
    "bgn+ws, G = 4": {"groups": 4},
    "bgn+ws+renorm, G = 8": {"groups": 8, **SLOW},
    "bn+renorm": SLOW,
    "bgn+renorm, G = 1": {"groups": 1, **SLOW},
    "ln": {},
    "ln+ws": {},
}
"""By name, the most informative first."""


@dataclass(frozen=True)
class Cell:
    """What rows of one table have in common."""

    mini: bool
    """The 100 classes of miniImageNet, or CIFAR-10."""
    n: int
    """Images that share statistics."""
    width: int = 8
    workers: int | None = None
    """By default as many as share a step of 128 images."""
    paper: bool = False
    """Learning rate and schedule are the paper's."""


CELLS = {
    **{f"mini-{n}": Cell(True, n) for n in (2, 4, 8, 32)},
    **{f"cifar-{n}": Cell(False, n) for n in (2, 32)},
    **{f"wide-{n}": Cell(True, n, width=16) for n in (2, 32)},
    **{f"paper-{n}": Cell(True, n, workers=paper.WORKERS, paper=True) for n in (2, 4, 8, 32)},
}


ALONE = ("gn", "ln")
"""Normalize each image by itself: where a step has 128 images, workers make no difference."""


def recipe(cell: Cell, name: str, mini: Path) -> ClassificationRecipe:
    """What a row trains in a cell, to the end. Cells may share the runs of a row."""
    if name.partition("+")[0] in ALONE and cell.workers is None:
        cell = replace(cell, n=32)
    own = ClassificationRecipe(
        data="arrays" if cell.mini else "cifar10",
        root=mini if cell.mini else None,
        model="resnet20",
        width=cell.width,
        batch_size=cell.n,
        epochs=EPOCHS,
        simulate_workers=cell.workers or STEP // cell.n,
        validation=0.1,
        median_of=5,
        channels_last=True,  # faster on most CPUs
    )
    if cell.paper:
        milestones = tuple(m * EPOCHS // paper.EPOCHS for m in paper.MILESTONES)
        own = replace(own, lr=PAPER_RATE, schedule="steps", milestones=milestones)
    return replace(own, **{**partners.row(name.split(",")[0]), **ROWS[name]})


def tuned_as(name: str) -> str:
    """The row whose learning rate a row has: itself, or its nearest relative without
    renormalization, with G = 8 for G = 4, and BN for auto, which is BN in most layers here.

    >>> tuned_as("bgn+ws+renorm, G = 1"), tuned_as("bgn+ws, G = 4"), tuned_as("bgn, auto")
    ('bgn+ws, G = 1', 'bgn+ws, G = 8', 'bn')
    """
    return name.replace("+renorm", "").replace("G = 4", "G = 8").replace("bgn, auto", "bn")


def row(cell: Cell, name: str, mini: Path) -> Row:
    """Its short and its full recipe."""
    short = replace(recipe(cell, tuned_as(name), mini), epochs=SHORT, median_of=1)
    return Row(short, recipe(cell, name, mini))

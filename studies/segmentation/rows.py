"""Rows and cells of the study: normalizers, networks, images that share statistics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgn_lab import partners
from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe
from studies.rates import Row

CROP = (120, 160)
SCALE = (0.75, 1.5)
RATES = (0.1, 0.025, 0.4)
"""For 16 images a step, as --lr: in proportion to the images of a step."""
MOST_RATES = 5

ROWS: dict[str, dict[str, Any]] = {
    "bn": {},
    "bn+frozen": {},
    "gn": {},
    "bgn+renorm, G = 8": {"groups": 8},
    "bgn, G = 1": {"groups": 1},
    "bn+renorm": {},
    "bgn, auto": {"groups": "auto"},
    "bgn, G = 8": {"groups": 8},
    "bgn+renorm, G = 1": {"groups": 1},
    "gn+ws": {},
    "bgn+ws, G = 8": {"groups": 8},
    "ln": {},
    "in": {},
    "gbgn": {},
    "pn": {},
}
"""By name, the most informative first."""
PRETRAINED = "bn+frozen"
"""Needs statistics to begin with, so a network from scratch has no such row."""
NOT_PRETRAINED = ("gn+ws", "bgn+ws, G = 8")
"""Standardized weights are other weights than the pretrained ones."""


@dataclass(frozen=True)
class Cell:
    """What the rows of one table have in common."""

    n: int
    """Images that share statistics, and of a step."""
    scratch: bool = False
    """A U-Net from scratch, or a head on ImageNet's MobileNetV2."""
    neighbors: int = 1
    """Windows of one image, beside each other."""

    @property
    def epochs(self) -> int:
        """Of the runs that are compared."""
        return 20 if self.scratch else 12

    @property
    def short(self) -> int:
        """Of the runs that choose a learning rate."""
        return 5 if self.scratch else 3

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of its rows."""
        without = (PRETRAINED,) if self.scratch else NOT_PRETRAINED
        return tuple(name for name in ROWS if name not in without)


CELLS = {
    **{f"mobilenet-{n}": Cell(n) for n in (1, 2, 4, 16)},
    **{f"unet-{n}": Cell(n, scratch=True) for n in (1, 2, 4, 16)},
    "mobilenet-4-neighbors": Cell(4, neighbors=4),
    "unet-4-neighbors": Cell(4, scratch=True, neighbors=4),
}


@dataclass(frozen=True)
class Sources:
    """Files that the study reads."""

    data: Path
    weights: Path


def recipe(cell: Cell, name: str, sources: Sources) -> SegmentationRecipe:
    """What a row trains in a cell, to the end."""
    own = SegmentationRecipe(
        data="arrays",
        root=sources.data,
        model="unet" if cell.scratch else "fpn-mobilenet-v2",
        weights=None if cell.scratch else str(sources.weights),
        crop=CROP,
        scale=SCALE,
        batch_size=cell.n,
        neighbors=cell.neighbors,
        epochs=cell.epochs,
        warmup=0.5,
        recalibrate=True,
        onednn=True,
    )
    return replace(own, **{**partners.row(name.split(",")[0]), **ROWS[name]})


def row(cell: Cell, name: str, sources: Sources) -> Row:
    """Its short and its full recipe."""
    full = recipe(cell, name, sources)
    return Row(replace(full, epochs=cell.short, recalibrate=False, test=False), full)

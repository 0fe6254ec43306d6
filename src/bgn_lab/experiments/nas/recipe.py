"""Recipes of architecture search: networks of cells, searched by DARTS or MANAS, and trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from bgn import checks
from bgn_lab import paper
from bgn_lab.experiments.nas import genotype
from bgn_lab.recipe import (
    AmpOptions,
    CompileOptions,
    DecodingOptions,
    GroupWord,
    Measure,
    MedianOptions,
    MomentumOptions,
    ValidationOptions,
    WidthOptions,
    WorkerOptions,
)

Order = Literal["first", "second"]
Credit = Literal["squares", "weights"]
Keep = Literal["two", "all"]


@dataclass(frozen=True)
class CellsRecipe(MomentumOptions, WidthOptions, ValidationOptions):
    """A network of cells. It comes first among the bases of a recipe: defaults of parts that come
    before it would take the place of its own."""

    group: ClassVar[str] = "cells"

    model: str = "cells"
    """cells"""
    width: int | None = 16
    """channels of the first cell, C"""
    cells: int = 8
    """cells of the network; those at a third and at two thirds halve the image"""
    lr: float = 0.025
    """learning rate, whatever the batch size"""
    least_lr: float = 0.0
    """learning rate at the end; it falls along a cosine, epoch by epoch"""
    decay: float = 3e-4
    """weight decay, on all parameters"""
    clip: float = 5.0
    """largest norm of the gradients"""
    channels_last: bool = True
    """channels_last memory format: faster on the CPU"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("model", self.model, ("cells",))
        checks.positive_int("cells", self.cells)
        if self.cells < 3:
            raise ValueError(
                f"cells={self.cells} has no place for two that halve the image and one that does"
                " not; expected 3 or more"
            )
        if self.width is None or self.width % 2:
            raise ValueError(
                f"width={self.width} cannot be halved; expected an even number of channels"
            )
        if not 0 <= self.least_lr <= self.lr:
            raise ValueError(
                f"least_lr={self.least_lr} is out of range; expected a number from 0 to"
                f" lr={self.lr}"
            )
        if not self.clip > 0:
            raise ValueError(f"clip={self.clip} is out of range; expected a number above 0")

    @property
    def usual_groups(self) -> int | None:
        """G of the paper."""
        return self.groups_as_in("darts")

    def groups_as_in(self, source: str) -> int | None:
        """G of the paper's experiment of that name.

        In GN a group has at least two channels of the last cell, which has four times those of the
        first, as in the paper's narrowest network. With one, the mean of every map would be the
        same for all images, and that is what is classified.
        """
        assert self.width is not None
        groups = paper.EXPERIMENT_GROUPS[source].get(self.norm)
        return min(groups, 2 * self.width) if groups and self.norm == "gn" else groups


@dataclass(frozen=True)
class SearchRecipe(CellsRecipe):
    """A search, by gradients or by agents."""

    data: str = "fashion-mnist"
    """fashion-mnist (a part ships with the package), cifar10, or the path of an .npz"""
    batch_size: int = 64
    """images that are normalized together"""
    epochs: int = 50
    """passes over the half of the training images that weights learn from"""
    least_lr: float = 0.001
    """learning rate at the end; it falls along a cosine, epoch by epoch"""
    validation: float = 0.5
    """share of the training images that the architecture learns from"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.validation < 1:
            raise ValueError(
                f"validation={self.validation}: the architecture learns from it; expected a share"
                " between 0 and 1"
            )

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Accuracy of the network that is searched in; training shows what the found one is
        worth."""
        return (Measure("validation_accuracy", "validation accuracy"),)


@dataclass(frozen=True)
class DartsRecipe(SearchRecipe, CompileOptions):
    """Search for a genotype by gradients."""

    experiment: ClassVar[str] = "darts-search"
    group: ClassVar[str] = "search"

    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; by default the paper's: 32 (gn; 2 for each channel of the first cell if
    that is fewer), 256 (bgn); auto (bgn): by maps and batch size"""
    order: Order = "second"
    """order of the architecture's gradient: first (at the current weights) or second (after a step
    of the weights, slower)"""
    arch_lr: float = 3e-4
    """learning rate of the architecture (Adam)"""
    arch_decay: float = 1e-3
    """weight decay of the architecture"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("order", self.order, get_args(Order))
        if not 0 < self.arch_lr < math.inf or not 0 <= self.arch_decay < math.inf:
            raise ValueError(
                f"arch_lr={self.arch_lr}, arch_decay={self.arch_decay}; expected a number above 0,"
                " and 0 or more"
            )


@dataclass(frozen=True)
class ManasRecipe(SearchRecipe):
    """Search for a genotype by agents."""

    experiment: ClassVar[str] = "manas-search"
    group: ClassVar[str] = "search"

    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; by default the paper's: 32 (gn; 2 for each channel of the first cell if
    that is fewer), 64 (bgn); auto (bgn): by maps and batch size"""
    credit: Credit = "squares"
    """how agents learn what their choices contributed: squares (MANAS-LS) or importance weights
    (MANAS), which are noisier"""
    window: int = 256
    """rounds that the least squares are over; policies stay uniform for the first quarter of as
    many"""
    keep: Keep = "two"
    """edges of a found cell: the two strongest of each node, or all"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("credit", self.credit, get_args(Credit))
        checks.one_of("keep", self.keep, get_args(Keep))
        checks.positive_int("window", self.window)

    @property
    def usual_groups(self) -> int | None:
        """G of the paper."""
        return self.groups_as_in("manas")


@dataclass(frozen=True)
class NasTrainRecipe(
    CellsRecipe, CompileOptions, AmpOptions, WorkerOptions, MedianOptions, DecodingOptions
):
    """Train the network of a genotype."""

    experiment: ClassVar[str] = "nas-train"
    group: ClassVar[str] = "cells"

    genotype: str = "DARTS_V2"
    """DARTS_V1, DARTS_V2, random-0, random-1, ... (drawn, as DARTS finds them), random-0-of-20, ...
    (20 different cells, as MANAS does), or the path of a JSON file such as a search writes"""
    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; by default the paper's: 32 (gn; 2 for each channel of the first cell if
    that is fewer), 256 (bgn), or 64 (bgn) for a genotype that is a list of cells; auto (bgn): by
    the size of the maps"""
    batch_size: int = 96
    """images that are normalized together"""
    cells: int = 20
    """cells of the network; those at a third and at two thirds halve the image"""
    width: int | None = 36
    """channels of the first cell, C"""
    epochs: int = 600
    """passes over the training images"""
    cutout: int = 16
    """size of the square that is hidden in each training image; 0 for none"""
    drop_path: float = 0.2
    """probability at the end that an edge is left out for an image; it grows from 0, epoch by
    epoch"""
    auxiliary: float = 0.4
    """weight in the loss of a second classifier in the middle; 0 for none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("genotype", genotype.content(self.genotype))  # files may change or go
        for name, most in {"cutout": 1024, "drop_path": 0.99, "auxiliary": 100.0}.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number from 0 to"
                    f" {most}"
                )

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Validation accuracy of a short training, which does not evaluate test images."""
        if self.test:
            return super().measures
        return (Measure("validation_accuracy", "validation accuracy"),)

    @property
    def usual_groups(self) -> int | None:
        """G of the paper; lists of cells are what MANAS finds."""
        name = "manas" if genotype.find(self.genotype).cells else "darts"
        return self.groups_as_in(name)

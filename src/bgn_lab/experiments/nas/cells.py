"""What searching and training networks of cells have in common: recipe, images, normalisers."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bgn import checks
from bgn_lab import paper
from bgn_lab.data.sources import Data, InMemory, Source
from bgn_lab.recipe import Recipe
from bgn_lab.training.task import Task

SIZE = 32
BLIND = 1e-5  # of logits: they differ by less than that where they do not differ but for rounding


@dataclass(frozen=True)
class CellsRecipe(Recipe):
    """A network of cells; see the recipes that go on from this one."""

    model: str = "cells"
    """cells"""
    width: int | None = 16
    """channels of the first cell, C"""
    cells: int = 8
    """of the network; those at a third and at two thirds halve the image"""
    lr: float = 0.025
    """learning rate, whatever the batch size"""
    least_lr: float = 0.0
    """what it falls to along a cosine, epoch by epoch"""
    decay: float = 3e-4
    """weight decay, on all parameters"""
    clip: float = 5.0
    """the largest norm of the gradients"""
    channels_last: bool = True
    """channels_last memory format: faster on the CPU"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("model", self.model, ("cells",))
        checks.positive_int("cells", self.cells)
        if self.cells < 3:
            raise ValueError(
                f"cells={self.cells} has no place for two that halve the image and one that does not; expected 3 or more"
            )
        if self.width is None or self.width % 2:
            raise ValueError(
                f"width={self.width} cannot be halved; expected an even number of channels"
            )
        if not 0 <= self.least_lr <= self.lr:
            raise ValueError(
                f"least_lr={self.least_lr} is out of range; expected a number from 0 to lr={self.lr}"
            )
        if not self.clip > 0:
            raise ValueError(f"clip={self.clip} is out of range; expected a number above 0")
        if self.stride is not None:
            raise ValueError(f"stride={self.stride}: networks of cells have none; expected none")
        if self.schedule != "cosine" or self.warmup:
            raise ValueError(
                f"schedule={self.schedule!r}, warmup={self.warmup}: networks of cells have a cosine from the first epoch on; "
                "expected that, and 0"
            )

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return self.lr

    @property
    def usual_groups(self) -> int | None:
        """The paper's."""
        return self.groups_as_in("darts")

    def groups_as_in(self, source: str) -> int | None:
        """Of the paper's experiment of that name. In GN a group has at least two channels of the last cell, which has four times
        those of the first, as in the paper's narrowest network. With one, the mean of every map would be the same for all
        images, and that is what is classified."""
        assert self.width is not None
        groups = paper.EXPERIMENT_GROUPS[source].get(self.norm)
        return min(groups, 2 * self.width) if groups and self.norm == "gn" else groups


class CellsTask(Task):
    """Of a network of cells."""

    def check(self) -> None:
        """Normalisers of each image and map alone may leave nothing to learn; whoever wants to see that may."""
        super().check()
        model = self.bare().eval()
        x = torch.randn(4, *self.data.shape) + torch.arange(4.0).view(4, 1, 1, 1)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of single elements, which comes again
            spread = float(model(x).std(0).max())
        if spread < BLIND:
            groups = self.recipe.groups or self.recipe.usual_groups
            warnings.warn(
                f"norm={self.recipe.norm!r}{f' with {groups} groups' if groups else ''}: the network's answer is the same for "
                "all images, since the maps that it averages have the same mean in each; nothing can be learned",
                stacklevel=2,
            )


def padded(data: Data) -> Data:
    """With black around images in memory that are smaller than 32x32, as networks of cells expect them."""
    C, H, W = data.shape
    if H >= SIZE and W >= SIZE:
        return data

    def larger(source: Source) -> Source:
        if not isinstance(source, InMemory):
            raise ValueError(
                f"images of {H}x{W} pixels are too small for networks of cells; expected an image_size of {SIZE} or more"
            )
        wide, high = max(SIZE - W, 0), max(SIZE - H, 0)
        return replace(
            source, x=F.pad(source.x, (wide // 2, wide - wide // 2, high // 2, high - high // 2))
        )

    shape = C, max(H, SIZE), max(W, SIZE)
    return replace(
        data,
        shape=shape,
        train=larger(data.train),
        validation=larger(data.validation),
        test=larger(data.test),
    )


def cosine(recipe: CellsRecipe, epoch: int) -> float:
    """The learning rate of an epoch.

    >>> [round(cosine(CellsRecipe(epochs=4, least_lr=0.001), epoch), 4) for epoch in range(4)]
    [0.025, 0.0215, 0.013, 0.0045]
    """
    share = (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    return recipe.least_lr + (recipe.lr - recipe.least_lr) * share


def cut_out(x: Tensor, size: int) -> Tensor:
    """(N, C, H, W) with a square of zeros at a random place of each, less of it where that is near the border."""
    N, _, H, W = x.shape
    near = []
    for length in (H, W):
        middle = torch.randint(length, (N, 1), device=x.device)
        place = torch.arange(length, device=x.device)
        near.append((place >= middle - size // 2) & (place < middle - size // 2 + size))
    hidden = near[0][:, None, :, None] & near[1][:, None, None, :]
    return x.masked_fill(hidden, 0.0)

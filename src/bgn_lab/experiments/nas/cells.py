"""What searching and training networks of cells have in common: images, learning rate, checks."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from bgn_lab.data.sources import Data, InMemory, Source
from bgn_lab.experiments.nas.recipe import CellsRecipe
from bgn_lab.training.task import Task

SIZE = 32
BLIND = 1e-5  # of logits: they differ by less than that where they do not differ but for rounding


class CellsTask(Task):
    """Training of a network of cells."""

    def check(self) -> None:
        """Warn if the network's answer is the same for all images.

        Normalizers of each image and map alone may leave nothing to learn; whoever wants to see
        that may go on.
        """
        super().check()
        model = self.initial_network().eval()
        x = torch.randn(4, *self.data.shape) + torch.arange(4.0).view(4, 1, 1, 1)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of single elements, which comes again
            spread = float(model(x).std(0).max())
        if spread < BLIND:
            groups = self.recipe.groups or self.recipe.usual_groups
            with_groups = f" with {groups} groups" if groups else ""
            warnings.warn(
                f"norm={self.recipe.norm!r}{with_groups}: the network's answer is the same for all "
                "images, since the maps that it averages have the same mean in each; nothing can "
                "be learned",
                stacklevel=2,
            )


def padded(data: Data) -> Data:
    """Pad images in memory to at least 32x32 with black, as networks of cells expect them."""
    C, H, W = data.shape
    if H >= SIZE and W >= SIZE:
        return data

    def larger(source: Source) -> Source:
        if not isinstance(source, InMemory):
            raise ValueError(
                f"images of {H}x{W} pixels are too small for networks of cells; "
                f"expected an image_size of {SIZE} or more"
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
    """(N, C, H, W) with a square of zeros at a random place of each image.

    Where the place is near the border, less of the square is inside.
    """
    N, _, H, W = x.shape
    near = []
    for length in (H, W):
        middle = torch.randint(length, (N, 1), device=x.device)
        place = torch.arange(length, device=x.device)
        near.append((place >= middle - size // 2) & (place < middle - size // 2 + size))
    hidden = near[0][:, None, :, None] & near[1][:, None, None, :]
    return x.masked_fill(hidden, 0.0)

"""The network that a plan is for: how many numbers it sends, and the real thing to measure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import nn

import bgn
from bgn import checks
from bgn.surgery.sync import convert_sync
from bgn_lab import norms, paper
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.models.resnet import MODELS, resnet
from bgn_lab.planning.grid import Run

CHANNELS = 3


@dataclass(frozen=True)
class Network:
    """A residual network for square images in color."""

    model: str = paper.MODEL
    width: int | None = None
    stride: int | None = None
    image_size: int = paper.IMAGE_SIZE
    classes: int = paper.CLASSES

    def __post_init__(self) -> None:
        checks.one_of("model", self.model, MODELS)
        for name in ("image_size", "classes"):
            checks.positive_int(name, getattr(self, name))
        for name in ("width", "stride"):
            if getattr(self, name) is not None:
                checks.positive_int(name, getattr(self, name))

    def recipe(self, run: Run, **options: Any) -> ClassificationRecipe:
        """Recipe of a run, as far as the network goes."""
        return ClassificationRecipe(
            model=self.model, width=self.width, stride=self.stride, image_size=self.image_size,
            norm=run.norm, groups=run.G, batch_size=run.batch_size, **options,
        )  # fmt: skip

    def build(self, run: Run) -> nn.Module:
        """The network, on torch's current default device."""
        return resnet(
            self.model,
            norms.constructor(self.recipe(run)),
            self.classes,
            CHANNELS,
            self.width,
            self.stride,
        )

    def parameters(self) -> int:
        """Number of parameters, the same for every normalizer.

        >>> Network().parameters()
        25557032
        """
        return _parameters(self)

    def synchronized(self, run: Run) -> tuple[int, ...]:
        """G of every layer that would have statistics across processes.

        Normalizers of single images have none.

        >>> runs = Run("bn", None, 2), Run("bgn", 512, 128), Run("gn", None, 2)
        >>> found = [Network().synchronized(run) for run in runs]
        >>> [(len(groups), sum(groups)) for groups in found]
        [(53, 26560), (53, 27136), (0, 0)]
        """
        return _synchronized(self, run.norm, run.G)


@lru_cache
def _parameters(network: Network) -> int:
    return sum(parameter.numel() for parameter in _bare(network).parameters())


@lru_cache
def _shapes(network: Network) -> tuple[tuple[int, ...], ...]:
    """(C, H, W) of what every normalizer sees."""
    image = (CHANNELS, network.image_size, network.image_size)
    return tuple(row.shape for row in bgn.describe(_bare(network), image, batch_size=2).rows)


def _bare(network: Network) -> nn.Module:
    with torch.device("meta"):  # shapes alone: no memory, no time
        return network.build(Run("bn", None, 2))


@lru_cache(maxsize=256)
def _synchronized(network: Network, norm: str, G: int | None) -> tuple[int, ...]:
    make = norms.constructor(network.recipe(Run(norm, G, 2)))
    groups: dict[tuple[int, ...], int | None] = {}
    least = min(_shapes(network), key=math.prod)
    if G is not None and math.prod(least) < G:
        raise ValueError(
            f"groups={G} exceeds the {math.prod(least)} features of one sample in the smallest "
            f"layer (C*H*W = {'*'.join(map(str, least))}); expected at most that"
        )
    for shape in dict.fromkeys(_shapes(network)):
        layer = make(shape[0])
        synced: Any = convert_sync(layer)
        groups[shape] = None if synced is layer else synced.running_mean.numel()
    return tuple(found for shape in _shapes(network) if (found := groups[shape]) is not None)

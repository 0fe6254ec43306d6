"""What a normaliser's name means in the laboratory's networks, and what it is called in tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from torch import nn

import bgn
from bgn.groups import enough_groups
from bgn.surgery.sample import visit
from bgn_lab.paper import NORMALISERS
from bgn_lab.recipe import Recipe

Norm = Callable[[int], nn.Module]


class AnyNorm(Protocol):
    """A constructor of normalisers, with or without weight and bias."""

    def __call__(self, C: int, *, affine: bool = True) -> nn.Module: ...


def constructor(recipe: Recipe) -> AnyNorm:
    """Of the recipe's normaliser, for a number of channels.

    GN and GBGN have 32 groups in the paper, where every layer has 64 channels or more. On narrower layers that would make them
    IN and BN, so groups keep at least two channels. BN of several workers is BGN with a group per
    channel, the same layer in all but name: nn.BatchNorm2d cannot normalize their images in one pass.

    >>> constructor(Recipe(norm="gn"))(16)
    GroupNorm(8, 16, eps=1e-05, affine=True...)
    """

    def make(C: int, *, affine: bool = True) -> nn.Module:
        groups = 1 if recipe.instances is not None else recipe.groups or recipe.usual_groups
        if groups is None and recipe.norm in ("gn", "gbgn"):
            groups = max(1, min(32, C // 2))
        if recipe.norm == "bn" and recipe.simulate_workers > 1:
            return bgn.BatchGroupNorm2d(C, C, affine=affine)
        return bgn.norm_layer(
            recipe.norm, batch_size=recipe.batch_size, num_groups=groups, affine=affine
        )(C)

    return make


def settle(model: nn.Module, recipe: Recipe, shape: tuple[int, int, int]) -> nn.Module:
    """Give BGN layers the numbers of groups that depend on their feature maps, where the recipe asks for that."""
    if recipe.instances is None:
        return model
    least, G = recipe.instances, {}

    def see(layer: nn.Module, own: tuple[int, ...], N: int) -> None:
        G[layer] = enough_groups(own[0], N * math.prod(own[1:]), least)

    visit(model, shape, recipe.batch_size, see)
    return bgn.regroup(model, G.get)


def label(recipe: Recipe) -> str:
    """The normaliser's name in tables and pictures.

    >>> label(Recipe(norm="bgn")), label(Recipe(norm="bgn", groups=8)), label(Recipe(norm="gn"))
    ("BGN, paper's G", 'BGN, G = 8', 'GN')
    """
    name, which = NORMALISERS[recipe.norm], ""
    if recipe.groups is not None:
        which = f"G = {recipe.groups}"
    elif recipe.instances is not None:
        which = f"{recipe.instances}+ values"
    elif recipe.norm == "bgn":
        which = recipe.usual_name
    return ", ".join(filter(None, (name, which, recipe.variant)))

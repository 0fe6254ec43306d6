"""A normalizer by name for the laboratory's networks, and its name in tables."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol

from torch import nn

import bgn
from bgn.factory import BATCH_WIDE
from bgn.groups import AUTO, enough_groups
from bgn.layers import CHANNEL
from bgn.surgery.freeze import freeze_layer
from bgn.surgery.kinds import is_trained, normalizers
from bgn.surgery.sample import visit
from bgn_lab import imports, partners
from bgn_lab.paper import NORMALIZERS
from bgn_lab.recipe import Recipe

Norm = Callable[[int], nn.Module]
OWN = "a class PACKAGE:CLASS, called with the number of channels"


class AnyNorm(Protocol):
    """A constructor of normalizers, with or without weight and bias."""

    def __call__(self, C: int, *, affine: bool = True) -> nn.Module: ...


BATCH_GROUP_NORMS = {2: bgn.BatchGroupNorm2d, 3: bgn.BatchGroupNorm3d}
RENORMALIZED = (*BATCH_GROUP_NORMS.values(), bgn.GeneralBatchGroupNorm2d)


def constructor(recipe: Recipe, spatial: int = 2) -> AnyNorm:
    """A constructor of the recipe's normalizer for a number of channels.

    ``spatial`` is 3 for volumes.

    GN and GBGN have 32 groups in the paper, where every layer has 64 channels or more. On narrower
    layers that would make them IN and BN, so groups keep at least two channels. BN of several
    workers is BGN with a group per channel, the same layer in all but name: nn.BatchNorm2d cannot
    normalize their images in one pass, nor renormalize. With a mean per channel, groups have to be
    whole channels, so the paper's G is changed to the nearest number that divides C.

    >>> from bgn_lab.experiments.classification.recipe import ClassificationRecipe
    >>> constructor(ClassificationRecipe(norm="gn"))(16)
    GroupNorm(8, 16, eps=1e-05, affine=True...)
    """
    if ":" in recipe.norm:
        return _own(recipe.norm)
    options: dict[str, Any] = {"eps": recipe.norm_eps}
    if recipe.norm in BATCH_WIDE:
        options["momentum"] = recipe.norm_momentum
    if recipe.norm == "bgn":
        options["center"] = recipe.center

    def make(C: int, *, affine: bool = True) -> nn.Module:
        groups: Any = 1 if recipe.by_maps else recipe.groups or recipe.usual_groups
        if groups is None and recipe.norm in ("gn", "gbgn"):
            groups = max(1, min(32, C // 2))
        if recipe.norm == "bn" and (recipe.simulate_workers > 1 or recipe.renorm):
            return BATCH_GROUP_NORMS[spatial](C, C, affine=affine, **options)
        if recipe.center == CHANNEL:
            usual = groups or bgn.paper_groups(recipe.batch_size)
            groups = groups if recipe.groups else bgn.nearest_groups(C, min(usual, C))
        return bgn.norm_layer(
            recipe.norm,
            batch_size=recipe.batch_size,
            num_groups=groups,
            spatial=spatial,
            affine=affine,
            **options,
        )(C)

    return make


def _own(name: str) -> AnyNorm:
    """A constructor of the user's normalizer; it hears of ``affine`` only where that is False."""
    found = imports.load("norm", name, OWN)

    def make(C: int, *, affine: bool = True) -> nn.Module:
        made = found(C) if affine else found(C, affine=False)
        if not isinstance(made, nn.Module):
            kind = type(made).__name__
            raise TypeError(
                f"norm={name!r} made a {kind} for {C} channels; expected a torch module"
            )
        return made

    return make


def resolve_groups(model: nn.Module, recipe: Recipe, shape: tuple[int, ...]) -> nn.Module:
    """Give BGN layers the G that depends on their feature maps, if the recipe says so."""
    if not recipe.by_maps:
        return model
    least, G = recipe.instances, {}

    def see(layer: nn.Module, own: tuple[int, ...], N: int) -> None:
        C, positions = own[0], math.prod(own[1:])
        G[layer] = (
            bgn.auto_groups(C, N, positions)
            if least is None
            else enough_groups(C, N * positions, least)
        )

    visit(model, shape, recipe.batch_size, see)
    return bgn.regroup(model, G.get)


def renorm(recipe: Recipe, steps: int) -> bgn.Renorm:
    """Settings of batch renormalization for a run of so many steps.

    >>> from bgn_lab.experiments.classification.recipe import ClassificationRecipe
    >>> [renorm(ClassificationRecipe(), steps).warmup for steps in (400, 100_000)]
    [100, 1000]
    """
    warmup = recipe.renorm_warmup
    if warmup is None:
        warmup = min(max(1, steps // 4), bgn.Renorm.warmup)
    return bgn.Renorm(recipe.renorm_r_max, recipe.renorm_d_max, warmup)


def with_partners(model: nn.Module, recipe: Recipe, steps: int) -> nn.Module:
    """Give a network the partners of the recipe's normalizer, in place.

    Args:
        model: has a mean per channel already if the recipe says so, see :func:`constructor`.
        recipe: says which.
        steps: of the whole run. Layers whose running statistics are trained need no warmup.
    """
    if recipe.renorm:
        settings = renorm(recipe, steps)
        layers: list[Any] = [m for m in model.modules() if isinstance(m, RENORMALIZED)]
        for layer in layers:
            layer.set_renorm(settings, settings.warmup if is_trained(layer) else 0)
    if recipe.frozen:
        _freeze(model)
    if not recipe.standardize:
        return model
    with warnings.catch_warnings():
        # networks of cells cannot be traced, and pools come before some of their normalizers;
        # a 1x1 convolution of grayscale images has filters of one number
        warnings.filterwarnings("ignore", "standardize: (the model cannot be traced|filters of)")
        return bgn.standardize(model)


def _freeze(model: nn.Module) -> None:
    """Freeze the layers with pretrained statistics. New ones, in a head, learn."""
    trained = [layer for layer in normalizers(model).values() if is_trained(layer)]
    if not trained:
        raise ValueError(
            "frozen=True needs pretrained statistics, and the network begins without; expected"
            " --weights, or frozen=False"
        )
    for layer in trained:
        freeze_layer(layer)


def label(recipe: Recipe) -> str:
    """Name of the recipe's normalizer in tables and pictures.

    >>> from bgn_lab.experiments.classification.recipe import ClassificationRecipe
    >>> [label(ClassificationRecipe(groups=groups)) for groups in (None, 8, "auto")]
    ["BGN, paper's G", 'BGN, G = 8', 'BGN, auto']
    >>> [label(ClassificationRecipe(norm=norm)) for norm in ("gn", "package.module:MyNorm")]
    ['GN', 'package.module:MyNorm']
    >>> label(ClassificationRecipe(norm="bgn+ws", groups=1))
    'BGN + WS, G = 1'
    """
    name, which = partners.with_labels(NORMALIZERS.get(recipe.norm, recipe.norm), recipe), ""
    if recipe.groups is not None:
        which = recipe.groups if recipe.groups == AUTO else f"G = {recipe.groups}"
    elif recipe.instances is not None:
        which = f"{recipe.instances}+ values"
    elif recipe.norm == "bgn":
        which = recipe.usual_name
    return ", ".join(filter(None, (name, which, recipe.variant)))

"""Normalisers by name, for constructors that take ``norm_layer=``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from bgn import checks, layers
from bgn.groups import AUTO, paper_groups

NAMES = ("bn", "in", "ln", "gn", "pn", "gbgn", "bgn")
PAPER_CHANNEL_GROUPS = 32  # of GN and GBGN


def norm_layer(
    name: str, *, batch_size: int | None = None, num_groups: int | str | None = None, **options: Any
) -> Callable[[int], nn.Module]:
    """A constructor ``callable(num_features)`` of one of the paper's seven normalisers for (N, C, H, W) inputs.

    ========  ===========================================  =====================================
    name      layer                                        num_groups
    ========  ===========================================  =====================================
    ``bn``    ``torch.nn.BatchNorm2d``                     none
    ``in``    ``GroupNorm``, one group per channel         none
    ``ln``    ``GroupNorm``, one group                     none
    ``gn``    ``GroupNorm``                                32 by default
    ``pn``    ``PositionalNorm2d``                         none
    ``gbgn``  ``GeneralBatchGroupNorm2d``                  32 by default
    ``bgn``   ``BatchGroupNorm2d``                         given, ``"auto"``, or the paper's for
                                                           ``batch_size`` (also as ``"paper"``)
    ========  ===========================================  =====================================

    ``batch_size``, the images that one process normalises together, matters to ``bgn`` alone; the others ignore it, so
    that one call serves all names. ``options`` (eps, momentum, affine, ...) go to the layer. Instance normalisation of 1x1
    maps outputs the bias alone, with a warning, where torch raises an error.

    >>> norm_layer("bgn", batch_size=2)(64)
    BatchGroupNorm2d(64, num_groups=1, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
    >>> norm_layer("gn")(36)
    GroupNorm(32, 36, eps=1e-05, affine=True...)
    """
    checks.one_of("name", name, NAMES)
    if batch_size is not None:
        checks.positive_int("batch_size", batch_size)
    if num_groups is not None and name not in ("gn", "gbgn", "bgn"):
        raise ValueError(f"num_groups={num_groups!r} has no meaning for {name!r}; expected None")
    groups: Any = num_groups or PAPER_CHANNEL_GROUPS
    if name == "bgn" and num_groups in (None, "paper"):
        if batch_size is None:
            raise ValueError(
                "norm_layer('bgn') got neither num_groups nor batch_size; expected one of them"
            )
        groups = paper_groups(batch_size)
    elif num_groups is not None and not (name == "bgn" and num_groups == AUTO):
        checks.positive_int("num_groups", num_groups)
    constructors: dict[str, Callable[..., nn.Module]] = {
        "bn": partial(nn.BatchNorm2d, **options),
        "in": partial(_instance_norm, **options),
        "ln": partial(_group_norm, num_groups=1, **options),
        "gn": partial(_group_norm, num_groups=groups, **options),
        "pn": partial(layers.PositionalNorm2d, **options),
        "gbgn": partial(layers.GeneralBatchGroupNorm2d, num_groups=groups, **options),
        "bgn": partial(layers.BatchGroupNorm2d, num_groups=groups, **options),
    }
    return constructors[name]


def _group_norm(num_features: int, num_groups: int, **options: Any) -> layers.GroupNorm:
    return layers.GroupNorm(num_groups, num_features, **options)


def _instance_norm(num_features: int, **options: Any) -> layers.GroupNorm:
    return layers.GroupNorm(num_features, num_features, **options)

"""Who is timed on a GPU: this library's layers, torch's, and apex' and Liger's where installed."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import bgn
from bgn import kernels

Context = Callable[[], contextlib.AbstractContextManager[Any]]


@dataclass(frozen=True)
class Rival:
    """A layer for C channels, and what it is called in."""

    name: str
    layer: Callable[[int, int], nn.Module]
    context: Context = contextlib.nullcontext
    package: str = ""
    by_32: bool = False
    """Whether it needs 32 groups of whole channels."""
    channels_last: bool = False
    """Whether it takes that layout alone."""


def _native() -> contextlib.AbstractContextManager[Any]:
    flags: Any = torch.backends.cudnn.flags
    return flags(enabled=False)  # type: ignore[no-any-return]


def _apex(C: int, _: int) -> nn.Module:
    from apex.contrib.group_norm import GroupNorm  # type: ignore[import-not-found]

    layer: nn.Module = GroupNorm(32, C)
    return layer


def _liger(C: int, _: int) -> nn.Module:
    from liger_kernel.transformers.group_norm import (  # type: ignore[import-not-found]
        LigerGroupNorm,
    )

    layer: nn.Module = LigerGroupNorm(num_channels=C, num_groups=32)
    return layer


LAYERS = (
    Rival("bgn", lambda C, G: bgn.BatchGroupNorm2d(C, G)),
    Rival("bgn, aten", lambda C, G: bgn.BatchGroupNorm2d(C, G), lambda: kernels.use("aten")),
    Rival("bgn, ReLU", lambda C, G: bgn.BatchGroupNormAct2d(C, G, act="relu")),
    Rival("nn.BatchNorm2d, nn.ReLU", lambda C, _: nn.Sequential(nn.BatchNorm2d(C), nn.ReLU(True))),
    Rival("bgn GN(32)", lambda C, _: bgn.GroupNorm(32, C), by_32=True),
    Rival("bgn IN", lambda C, _: bgn.GroupNorm(C, C)),
    Rival("nn.BatchNorm2d, cuDNN", lambda C, _: nn.BatchNorm2d(C)),
    Rival("nn.BatchNorm2d, native", lambda C, _: nn.BatchNorm2d(C), _native),
    Rival("nn.GroupNorm(32)", lambda C, _: nn.GroupNorm(32, C), by_32=True),
    Rival("nn.InstanceNorm2d", lambda C, _: nn.InstanceNorm2d(C, affine=True)),
    Rival("apex GN(32)", _apex, package="apex", by_32=True, channels_last=True),
    Rival("Liger GN(32)", _liger, package="liger_kernel", by_32=True),
)


def fits(rival: Rival, C: int, layout: str, device: str) -> str:
    """Why a rival cannot take part, or nothing."""
    if rival.package and importlib.util.find_spec(rival.package) is None:
        return f"{rival.package} is not installed"
    if rival.package and device == "cpu":
        return f"{rival.package} needs a GPU"
    if rival.by_32 and C % 32:
        return f"32 groups do not divide C = {C}"
    if rival.channels_last and layout != "channels_last":
        return "channels_last only"
    if rival.package == "liger_kernel" and layout == "channels_last":
        return "contiguous only"
    return ""

"""Batch renormalization: a training batch is corrected towards the running statistics.

    r = clip(sigma / running sigma, 1 / r_max, r_max)
    d = clip((mean - running mean) / running sigma, -d_max, d_max)
    y = (xhat * r + d) * weight[c] + bias[c]

r and d are constants of the backward pass (Ioffe 2017). Without bounds y is what eval mode
computes; at r_max = 1 and d_max = 0 it is what plain training computes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bgn import checks
from bgn.moments import Moments
from bgn.partition import Partition

Number = float | Tensor


@dataclass(frozen=True)
class Renorm:
    """Settings of batch renormalization, for the ``renorm`` argument of a layer.

    The bounds grow from (1, 0), plain training, to (r_max, d_max) over the first ``warmup``
    training batches. An infinite bound is open from the first batch on.

    >>> Renorm().bounds(500)
    (2.0, 2.5)
    >>> Renorm(r_max=math.inf, d_max=math.inf, warmup=0).bounds(0)
    (inf, inf)
    """

    r_max: float = 3.0
    d_max: float = 5.0
    warmup: int = 1000

    def __post_init__(self) -> None:
        for name, least in ("r_max", 1), ("d_max", 0):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= least:
                raise ValueError(f"{name}={value!r}; expected a number of at least {least}")
        if type(self.warmup) is not int or self.warmup != 0:
            checks.positive_int("warmup", self.warmup)

    def bounds(self, steps: int) -> tuple[float, float]:
        """r_max and d_max after so many training batches."""
        share = self.share(steps)
        return grow(self.r_max, 1.0, share), grow(self.d_max, 0.0, share)

    def share(self, steps: int) -> float:
        """The part of the warmup that is over."""
        return min(steps / self.warmup, 1.0) if self.warmup else 1.0


UNBOUNDED = Renorm(math.inf, math.inf, warmup=0)
MOMENTUM = 0.01
"""Ioffe's. A usual 0.1 averages over some ten batches: with few images, what every batch is
corrected towards is then as noisy as a batch of ten times as many."""


def wanted(renorm: Renorm | bool | None) -> Renorm | None:
    """The settings that an argument stands for: True is the default ones, False is none.

    >>> wanted(True), wanted(False)
    (Renorm(r_max=3.0, d_max=5.0, warmup=1000), None)
    """
    if renorm is None or isinstance(renorm, Renorm):
        return renorm
    if not isinstance(renorm, bool):
        raise TypeError(
            f"renorm={renorm!r} is a {type(renorm).__name__}; expected a bgn.Renorm, True or False"
        )
    return Renorm() if renorm else None


def grow(most: float, least: float, share: float) -> float:
    """The bound after a share of the warmup."""
    return least + (most - least) * share if math.isfinite(most) else most


class Reference(NamedTuple):
    """What a batch is corrected towards, and how far.

    ``mean`` and ``var`` are running statistics, an entry per group, or per channel where groups are
    whole channels. ``share`` is the part of the warmup that is over, a 0-dim tensor where reading
    it would make Python wait for a device or stop a compiler.
    """

    mean: Tensor
    var: Tensor
    r_max: float
    d_max: float
    share: Number

    @property
    def entries(self) -> int:
        """Number of corrections of a block."""
        most: int = max(checks.sizes(self.mean)[0], checks.sizes(self.var)[0])
        return most

    def bounds(self) -> tuple[Number, Number]:
        """The bounds of r and of d, now."""
        if not isinstance(self.share, Tensor):
            return grow(self.r_max, 1.0, self.share), grow(self.d_max, 0.0, self.share)
        r, d = (
            least + (most - least) * self.share if math.isfinite(most) else most
            for most, least in ((self.r_max, 1.0), (self.d_max, 0.0))
        )
        return r, d

    def numbers(self) -> tuple[float, float]:
        """The bounds as numbers."""
        r, d = self.bounds()
        return float(r), float(d)


def corrections(reference: Reference, stats: Moments, part: Partition, eps: float) -> Tensor:
    """r and d of a batch, (2, B, E) for E entries of the reference: constants in every mode of
    differentiation, so detached, because ``no_grad`` does not stop forward mode."""
    E = reference.entries
    mean, var = (_entries(t.detach(), part, E) for t in (stats.mean, stats.var))
    wide = mean.dtype
    reference_mean, reference_var = (
        _entries(t.to(wide)[None], part, E) for t in (reference.mean, reference.var)
    )
    scale = torch.rsqrt(reference_var + eps)
    r_max, d_max = reference.bounds()
    r = _clip((var + eps).sqrt() * scale, 1 / r_max, r_max)
    d = _clip((mean - reference_mean) * scale, -d_max, d_max)
    return torch.stack([r, d])


def _clip(value: Tensor, least: Number, most: Number) -> Tensor:
    if isinstance(most, Tensor) or isinstance(least, Tensor):
        return torch.minimum(torch.maximum(value, _like(least, value)), _like(most, value))
    return value.clamp(least, most)


def _like(bound: Number, value: Tensor) -> Tensor:
    return bound.to(value.dtype) if isinstance(bound, Tensor) else torch.full_like(value, bound)


def _entries(stat: Tensor, part: Partition, E: int) -> Tensor:
    """A (B, G) or (B, C) statistic with E entries a block, those of each group or channel."""
    return stat if checks.sizes(stat)[1] == E else stat[:, part.group_of_unit(stat.device)]

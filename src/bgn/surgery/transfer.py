"""Carry running statistics over to another partition, with the same output in eval mode.

A layer with statistics (mu, var) computes ``w * (x - mu) / sqrt(var + eps) + b``. With new
statistics (mu', var') the same function of x needs, on every channel,

    w' = w * sqrt(var' + eps') / sqrt(var + eps)            =: w * scale
    b' = b + w * (mu' - mu) / sqrt(var + eps)               =: b + w * shift

The new statistics follow from the old ones by the law of total variance, over the cells (of
lengths l) of a new group:

    mu' = sum(l * mu) / sum(l)
    var' = sum(l * (var + (mu - mu')^2)) / sum(l)

The new w and b exist if scale and shift are constant on each channel. This holds where each
channel lies within one old and one new group (BN to G dividing C), and where each new group lies
within one old group (BN to a multiple of C: scale is 1, shift is 0).

Where either has a mean per channel (``channel_means``), mu and mu' are those of channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bgn.partition import common_cells
from bgn.surgery.kinds import Kind


@dataclass(frozen=True)
class Transfer:
    """New statistics (G',) and the change of weight and bias (C,), in float64 on the CPU."""

    mean: Tensor
    var: Tensor
    scale: Tensor
    shift: Tensor
    exact: bool

    @property
    def is_identity(self) -> bool:
        """Whether weight and bias stay as they are."""
        return not self.shift.any() and torch.allclose(self.scale, torch.ones_like(self.scale))

    @property
    def amplification(self) -> float:
        """Largest growth of a channel's rounding errors: (sigma' + |mu' - mu|) / sigma."""
        return (self.scale + self.shift.abs()).max().item()


def transfer(
    old: Kind, new: Kind, mean: Tensor, var: Tensor, eps: float, new_eps: float
) -> Transfer:
    """Statistics (G,) of ``old`` for ``new``, two batch-wide kinds with the same channels."""
    length, channel, source, target, G = _common_cells(old, new)
    mean, var = mean.detach().cpu().double(), var.detach().cpu().double()
    C = old.num_features

    # what shares a mean may be a channel
    mean = mean[channel if old.channel_means else source]  # per cell
    center, M = (channel, C) if new.channel_means else (target, G)

    # relative to the first cell of each new group, so that a group within one old group keeps its
    # statistics to the last bit: scale is then 1 and shift is 0
    first = torch.searchsorted(center, torch.arange(M))
    offset = mean - mean[first][center]
    new_mean = mean[first] + _sum(length * offset, center, M) / _sum(length, center, M)
    first = source[torch.searchsorted(target, torch.arange(G))]
    excess = var[source] - var[first][target] + (mean - new_mean[center]).square()
    new_var = var[first] + _sum(length * excess, target, G) / _sum(length, target, G)

    sigma = (var[source] + eps).sqrt()
    scale = (new_var[target] + new_eps).sqrt() / sigma
    shift = (new_mean[center] - mean) / sigma
    share = length / _sum(length, channel, C)[channel]
    return Transfer(
        new_mean,
        new_var,
        _sum(share * scale, channel, C),
        _sum(share * shift, channel, C),
        exact=_exact(channel, source, target, C, G, same_eps=eps == new_eps),
    )


def _common_cells(old: Kind, new: Kind) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Share of the features, channel, old group and new group of each cell; number of new groups.

    The positions are so many that every border of groups is a border of features.
    """
    C = old.num_features
    P = math.lcm(C, old.num_groups, new.num_groups) // C
    before, after = (kind.partition(kind.batch_blocks, P) for kind in (old, new))
    assert before is not None
    assert after is not None
    length, channel, source, target = common_cells(before, after)
    return length.double() / before.D, channel, source, target, after.G


def _sum(values: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64).index_add(0, index, values)


def _distinct(owner: Tensor, item: Tensor, owners: int) -> Tensor:
    """The number of different items of each owner."""
    pairs: Tensor = torch.unique(torch.stack([owner, item]), dim=1)
    return torch.bincount(pairs[0], minlength=owners)


def _exact(channel: Tensor, source: Tensor, target: Tensor, C: int, G: int, same_eps: bool) -> bool:
    within_one = (_distinct(channel, source, C) == 1) & (_distinct(channel, target, C) == 1)
    unchanged = _distinct(target, source, G) == 1
    return bool((within_one[channel] | (unchanged[target] & same_eps)).all())

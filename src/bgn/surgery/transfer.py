"""Running statistics of one partition carried over to another, so that the layer's output at test time stays the same.

A layer with statistics (mu, var) computes ``w * (x - mu) / sqrt(var + eps) + b``. With the new statistics (mu', var') the same
function of x needs, on every channel,

    w' = w * sqrt(var' + eps') / sqrt(var + eps)            =: w * scale
    b' = b + w * (mu' - mu) / sqrt(var + eps)               =: b + w * shift

The new statistics follow from the old by the law of total variance, over the pieces (of lengths l) that a new group is made of:

    mu' = sum(l * mu) / sum(l)
    var' = sum(l * (var + (mu - mu')^2)) / sum(l)

The new w and b exist if scale and shift are constant on each channel: exact where each channel lies within one old and one new
group (BN to G dividing C), or where each new group lies within one old group (BN to G that C divides: scale is 1, shift is 0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bgn.surgery.kinds import Kind


@dataclass(frozen=True)
class Transfer:
    """New statistics (G',) and the per-channel change of the affine map (C,); in float64 on the CPU."""

    mean: Tensor
    var: Tensor
    scale: Tensor
    shift: Tensor
    exact: bool

    @property
    def amplification(self) -> float:
        """How much the rounding error of the largest channel grows: (sigma' + |mu' - mu|) / sigma."""
        return (self.scale + self.shift.abs()).max().item()


def transfer(
    old: Kind, new: Kind, mean: Tensor, var: Tensor, eps: float, new_eps: float
) -> Transfer:
    """Carry statistics (G,) of ``old`` over to ``new``, two batch-wide kinds with the same channels."""
    length, channel, source, target = _pieces(old, new)
    mean, var = mean.detach().cpu().double(), var.detach().cpu().double()
    C, G = old.num_features, _num_statistics(new)

    size = _sum(length, target, G)
    new_mean = _sum(length * mean[source], target, G) / size
    spread = (mean[source] - new_mean[target]).square()
    new_var = _sum(length * (var[source] + spread), target, G) / size

    sigma = (var[source] + eps).sqrt()
    scale = (new_var[target] + new_eps).sqrt() / sigma
    shift = (new_mean[target] - mean[source]) / sigma
    share = length / _sum(length, channel, C)[channel]
    return Transfer(
        new_mean,
        new_var,
        _sum(share * scale, channel, C),
        _sum(share * shift, channel, C),
        exact=_exact(channel, source, target, C, G, same_eps=eps == new_eps),
    )


def _num_statistics(kind: Kind) -> int:
    part = kind.partition(1, 1)
    assert part is not None
    return part.G if kind.name == "gbgn" else kind.num_groups


def _borders(kind: Kind, unit: int) -> Tensor:
    """The borders of the kind's groups, as integers with D = unit."""
    if kind.name == "gbgn":
        part = kind.partition(kind.batch_blocks, 1)
        assert part is not None
        return part.starts() * (unit // kind.num_features)
    return torch.arange(kind.num_groups + 1) * (unit // kind.num_groups)


def _pieces(old: Kind, new: Kind) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut the features at every border of channels, old groups and new groups: lengths, and where each piece belongs."""
    C = old.num_features
    unit = math.lcm(
        C, old.num_groups, new.num_groups
    )  # so many parts that every border is a whole number
    borders = [torch.arange(C + 1) * (unit // C), _borders(old, unit), _borders(new, unit)]
    cuts: Tensor = torch.unique(torch.cat(borders))
    where = [torch.searchsorted(border, cuts[:-1], right=True) - 1 for border in borders]
    return cuts.diff().double() / unit, where[0], where[1], where[2]


def _sum(values: Tensor, index: Tensor, size: int) -> Tensor:
    return torch.zeros(size, dtype=torch.float64).index_add(0, index, values)


def _distinct(owner: Tensor, item: Tensor, owners: int) -> Tensor:
    """How many different items each owner has."""
    pairs: Tensor = torch.unique(torch.stack([owner, item]), dim=1)
    return torch.bincount(pairs[0], minlength=owners)


def _exact(channel: Tensor, source: Tensor, target: Tensor, C: int, G: int, same_eps: bool) -> bool:
    within_one = (_distinct(channel, source, C) == 1) & (_distinct(channel, target, C) == 1)
    unchanged = _distinct(target, source, G) == 1
    return bool((within_one[channel] | (unchanged[target] & same_eps)).all())

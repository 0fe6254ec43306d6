"""Which elements of a feature map share one mean and one variance.

Flatten the C, H, W of a sample, in that order, to D features. The batch is cut into B blocks of
samples and the features into G groups. Every (block, group) pair shares one mean and one
variance. Six of the paper's seven normalizers are such a partition. The seventh, PN, is not: its
groups are strided across the channels.

=====  ========  ==========================
name   blocks B  groups
=====  ========  ==========================
BN     1         C, one per channel
IN     N         C, one per channel
LN     N         1
GN     N         G slices of the D features
GBGN   B         groups of whole channels
BGN    1         G slices of the D features
=====  ========  ==========================

Group g covers the features ``floor(g*D/G)`` up to ``floor((g+1)*D/G)``. If G divides D, which is
the paper's case, all groups have S = D/G features; otherwise their lengths differ by at most one.
So every G up to D is valid, and the groups keep their relative positions if H x W changes between
training and test.

A channel is an interval of the D features, and so is a group. Their intersections are *cells*:
runs of memory with one channel and one group. Sums are gathered per cell, then combined per group
for the statistics and per channel for the gradients of weight and bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Cells(NamedTuple):
    """Intersections of channels and groups in the order of the features; int64 tensors (cells,)."""

    length: Tensor
    """Number of features of each cell."""
    channel: Tensor
    """Channel of each cell."""
    group: Tensor
    """Group of each cell."""


@dataclass(frozen=True)
class Partition:
    """Blocks and groups of an (N, C, P) feature map, where P = H*W positions in two dimensions.

    Groups consist of *units*. A unit is a whole channel if every border between groups is also a
    border between channels, and a single feature otherwise.

    >>> slices(N=2, C=4, P=6, G=3).bounds()
    [0, 8, 16, 24]
    """

    N: int
    C: int
    P: int
    B: int
    G: int
    whole_channels: bool
    channel_means: bool = False
    """Whether every channel has a mean of its own, and only the variance is the group's."""

    @property
    def D(self) -> int:
        """Number of features of one sample."""
        return self.C * self.P

    @property
    def units(self) -> int:
        """Number of units of one sample."""
        return self.C if self.whole_channels else self.D

    @property
    def unit_size(self) -> int:
        """Number of features of one unit."""
        return self.P if self.whole_channels else 1

    @property
    def block_size(self) -> int:
        """Number of samples that share a statistic."""
        return self.N // self.B

    @property
    def means(self) -> int:
        """Number of means of a block."""
        return self.C if self.channel_means else self.G

    @property
    def per_channel(self) -> Partition:
        """The same blocks with a group per channel."""
        return Partition(self.N, self.C, self.P, self.B, self.C, whole_channels=True)

    @property
    def smallest_count(self) -> int:
        """Number of elements of the smallest statistic."""
        if self.channel_means:
            return self.block_size * self.P
        return self.block_size * (self.units // self.G) * self.unit_size

    def bounds(self) -> list[int]:
        """The G + 1 borders of the groups, counted in features."""
        return [g * self.units // self.G * self.unit_size for g in range(self.G + 1)]

    def starts(self, device: torch.device | None = None) -> Tensor:
        """The G + 1 borders of the groups, counted in units."""
        return torch.arange(self.G + 1, device=device) * self.units // self.G

    def group_of_unit(self, device: torch.device | None = None) -> Tensor:
        """The group of each unit: the g with ``starts[g] <= u < starts[g + 1]``, in closed form."""
        return ((torch.arange(self.units, device=device) + 1) * self.G - 1) // self.units

    def cells(self, device: torch.device | None = None) -> Cells:
        """The intersections of channels and groups, in the order of the features.

        >>> slices(N=2, C=2, P=6, G=3).cells()
        Cells(length=tensor([4, 2, 2, 4]), channel=tensor([0, 0, 1, 1]), group=tensor([0, 1, 1, 2]))
        """
        if self.whole_channels:  # a cell is a channel
            length = torch.full((self.C,), self.P, device=device)
            return Cells(length, torch.arange(self.C, device=device), self.group_of_unit(device))
        return Cells(*(t.to(device) for t in common_cells(self)))

    def labels(self) -> Tensor:
        """The index of the statistic of each element, as an (N, C, P) tensor."""
        group = self.group_of_unit().repeat_interleave(self.unit_size).view(1, self.C, self.P)
        block = torch.arange(self.N).view(self.N, 1, 1) * self.B // self.N
        return block * self.G + group


def slices(N: int, C: int, P: int, G: int, B: int = 1) -> Partition:
    """G slices of the D features, as in BGN; with B = N, those of GN, LN and IN."""
    return Partition(N, C, P, B, G, whole_channels=C % G == 0)


def channel_groups(N: int, C: int, P: int, G: int, B: int = 1) -> Partition:
    """About G groups of whole channels, as in GBGN, with at least ``max(C // G, 1)`` channels."""
    return Partition(N, C, P, B, num_channel_groups(C, G), whole_channels=True)


def centered(N: int, C: int, P: int, G: int, B: int = 1) -> Partition:
    """G groups of whole channels for the variance, and a mean per channel; G divides C."""
    return Partition(N, C, P, B, G, whole_channels=True, channel_means=True)


def num_channel_groups(C: int, G: int) -> int:
    """Number of groups that ``channel_groups`` makes: G if G divides C, and C if G exceeds C.

    >>> num_channel_groups(64, 32), num_channel_groups(16, 32), num_channel_groups(100, 32)
    (32, 16, 33)
    """
    return C // max(C // G, 1)


def block_sizes(N: int, B: int) -> list[int]:
    """Samples of each block if N samples are cut into up to B blocks, as ``torch.chunk`` does.

    Blocks have ceil(N / B) samples. Where B does not divide N, the last one has fewer, and there
    may be fewer than B.

    >>> block_sizes(6, 3), block_sizes(7, 3), block_sizes(5, 4)
    ([2, 2, 2], [3, 3, 1], [2, 2, 1])
    """
    n = max(-(-N // B), 1)
    return [n] * (N // n) + ([N % n] if N % n else [])


def common_cells(*partitions: Partition) -> tuple[Tensor, ...]:
    """Cut the features at every border of channels and of the groups of all partitions.

    Returns the length and the channel of each piece, and its group in each of the partitions. All
    partitions have the same C and P.

    >>> common_cells(slices(1, C=2, P=6, G=3), slices(1, C=2, P=6, G=1))
    (tensor([4, 2, 2, 4]), tensor([0, 0, 1, 1]), tensor([0, 1, 1, 2]), tensor([0, 0, 0, 0]))
    """
    C, P = partitions[0].C, partitions[0].P
    bounds = [[c * P for c in range(C + 1)], *(part.bounds() for part in partitions)]
    borders = [torch.tensor(bound, device="cpu") for bound in bounds]
    cuts: Tensor = torch.unique(torch.cat(borders))
    owners = (torch.searchsorted(border, cuts[:-1], right=True) - 1 for border in borders)
    return cuts.diff(), *owners

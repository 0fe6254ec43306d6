"""Which elements of a feature map share one mean and one variance.

A sample's C, H, W, flattened in that order, are D features. The batch is cut into B blocks of samples, the features into
G groups; every (block, group) pair shares one statistic. Six of the paper's seven normalisers are such a partition
(PN, whose groups are strided across channels, is the odd one out):

=====  ========  =================================
name   blocks B  groups
=====  ========  =================================
BN     1         C, one per channel
IN     N         C, one per channel
LN     N         1
GN     N         G slices of the D features
GBGN   B         groups of whole channels
BGN    1         G slices of the D features
=====  ========  =================================

Group g covers the features ``floor(g*D/G)`` up to ``floor((g+1)*D/G)``: equal slices of S = D/G whenever G divides D (the
paper's case), otherwise slices whose lengths differ by one. So every G up to D is legal, and a layer keeps its groups'
meaning when H x W differs between training and test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Partition:
    """A partition of an (N, C, P) feature map; P is the number of positions of a channel, H*W in two dimensions.

    Groups are made of *units*: whole channels where every group border is a channel border, single features otherwise.

    >>> slices(N=2, C=4, P=6, G=3).bounds()
    [0, 8, 16, 24]
    """

    N: int
    C: int
    P: int
    B: int
    G: int
    whole_channels: bool

    @property
    def D(self) -> int:
        """Features of one sample."""
        return self.C * self.P

    @property
    def units(self) -> int:
        """How many units the groups are made of."""
        return self.C if self.whole_channels else self.D

    @property
    def unit_size(self) -> int:
        """How many features a unit has."""
        return self.P if self.whole_channels else 1

    @property
    def block_size(self) -> int:
        """Samples that share a statistic."""
        return self.N // self.B

    @property
    def smallest_count(self) -> int:
        """How many elements the smallest statistic is computed from."""
        return self.block_size * (self.units // self.G) * self.unit_size

    def bounds(self) -> list[int]:
        """The G + 1 borders of the groups, in features."""
        return [g * self.units // self.G * self.unit_size for g in range(self.G + 1)]

    def starts(self, device: torch.device | None = None) -> Tensor:
        """The G + 1 borders of the groups, in units, as a tensor."""
        return torch.arange(self.G + 1, device=device) * self.units // self.G

    def group_of_unit(self, device: torch.device | None = None) -> Tensor:
        """The group of each unit: the g with ``starts[g] <= u < starts[g + 1]``, in closed form."""
        return ((torch.arange(self.units, device=device) + 1) * self.G - 1) // self.units

    def labels(self) -> Tensor:
        """For each element the index of its statistic, as an (N, C, P) tensor: the partition itself, to look at."""
        group = self.group_of_unit().repeat_interleave(self.unit_size).view(1, self.C, self.P)
        block = torch.arange(self.N).view(self.N, 1, 1) * self.B // self.N
        return block * self.G + group


def slices(N: int, C: int, P: int, G: int, B: int = 1) -> Partition:
    """G slices of the D features, as in BGN; with B = N those of GN, LN and IN."""
    return Partition(N, C, P, B, G, whole_channels=C % G == 0)


def channel_groups(N: int, C: int, P: int, G: int, B: int = 1) -> Partition:
    """About G groups of whole channels, as in GBGN: at least ``max(C // G, 1)`` channels each."""
    return Partition(N, C, P, B, num_channel_groups(C, G), whole_channels=True)


def num_channel_groups(C: int, G: int) -> int:
    """How many groups ``channel_groups`` makes: G where G divides C, C where G exceeds C.

    >>> num_channel_groups(64, 32), num_channel_groups(16, 32), num_channel_groups(100, 32)
    (32, 16, 33)
    """
    return C // max(C // G, 1)

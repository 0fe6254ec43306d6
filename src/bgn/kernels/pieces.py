"""Pieces: a feature map as torch's batch_norm kernels see it, whatever the partition.

Those kernels know one mean, variance, weight and bias per channel. Cut the D features of a sample
into K equal *pieces*, each within one channel and one group, and call the pieces channels: then
batch_norm writes every normalizer. K is C for groups of whole channels, lcm(C, G) where G divides
D, and D otherwise. If there are several blocks, every piece of every sample is a channel, because
samples of different blocks have different statistics.

Vectors per group and per channel are spread over the pieces, and sums per piece are summed per
group and per channel: a few numbers, and one operator each.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bgn.kernels.plans import Plan
from bgn.moments import Moments


class Pieces:
    """The pieces of one plan: ``rows`` times K of them, with ``size`` elements each."""

    __slots__ = ("K", "direct", "equal", "layout", "own", "part", "plan", "rows", "size", "starts")

    def __init__(self, plan: Plan) -> None:
        part = self.part = plan.part
        if part.whole_channels:
            self.K = part.C
        elif part.D % part.G == 0:
            self.K = math.lcm(part.C, part.G)
        else:
            self.K = part.D
        self.plan = plan
        self.rows = 1 if part.B == 1 else part.N
        self.size = plan.numel // (self.rows * self.K)
        self.equal = self.K % part.G == 0  # whether all groups have as many pieces
        # whether each statistic is that of one piece: batch_norm's own statistics are ours
        self.direct = self.K == part.G and part.block_size == part.N // self.rows
        # whether pieces are channels: x needs no view, and may be channels_last
        self.own = self.K == part.C and self.rows == 1
        self.layout = plan.layout if self.own else torch.contiguous_format
        self.starts: dict[torch.device, Tensor] = {}

    def view(self, x: Tensor) -> Tensor:
        """x without gaps: (N, C, ...) as it is, or viewed as (N / rows, rows * K, S)."""
        x = x.contiguous(memory_format=self.layout)
        return x if self.own else x.view(self.part.N // self.rows, self.rows * self.K, -1)

    def restore(self, y: Tensor) -> Tensor:
        """What ``view`` made of x, as an (N, C, ...) tensor in the layout of the plan.

        It is no view for autograd: callers change outputs in place.
        """
        if not self.own:
            y = y.view(self.plan.shape).data
        return y.contiguous(memory_format=self.plan.layout)

    def per_group(self, vector: Tensor) -> Tensor:
        """A vector of pieces as (..., B, n, G, K / G); for equal groups."""
        part = self.part
        return vector.view(*vector.shape[:-1], part.B, self.rows // part.B, part.G, -1)

    def per_channel(self, vector: Tensor) -> Tensor:
        """A vector of pieces as (rows, C, K / C)."""
        return vector.view(self.rows, self.part.C, -1)

    def expand(self, stats: Tensor) -> Tensor:
        """Statistics (..., B, G) as (..., B, n, G, K / G), without a copy; for equal groups."""
        part = self.part
        shape = *stats.shape[:-2], part.B, self.rows // part.B, part.G, self.K // part.G
        return stats.unsqueeze(-2).unsqueeze(-1).expand(shape)

    def spread_groups(self, *stats: Tensor) -> tuple[Tensor, ...]:
        """Statistics (B, G), each as a vector of pieces."""
        part = self.part
        if self.rows * self.K == part.B * part.G:
            return tuple(stat.reshape(-1) for stat in stats)
        if self.equal:
            wide = torch.stack([self.expand(stat) for stat in stats])
        else:
            lengths = self._starts(stats[0]).diff()
            stacked = torch.stack(stats)[:, :, None].expand(-1, -1, self.rows // part.B, -1)
            wide = stacked.repeat_interleave(lengths, dim=-1, output_size=self.K)
        return wide.view(len(stats), -1).unbind()

    def spread_scaled(self, stats: Tensor, factor: float | Tensor) -> Tensor:
        """Statistics (m, B, G) times a factor, as (m, pieces)."""
        if self.equal:  # in one operator
            return (self.expand(stats) * factor).reshape(len(stats), -1)
        return torch.stack(self.spread_groups(*(stats * factor)))

    def spread_channels(
        self, weight: Tensor | None, bias: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias (C,), each as a vector of pieces."""
        given = [None if t is None else t.detach().to(dtype) for t in (weight, bias)]
        shape = self.rows, self.part.C, self.K // self.part.C
        present = [t.view(1, -1, 1).expand(shape) for t in given if t is not None]
        if present and not self.own:
            vectors = iter(torch.stack(present).view(len(present), -1).unbind())
            given = [None if t is None else next(vectors) for t in given]
        return given[0], given[1]

    def sum_groups(self, sums: Tensor) -> Tensor:
        """Sums per piece (..., pieces) as sums per statistic (..., B, G)."""
        if self.equal:
            return self.per_group(sums).sum((-3, -1))
        part = self.part
        sums = sums.view(*sums.shape[:-1], part.B, -1, self.K)
        sums = sums.sum(-2) if self.rows > part.B else sums.squeeze(-2)
        body, last, has_last = self._uneven(sums)
        return sums[..., body].sum(-1) + sums[..., last] * has_last

    def sum_channels(self, sums: Tensor) -> Tensor:
        """Sums per piece as sums per channel, (C,)."""
        return sums if self.own else self.per_channel(sums).sum((0, 2))

    def merge(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every statistic (B, G), from those of the pieces."""
        if self.equal:  # the law of total variance
            mean, var = self.per_group(mean), self.per_group(var)
            between = mean.var((-3, -1), correction=0)  # var_mean's mean of infinity is NaN
            return mean.mean((-3, -1)), between + var.mean((-3, -1))
        part = self.part
        mean, var = (t.view(part.B, -1, self.K) for t in (mean, var))
        between, mean = torch.var_mean(mean, 1, correction=0)
        var = between + var.mean(1)  # (B, K)
        body, last, has_last = self._uneven(mean)
        count = self.size * (self.rows // part.B)
        between, center = torch.var_mean(mean[:, body], -1, correction=0)
        size = torch.full_like(center, count * body.shape[1])
        of_body = Moments(size, center, (between + var[:, body].mean(-1)) * size)
        size = has_last * count
        merged = of_body.merge(Moments(size, mean[:, last], var[:, last] * size))
        return merged.mean, merged.var

    def count(self, like: Tensor) -> int | Tensor:
        """The number of elements of a statistic: of all alike, or of each, (G,)."""
        part = self.part
        if self.equal:
            return self.plan.numel // (part.B * part.G)
        lengths = self._starts(like).diff() * (part.block_size * part.unit_size)
        return lengths.to(like.dtype)

    def _uneven(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pieces (G, S) that all groups have, their last ones (G,), and whether it is more."""
        starts = self._starts(like)
        S = self.K // self.part.G
        body = starts[:-1, None] + torch.arange(S, device=like.device)
        return body, starts[1:] - 1, (starts.diff() - S).to(like.dtype)

    def _starts(self, like: Tensor) -> Tensor:
        """The G + 1 borders of uneven groups, counted in pieces; made once per device."""
        found = self.starts.get(like.device)
        if found is None:
            found = self.starts[like.device] = self.part.starts(like.device)
        return found


def pieces_of(plan: Plan) -> Pieces:
    """The pieces of a plan, made on first use."""
    found: Pieces | None = plan.pieces
    if found is None:
        found = plan.pieces = Pieces(plan)
    return found

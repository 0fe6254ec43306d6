"""The definition of every normaliser, in plain torch operations that autograd, compile and export understand.

For each block b and group g, over the elements of that block and group:

    mu = mean(x)                             (the paper's equation of mu_g)
    var = mean((x - mu)^2)                   (the paper's equation of delta_g^2)
    y = (x - mu) / sqrt(var + eps) * weight[c] + bias[c]

Every faster path is tested against this one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bgn.moments import Moments, moments
from bgn.partition import Partition


def statistics(x: Tensor, part: Partition) -> Moments:
    """Count, mean and M2 of every statistic; mean and M2 are (B, G), in float32 or better."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    B, n, G, U, P = part.B, part.block_size, part.G, part.units, part.unit_size
    S = U // G  # units that every group has; where G does not divide U, some groups have one more
    x = x.reshape(B, n, U, P)
    if U % G == 0:
        return moments(x.reshape(B, n, G, S, P), dim=(1, 3, 4))  # (B, n, G, S, P) -> (B, G)

    starts = part.starts(x.device)
    body = starts[:-1, None] + torch.arange(S, device=x.device)  # (G, S)
    last = starts[1:] - 1  # (G,)
    has_last = starts.diff() - S  # (G,) 1 where the group has one more unit than S
    of_body = moments(x[:, :, body], dim=(1, 3, 4))  # (B, n, G, S, P) -> (B, G)
    of_last = moments(x[:, :, last], dim=(1, 3))  # (B, n, G, P) -> (B, G)
    return of_body.merge(Moments(of_last.count * has_last, of_last.mean, of_last.M2 * has_last))


def spread(stat: Tensor, part: Partition) -> Tensor:
    """A (B, G) statistic laid out for broadcasting: (B, 1, C, 1) for groups of whole channels, else (B, 1, C, P)."""
    B, G, U = part.B, part.G, part.units
    longest = -(-U // G)
    per_unit = stat[:, :, None].expand(B, G, longest).reshape(B, G * longest)
    if U % G:  # drop the last place of the groups that are one unit shorter
        group = part.group_of_unit(stat.device)
        per_unit = per_unit[:, group * longest + torch.arange(U, device=stat.device) - part.starts(stat.device)[group]]
    return per_unit.reshape(B, 1, part.C, 1 if part.whole_channels else part.P)


def apply(
    x: Tensor, part: Partition, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise with given (B, G) statistics, then scale and shift per channel."""
    blocks = x.reshape(part.B, part.block_size, part.C, part.P)
    scale = torch.rsqrt(spread(var, part) + eps)
    if weight is not None:
        scale = scale * weight[:, None]
    # elementwise in x's own layout, so that channels_last in is channels_last out
    y = (blocks - spread(mean, part)) * scale
    if bias is not None:
        y = y + bias[:, None]
    return y.to(x.dtype).reshape(x.shape)


def train(
    x: Tensor, part: Partition, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Moments]:
    """Normalise with the statistics of x itself; also returns them."""
    stats = statistics(x, part)
    return apply(x, part, stats.mean, stats.var, weight, bias, eps), stats


def positional(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """PN: one mean and one biased variance per sample and position, across the C channels."""
    rows = x.to(torch.promote_types(x.dtype, torch.float32)).reshape(x.shape[0], x.shape[1], -1)  # (N, C, P)
    var, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)  # (N, 1, P)
    y = (rows - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        y = y * weight[:, None]
    if bias is not None:
        y = y + bias[:, None]
    return y.to(x.dtype).reshape(x.shape)

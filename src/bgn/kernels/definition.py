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
from bgn.running import Running, update


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


def count(part: Partition, like: Tensor) -> Tensor:
    """How many elements each of the G statistics of a block has."""
    return (part.starts(like.device).diff() * part.unit_size * part.block_size).to(like.dtype)


def spread(stat: Tensor, part: Partition, like: Tensor) -> Tensor:
    """A (B, G) statistic laid out for broadcasting against ``like``, a tensor of the partition's (N, C, ...).

    (B, G) -> (B, units) -> (1 or N, C, 1, ...) for groups of whole channels, else (1 or N, C, H, ...).
    """
    B, G, U = part.B, part.G, part.units
    longest = -(-U // G)
    per_unit = stat[:, :, None].expand(B, G, longest).reshape(B, G * longest)
    if U % G:  # drop the last place of the groups that are one unit shorter
        group = part.group_of_unit(stat.device)
        per_unit = per_unit[
            :,
            group * longest + torch.arange(U, device=stat.device) - part.starts(stat.device)[group],
        ]
    if B > 1:
        per_unit = per_unit.repeat_interleave(part.block_size, dim=0)  # (B, units) -> (N, units)
    positions = [1] * (like.dim() - 2) if part.whole_channels else like.shape[2:]
    return per_unit.reshape(-1, part.C, *positions)


def per_channel(vector: Tensor, like: Tensor) -> Tensor:
    """A (C,) parameter laid out for broadcasting: (C, 1, ...)."""
    return vector.reshape(-1, *[1] * (like.dim() - 2))


def apply(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise with given (G,) statistics."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return _normalise(
        x, part, mean.to(wide)[None], var.to(wide)[None], weight, bias, eps
    )  # (G,) -> (1, G)


def _normalise(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise with (B, G) statistics, then scale and shift per channel."""
    scale = torch.rsqrt(spread(var, part, x) + eps)
    if weight is not None:
        scale = scale * per_channel(weight, x)
    # elementwise in x's own shape and layout: channels_last in is channels_last out, and no view is returned
    y = (x - spread(mean, part, x)) * scale
    if bias is not None:
        y = y + per_channel(bias, x)
    return y.to(x.dtype)


def train(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
) -> Tensor:
    """Normalise with the statistics of x itself, and move the running ones towards them."""
    stats = statistics(x, part)
    if running is not None:
        update(running, stats)
    return _normalise(x, part, stats.mean, stats.var, weight, bias, eps)


def fixed(
    gy: Tensor, x: Tensor, part: Partition, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of x as if the statistics (G,) were fixed, and the sums of gy and of gy * xhat per channel."""
    wide = mean.dtype
    r = spread(rstd[None], part, x)
    g = gy.to(wide)
    xhat = (x.to(wide) - spread(mean[None], part, x)) * r
    others = [i for i in range(x.dim()) if i != 1]
    gx = r * g if weight is None else r * g * per_channel(weight.to(wide), x)
    return gx, g.sum(others), (g * xhat).sum(others)


def positional(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """PN: one mean and one biased variance per sample and position, across the C channels."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(wide, 1, correction=0, keepdim=True)  # (N, 1, H, W)
    y = (wide - mean) * torch.rsqrt(var + eps)
    if weight is not None:
        y = y * per_channel(weight, x)
    if bias is not None:
        y = y + per_channel(bias, x)
    return y.to(x.dtype)


def serves(*_: object) -> bool:
    """Whether this backend is better than torch's own operations where both could be used: never."""
    return False


def remember(*_: object) -> None:
    """Nothing here is worth remembering."""


def quick(*_: object) -> None:
    """There is no way around the checks here."""

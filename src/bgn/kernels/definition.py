"""The definition of every normalizer, in plain torch operations.

For each block b and group g, over the elements of that block and group:

    mu = mean(x)                             (the paper's equation of mu_g)
    var = mean((x - mu)^2)                   (the paper's equation of delta_g^2)
    y = (x - mu) / sqrt(var + eps) * weight[c] + bias[c]

Autograd, torch.func, forward-mode differentiation, compile and export all understand it. Every
faster path is tested against this one, and gives way to it where a tensor is not plain.

Two things may differ. With ``channel_means``, mu is the mean of each channel, and var is the
group's mean of (x - mu)^2. With a reference (:mod:`bgn.renorm`), corrections r and d, which are no
functions of x for a derivative, enter: y = (xhat * r + d) * weight[c] + bias[c].
"""

from __future__ import annotations

import torch
from torch import Tensor

from bgn.checks import sizes
from bgn.moments import Moments
from bgn.moments import moments as moments_over
from bgn.partition import Partition
from bgn.renorm import Reference, corrections
from bgn.running import Running, update


def wide_dtype(x: Tensor) -> torch.dtype:
    """The dtype that statistics are computed in: x's own, float32 at least."""
    return torch.float64 if x.dtype is torch.float64 else torch.float32


def per_channel(vector: Tensor, like: Tensor) -> Tensor:
    """A (C,) parameter laid out for broadcasting: (C, 1, ...)."""
    return vector.reshape(-1, *[1] * (like.dim() - 2))


def per_unit(stat: Tensor, part: Partition) -> Tensor:
    """A (G,) statistic for each unit: (C,) for groups of whole channels."""
    if part.units % part.G == 0:
        if part.G == 1:
            return stat.expand(part.units)
        return stat if part.units == part.G else stat.repeat_interleave(part.units // part.G)
    return stat[part.group_of_unit(stat.device)]


def _blocks_of_units(x: Tensor, part: Partition) -> Tensor:
    """(N, C, ...) -> (B, n, units, unit_size): blocks of samples, and what groups are made of.

    Sizes are read off x, so that a traced graph serves other sizes; and only by reshape, because
    the vmap of torch.autograd has no other operation for it.
    """
    if part.whole_channels:
        x = x.reshape(x.shape[0], x.shape[1], -1)  # (N, C, P)
    else:
        x = x.reshape(x.shape[0], -1, 1)  # (N, D, 1)
    if part.block_size == 1:
        return x.unsqueeze(1)
    return x.reshape(part.B, -1, x.shape[1], x.shape[2])


def moments(x: Tensor, part: Partition) -> Moments:
    """Count, mean and M2 of every statistic; mean and M2 are (B, G), in float32 or better."""
    if part.channel_means:
        return pool_channels(moments(x, part.per_channel), part)
    x = _blocks_of_units(x.to(wide_dtype(x)), part)
    G, U = part.G, part.units
    S = U // G  # units that every group has; where G does not divide U, some groups have one more
    if U % G == 0:
        # (B, n, G, S, P) -> (B, G)
        x = x.reshape(x.shape[0], x.shape[1], G, S, x.shape[3])
        return moments_over(x, dim=(1, 3, 4))

    starts = part.starts(x.device)
    body = starts[:-1, None] + torch.arange(S, device=x.device)  # (G, S)
    last = starts[1:] - 1  # (G,)
    has_last = starts.diff() - S  # (G,) 1 where the group has one more unit than S
    of_body = moments_over(x[:, :, body], dim=(1, 3, 4))  # (B, n, G, S, P) -> (B, G)
    of_last = moments_over(x[:, :, last], dim=(1, 3))  # (B, n, G, P) -> (B, G)
    return of_body.merge(Moments(of_last.count * has_last, of_last.mean, of_last.M2 * has_last))


def pool_channels(of_channels: Moments, part: Partition) -> Moments:
    """The moments of groups of whole channels from those of channels, (B, C) -> (B, G).

    With ``channel_means`` the means stay those of the channels.
    """
    count, mean, M2 = of_channels.count, of_channels.mean, of_channels.M2
    if count.dim() == 0:  # as many elements in every channel
        count = count.expand(part.C)
    width = sum_groups(torch.ones_like(count), part)
    pooled = sum_groups(count, part)
    if part.channel_means:
        return Moments(pooled, mean, sum_groups(M2, part), lost=width)
    group = part.group_of_unit(mean.device)
    center = sum_groups(count * mean, part) / pooled
    between = count * (mean - center[:, group]).square()
    return Moments(pooled, center, sum_groups(M2 + between, part))


def sum_groups(per_channel: Tensor, part: Partition) -> Tensor:
    """Sums over the channels of each group: (..., C) -> (..., G)."""
    group = part.group_of_unit(per_channel.device)
    zeros = per_channel.new_zeros(*per_channel.shape[:-1], part.G)
    return zeros.index_add(-1, group, per_channel)


def count(part: Partition, like: Tensor) -> Tensor:
    """The number of elements of each of the G statistics of a block."""
    return (part.starts(like.device).diff() * part.unit_size * part.block_size).to(like.dtype)


def spread(stat: Tensor, part: Partition, like: Tensor) -> Tensor:
    """A (B, G) statistic laid out for broadcasting against ``like``, an (N, C, ...) tensor.

    (B, G) -> (B, units) -> (1 or N, C, 1, ...) for groups of whole channels, else (1 or N, C, ...).
    """
    G, U = part.G, part.units
    longest = -(-U // G)
    per_unit = stat[:, :, None].expand(-1, -1, longest)
    per_unit = per_unit.reshape(stat.shape[0], -1)  # (B, G) -> (B, G * longest)
    if U % G:  # drop the last place of the groups that are one unit shorter
        group = part.group_of_unit(stat.device)
        unit = torch.arange(U, device=stat.device)
        per_unit = per_unit[:, group * longest + unit - part.starts(stat.device)[group]]
    if part.B > 1 and part.block_size > 1:
        per_unit = per_unit.repeat_interleave(part.block_size, dim=0)  # (B, units) -> (N, units)
    positions = [1] * (like.dim() - 2) if part.whole_channels else like.shape[2:]
    return per_unit.reshape(-1, part.C, *positions)


def _spread_any(stat: Tensor, part: Partition, like: Tensor) -> Tensor:
    """As ``spread``, for a (B, C) statistic too."""
    return spread(stat, part if sizes(stat)[-1] == part.G else part.per_channel, like)


def write(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    correct: Tensor | None = None,
) -> Tensor:
    """y = (x - mean) * rstd * weight + bias, with (B, G) statistics.

    ``correct`` has r and d, (2, B, G) or, where groups are whole channels, (2, B, C).
    """
    scale = spread(rstd, part, x)
    if correct is not None:
        scale = scale * _spread_any(correct[0], part, x)
    if weight is not None:
        scale = scale * per_channel(weight, x)
    # elementwise in x's own shape and layout: channels_last in is channels_last out
    y = (x - _spread_any(mean, part, x)) * scale
    if correct is not None:
        shift = _spread_any(correct[1], part, x)
        y = y + (shift if weight is None else shift * per_channel(weight, x))
    if bias is not None:
        y = y + per_channel(bias, x)
    return y.to(x.dtype)


def normalize(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
    reference: Reference | None = None,
) -> Tensor:
    """Normalize with the statistics of x itself, and move the running ones towards them."""
    stats = moments(x, part)
    correct = None if reference is None else corrections(reference, stats, part, eps)
    if running is not None:
        update(running, stats)
    return write(x, part, stats.mean, torch.rsqrt(stats.var + eps), weight, bias, correct)


def normalize_with(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalize with given statistics (G,), those of eval mode."""
    wide = wide_dtype(x)
    mean, var = mean.to(wide)[None], var.to(wide)[None]  # (G,) -> (1, G)
    return write(x, part, mean, torch.rsqrt(var + eps), weight, bias)


def products(
    gy: Tensor, x: Tensor, part: Partition, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums for the gradient: (2, B, G) of g and g * xhat; (C,) of gy * xhat and of gy.

    g = gy * weight[c], xhat = (x - mean) * rstd.
    """
    gy = gy.to(mean.dtype)
    g_xhat = gy * (x.to(mean.dtype) - spread(mean, part, x)) * spread(rstd, part, x)
    sums = [gy, g_xhat]
    if weight is not None:
        sums = [t * per_channel(weight.to(mean.dtype), x) for t in sums]
    per_unit = torch.stack([_blocks_of_units(t, part).sum((1, 3)) for t in sums])  # (2, B, units)
    group = part.group_of_unit(x.device)
    empty = per_unit.new_zeros(2, part.B, part.G)
    others = [i for i in range(x.dim()) if i != 1]
    return empty.index_add(2, group, per_unit), g_xhat.sum(others), gy.sum(others)


def write_gradient(
    gy: Tensor,
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    means: Tensor | None,
) -> Tensor:
    """gx = rstd * (g - mean_group(g) - xhat * mean_group(g * xhat)), with g = gy * weight[c].

    ``means`` are the two group means, (2, B, G); None where the statistics do not depend on x.
    """
    r = spread(rstd, part, x)
    g = gy.to(mean.dtype)
    if weight is not None:
        g = g * per_channel(weight.to(mean.dtype), x)
    if means is not None:
        xhat = (x.to(mean.dtype) - spread(mean, part, x)) * r
        g = g - spread(means[0], part, x) - xhat * spread(means[1], part, x)
    return (g * r).to(x.dtype)


Gradients = tuple[Tensor, Tensor, Tensor]


def gradients(
    gy: Tensor,
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    eps: float,
    correct: Tensor | None = None,
) -> Gradients:
    """The gradients of x, weight and bias by :func:`normalize`, as differentiable functions.

    With corrections, y = xhat * (r * weight) + (d * weight + bias): r scales the gradient, and d
    adds to that of the weight.
    """
    stats = moments(x, part)
    mean, rstd = stats.mean, torch.rsqrt(stats.var + eps)
    g = gy
    if correct is not None:
        g = gy.to(mean.dtype) * _spread_any(correct[0], part, x)
    means_of = part
    if part.channel_means:
        rstd, means_of = rstd[:, part.group_of_unit(x.device)], part.per_channel  # (B, G) -> (B, C)
    sums, gw, gb = products(g, x, means_of, weight, mean, rstd)
    means = sums / count(means_of, mean)
    if part.channel_means:
        of_groups = sum_groups(sums[1], part) / count(part, mean)
        means = torch.stack([means[0], of_groups[:, part.group_of_unit(x.device)]])
    gx = write_gradient(g, x, means_of, weight, mean, rstd, means).to(x.dtype)
    if correct is not None:
        others = [i for i in range(x.dim()) if i != 1]
        gw = gw + (gy.to(mean.dtype) * _spread_any(correct[1], part, x)).sum(others)
        gb = gy.to(mean.dtype).sum(others)
    return gx, gw, gb


def gradients_with(
    gy: Tensor,
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    eps: float,
) -> Gradients:
    """The gradients of x, weight and bias by :func:`normalize_with`."""
    wide = wide_dtype(x)
    mean, rstd = mean.to(wide)[None], torch.rsqrt(var.to(wide)[None] + eps)
    _, gw, gb = products(gy, x, part, weight, mean, rstd)
    return write_gradient(gy, x, part, weight, mean, rstd, None), gw, gb


def positional(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """PN: one mean and one biased variance per sample and position, across the C channels."""
    y, _ = _positional_xhat(x, eps)
    if weight is not None:
        y = y * per_channel(weight, x)
    if bias is not None:
        y = y + per_channel(bias, x)
    return y.to(x.dtype)


def positional_gradients(gy: Tensor, x: Tensor, weight: Tensor | None, eps: float) -> Gradients:
    """The gradients of x, weight and bias by :func:`positional`."""
    xhat, rstd = _positional_xhat(x, eps)
    gy = gy.to(xhat.dtype)
    g = gy if weight is None else gy * per_channel(weight.to(xhat.dtype), x)
    gx = rstd * (g - g.mean(1, keepdim=True) - xhat * (g * xhat).mean(1, keepdim=True))
    others = [i for i in range(x.dim()) if i != 1]
    return gx.to(x.dtype), (gy * xhat).sum(others), gy.sum(others)


def _positional_xhat(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = x.to(wide_dtype(x))
    var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)  # (N, 1, H, W)
    rstd = torch.rsqrt(var + eps)
    return (x - mean) * rstd, rstd

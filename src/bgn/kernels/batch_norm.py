"""The sweeps on torch's batch_norm kernels, for feature maps that :mod:`bgn.kernels.pieces` viewed.

Here x and gy are what ``pieces.view`` made of them, and vectors without a shape in their comment
have an entry per piece. What each operator reads and writes of x's size:

    moments           var_mean or batch_norm_update_stats       reads x
    write             native_batch_norm, eval mode              reads x, writes y
    products          native_batch_norm_backward, eval mode     reads gy and x
    write_gradient    native_batch_norm, then addcmul_          reads x and gy, writes gx, twice

In bfloat16 and float16 the last sweep is two addcmul, with a float32 tensor in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from bgn.kernels.pieces import Pieces
from bgn.running import Running

WIDE = {
    dtype: torch.promote_types(dtype, torch.float32)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
}
_backward: Any = torch.ops.aten.native_batch_norm_backward


def mean_var(x: Tensor, pieces: Pieces, correction: int = 0) -> tuple[Tensor, Tensor]:
    """Mean and variance of every statistic, (B, G), in float32 at least."""
    part, wide, device = pieces.part, WIDE[x.dtype], x.device.type
    dense = pieces.layout is torch.contiguous_format
    # var_mean rounds its results to x's dtype, and on the CPU it is not vectorized
    is_slow = device == "cpu" and pieces.equal and dense
    if (x.dtype is not wide and device in ("cpu", "cuda", "xpu")) or is_slow:
        unused = torch.empty(2, x.shape[1], dtype=wide, device=x.device)
        mean, var = torch.batch_norm_update_stats(x, unused[0], unused[1], 0.0)
    elif x.dtype is wide and pieces.equal:
        if dense:
            groups = x.view(part.B, part.block_size, part.G, -1)
        else:
            groups = x.view(1, part.N, part.G, -1, *x.shape[2:])  # in this layout too
        dims = [1, *range(3, groups.dim())]
        var, mean = torch.var_mean(groups, dims, correction=correction)
        return mean, var
    else:
        var, mean = torch.var_mean(x.to(wide), [0, *range(2, x.dim())], correction=0)
    mean, var = pieces.merge(mean, var)
    return mean, var * bessel(pieces, var) if correction else var


def bessel(pieces: Pieces, like: Tensor) -> Any:
    """count / (count - 1), which makes a biased variance unbiased."""
    count = pieces.count(like)
    return count / (count - 1)


def write(
    x: Tensor, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """y = (x - mean) / sqrt(var + eps) * weight + bias."""
    y: Tensor = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
    return y


class Coefficients(NamedTuple):
    """What the gradient is made with."""

    mean: Tensor
    var: Tensor
    """The biased variance plus eps."""
    rstd: Tensor
    scale: Tensor
    """rstd * weight[c]."""


def coefficients(pieces: Pieces, weight: Tensor | None, mean: Tensor, var: Tensor) -> Coefficients:
    """The coefficients of every piece, from (B, G) statistics; ``var`` has eps in it."""
    mean, var = pieces.spread_groups(mean, var)
    scale = rstd = torch.rsqrt(var)
    if weight is not None:
        scale = pieces.per_channel(rstd) * weight.to(rstd.dtype).view(-1, 1)
    return Coefficients(mean, var, rstd, scale.view(-1))


def products(gy: Tensor, x: Tensor, of: Coefficients) -> tuple[Tensor, Tensor]:
    """Sums of gy and of gy * xhat."""
    # Which pair of statistics is read depends on the device. The weight must be there, but does not
    # change the sums. mps sums nothing unless it writes as well.
    mask = [x.device.type == "mps", True, True]
    args = of.mean, of.mean, of.var, of.mean, of.rstd, False, 0.0, mask
    _, of_product, of_gy = _backward(gy, x, *args)
    return of_gy, of_product


def write_gradient(gy: Tensor, x: Tensor, of: Coefficients, shift: Tensor, slope: Tensor) -> Tensor:
    """gx = gy * scale + xhat * slope + shift."""
    scale = of.scale.view(-1, *[1] * (x.dim() - 2))
    if x.dtype is WIDE[x.dtype]:
        return write(x, of.mean, of.var, slope, shift, 0.0).addcmul_(gy, scale)
    # rounded once: where the terms cancel, rounding one of them leaves nothing but error
    slope = slope * of.rstd
    shift = torch.addcmul(shift, slope, of.mean, value=-1)
    slope, shift = (t.view(scale.shape) for t in (slope, shift))
    wide = torch.addcmul(shift, x, slope)
    return torch.addcmul(wide, gy, scale, out=torch.empty_like(x))


def train(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output with the statistics of every piece itself, which are returned as mean and rstd."""
    wide = WIDE[x.dtype]
    if weight is None and x.dtype is not wide:  # else the statistics would be of x's dtype
        weight = torch.ones(x.shape[1], dtype=wide, device=x.device)
    args: Any = (weight, bias, None, None, True, 0.0, eps)
    if running is not None:
        args = weight, bias, running.mean, running.var, True, running.momentum, eps
    return torch.native_batch_norm(x, *args)


def gradients(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    var: Tensor | None,
    rstd: Tensor,
    needs: tuple[bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, weight and bias: of the first, of the other two, or of all.

    Statistics are those of the pieces themselves if ``var`` is None. Otherwise they are constants,
    and ``var`` has eps in it.
    """
    if weight is None:  # devices take the dtype of the gradients from it
        weight = torch.ones_like(rstd)
    constants = (None, None) if var is None else (mean, var)
    mask = [needs[0], needs[1], needs[1]]
    found: tuple[Tensor, Tensor, Tensor] = _backward(
        gy, x, weight, *constants, mean, rstd, var is None, 0.0, mask
    )
    return found

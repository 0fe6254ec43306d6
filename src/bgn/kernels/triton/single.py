"""The four sweeps on their own, for whoever changes the numbers between them."""

from __future__ import annotations

import torch
from torch import Tensor

from bgn.kernels import definition
from bgn.kernels.plans import Plan
from bgn.kernels.triton.installed import kernels
from bgn.moments import Moments


def moments(x: Tensor, plan: Plan) -> Moments:
    """See :func:`bgn.kernels.definition.moments`."""
    calls = kernels()
    x = x.contiguous(memory_format=plan.layout)
    var = torch.empty(plan.part.B, plan.part.G, dtype=torch.float32, device=x.device)
    stats = calls.statistics(x, plan, 1e-5, var=var)
    count = definition.count(plan.part, var)
    return Moments(count, stats.mean, var * count)


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.write`; with a residual added, and a ReLU, if asked for."""
    calls = kernels()
    x = x.contiguous(memory_format=plan.layout)
    if residual is not None:
        residual = residual.contiguous(memory_format=plan.layout)
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    y: Tensor = calls.write(x, plan, stats, weight, bias, 0.0, relu, residual)
    return y


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`bgn.kernels.definition.products`."""
    calls = kernels()
    gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    needs = True, True, True
    found: tuple[Tensor, Tensor, Tensor] = calls.products(
        gy, x, plan, weight, stats, 0.0, needs, torch.float32, divide=False
    )
    return found


def write_gradient(
    gy: Tensor,
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    means: Tensor | None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.write_gradient`."""
    calls = kernels()
    gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    means = None if means is None else means.float().contiguous()
    gx: Tensor = calls.write_gradient(gy, x, plan, weight, stats, means)
    return gx

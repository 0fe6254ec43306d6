"""The four sweeps on their own, for whoever changes the statistics between them.

    moments(x)                              count, mean and M2 of every statistic
    write(x, mean, rstd)                    the output
    products(gy, x, mean, rstd)             the sums that the gradient needs
    write_gradient(gy, x, means)            the gradient

The fastest backend that may read the tensors runs them. A single sweep has no derivative; where
autograd records, the definition runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn import checks
from bgn.activation import After
from bgn.kernels import aten, backends, cpu, definition, triton
from bgn.kernels.eligible import refuse_freed
from bgn.kernels.plans import Plan, channel_plan
from bgn.moments import Moments
from bgn.running import Running, update

Kernel = Any  # a module with the four sweeps


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C core runs a call with these tensors: then they need no other check."""
    return backends.active.core and cpu.is_eligible(x, plan, weight, bias)


def kernel_for(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> Kernel:
    """Who runs a sweep of x: the C core, triton, aten, or None for the definition."""
    if is_eligible(x, plan, weight, bias):
        return cpu
    if x.device.type in backends.active.triton and triton.is_eligible(x, plan, weight, bias):
        return triton
    if x.device.type in backends.active.aten and aten.is_eligible(x, plan, weight, bias):
        return aten
    return None


def moments(x: Tensor, plan: Plan) -> Moments:
    """Count, mean and M2 of every statistic, (B, G) each; or a mean per channel, (B, C)."""
    if plan.part.channel_means:
        return definition.pool_channels(moments(x, channel_plan(x, plan)), plan.part)
    kernel = None if _is_recorded(x) else kernel_for(x, plan, None, None)
    return definition.moments(x, plan.part) if kernel is None else kernel.moments(x, plan)


def track(x: Tensor, plan: Plan, running: Running) -> None:
    """Move running statistics towards those of x, and write nothing else."""
    if is_eligible(x, plan, None, None) and cpu.track(x, plan, running):
        return
    checks.statistics(x, plan.part, running.mean, running.var, moving=True)
    refuse_freed(running_mean=running.mean, running_var=running.var)
    update(running, moments(x, plan))


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    after: After | None = None,
) -> Tensor:
    """y = (x - mean) * rstd * weight + bias, with (B, G) statistics, and what follows.

    That is in the same sweep on GPUs.
    """
    residual = None if after is None else after.residual
    recorded = _is_recorded(x, weight, bias, residual)
    kernel = None if recorded else kernel_for(x, plan, weight, bias)
    y: Tensor
    if kernel is None or not _are_readable(mean, rstd, x, plan, kernel):
        y = definition.write(x, plan.part, mean, rstd, weight, bias)
    elif kernel is triton and triton.is_readable_as(residual, x, plan):
        return triton.write(x, plan, mean, rstd, weight, bias, after)
    else:
        y = kernel.write(x, plan, mean, rstd, weight, bias)
    return y if after is None else after(y)


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums for the gradient: (2, B, G) of g and g * xhat; (C,) of gy * xhat and of gy."""
    kernel = _gradient_kernel(gy, x, plan, weight, mean, rstd)
    if kernel is None:
        return definition.products(gy, x, plan.part, weight, mean, rstd)
    found: tuple[Tensor, Tensor, Tensor] = kernel.products(gy, x, plan, weight, mean, rstd)
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
    """gx = rstd * (g - means[0] - xhat * means[1]), with g = gy * weight[c]."""
    kernel = _gradient_kernel(gy, x, plan, weight, mean, rstd)
    if kernel is None:
        return definition.write_gradient(gy, x, plan.part, weight, mean, rstd, means)
    gx: Tensor = kernel.write_gradient(gy, x, plan, weight, mean, rstd, means)
    return gx


def _gradient_kernel(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> Kernel:
    """Who runs a sweep of gy and x, as ``_kernel``."""
    if gy.dtype is not x.dtype or gy.shape != x.shape or gy.device != x.device:
        return None
    if _is_recorded(gy, x, weight, mean, rstd):
        return None
    kernel = kernel_for(x, plan, weight, None)
    if kernel is None or kernel is not kernel_for(gy, plan, weight, None):
        return None
    return kernel if _are_readable(mean, rstd, x, plan, kernel) else None


def _are_readable(mean: Tensor, rstd: Tensor, x: Tensor, plan: Plan, kernel: Kernel) -> bool:
    """Whether a kernel's sweeps may read (B, G) statistics."""
    wide = definition.wide_dtype(x)
    return mean.dtype is rstd.dtype is wide and bool(
        kernel.are_readable((mean.flatten(), rstd.flatten()), x, plan)
    )


def _is_recorded(*tensors: Tensor | None) -> bool:
    """Whether autograd records what is done to these tensors: a single sweep has no derivative."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)

"""The four sweeps on their own, for whoever changes the numbers between them.

Where triton turns out not to work, the definition computes, and later calls do not come here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from bgn.activation import After
from bgn.kernels import definition
from bgn.kernels.plans import Plan
from bgn.kernels.triton.installed import failed, is_of_triton, kernels
from bgn.moments import Moments
from bgn.partition import Partition

P = ParamSpec("P")
R = TypeVar("R")


def _or_by(meaning: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function of the definition compute where triton fails; it takes a partition."""

    def decorate(sweep: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(sweep)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return sweep(*args, **kwargs)
            except Exception as error:
                if not is_of_triton(error):
                    raise
                failed(error)
            found: R = meaning(
                *(arg.part if isinstance(arg, Plan) else arg for arg in args), **kwargs
            )
            return found

        return call

    return decorate


def _write(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    after: After | None = None,
) -> Tensor:
    z = definition.write(x, part, mean, rstd, weight, bias)
    return z if after is None else after(z)


@_or_by(definition.moments)
def moments(x: Tensor, plan: Plan) -> Moments:
    """See :func:`bgn.kernels.definition.moments`."""
    calls = kernels()
    x = x.contiguous(memory_format=plan.layout)
    var = torch.empty(plan.part.B, plan.part.G, dtype=torch.float32, device=x.device)
    stats = calls.statistics(x, plan, 1e-5, var=var)
    count = definition.count(plan.part, var)
    return Moments(count, stats.mean, var * count)


@_or_by(_write)
def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    after: After | None = None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.write`; and what follows."""
    calls = kernels()
    x = x.contiguous(memory_format=plan.layout)
    if after is not None and after.residual is not None:
        after = After(after.act, after.residual.contiguous(memory_format=plan.layout))
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    y: Tensor = calls.write(x, plan, stats, weight, bias, 0.0, after)
    return y


@_or_by(definition.products)
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


@_or_by(definition.write_gradient)
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

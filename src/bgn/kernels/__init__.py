"""What computes: four sweeps over a feature map, and the choice of who runs them.

    moments(x)                              count, mean and M2 of every statistic
    write(x, mean, rstd)                    the output
    products(gy, x, mean, rstd)             the sums that the gradient needs
    write_gradient(gy, x, means)            the gradient

Between them there are only a few numbers per group. ``normalize`` and ``normalize_with`` are sweeps
in one call, with their derivatives. :mod:`~bgn.kernels.definition` says what each of them means, on
any device and under any transform. For tensors that :mod:`~bgn.kernels.eligible` knows to be plain
there are three faster ones: :mod:`~bgn.kernels.cpu` is the C core, :mod:`~bgn.kernels.triton` the
GPU core, and :mod:`~bgn.kernels.aten` runs on torch's own fused kernels where neither does.
:mod:`~bgn.kernels.graph` is what torch.compile sees of the C core, and
:mod:`~bgn.kernels.recorded` what exported graphs see of eval mode. :mod:`~bgn.kernels.between` runs
the sweeps one by one, for what changes the numbers between them. Which backend runs is asked of
:mod:`~bgn.kernels.backends`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn import checks
from bgn.activation import After
from bgn.checks import sizes
from bgn.kernels import (
    activated,
    aten,
    backends,
    between,
    cpu,
    definition,
    graph,
    recorded,
    triton,
)
from bgn.kernels.backends import BACKENDS, choice, choose, devices, use
from bgn.kernels.eligible import refuse_freed
from bgn.kernels.plans import Plan, channel_plan, plan, positions
from bgn.kernels.sweeps import is_eligible, moments, products, track, write, write_gradient
from bgn.partition import Partition
from bgn.renorm import Reference
from bgn.running import Running

__all__ = [
    "BACKENDS",
    "Plan",
    "choice",
    "choose",
    "devices",
    "is_eligible",
    "moments",
    "normalize",
    "normalize_with",
    "plan",
    "positional",
    "positions",
    "products",
    "sizes",
    "track",
    "use",
    "write",
    "write_gradient",
]


def normalize(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
    reference: Reference | None = None,
    after: After | None = None,
) -> Tensor:
    """Normalize with the statistics of x itself, and move the running ones towards them.

    With a reference, the output is corrected towards it (batch renormalization). ``after`` follows:
    in the same sweeps on the C core, the GPU core and in the compiled operator, as torch's
    operators elsewhere.
    """
    if after is not None:
        y = _with_activation(x, plan, weight, bias, eps, running, None, reference, after)
        if y is not None:
            return y
        part = plan.part
        if torch.compiler.is_compiling() and graph.fuses(x, after):
            _check(x, part, weight, bias, running, reference)
            if graph.is_eligible(x, part, weight, bias, running, reference):
                return graph.normalize(x, part, weight, bias, eps, running, reference, after)
        return after(normalize(x, plan, weight, bias, eps, running, reference))
    if backends.active.core:
        y = cpu.run(x, plan, weight, bias, eps, running, None, reference)
        if y is not None:
            return y
    if backends.is_for_triton(x, plan):
        y = triton.run(x, plan, weight, bias, eps, running, None, reference)
        if y is not None:
            return y
    part = plan.part
    plain = reference is None and not part.channel_means
    per_sample = part.B == part.N and part.C % part.G == 0 and running is None and plain
    # torch has a fused kernel for this one. Its backward pass fails for a bias without a weight,
    # and ends the process where a channels_last input needs no gradient.
    is_group_norm = (
        per_sample
        and plan.smallest_count > 1
        and (bias is None or weight is not None)
        and x.is_contiguous()
    )
    if x.device.type in backends.active.aten and not is_group_norm and plain:
        y = aten.run(x, plan, weight, bias, eps, running, None)
        if y is not None:
            return y
    _check(x, part, weight, bias, running, reference)
    if torch.compiler.is_compiling():
        if graph.is_eligible(x, part, weight, bias, running, reference):
            return graph.normalize(x, part, weight, bias, eps, running, reference)
    elif x.is_mkldnn:  # a question that would leave a node in a compiled graph
        dense = normalize(x.to_dense(), plan, weight, bias, eps, running, reference)
        return dense.to_mkldnn()
    elif not plain and between.is_eligible(x, plan, weight, bias, reference):
        return between.normalize(x, plan, weight, bias, eps, running, reference)
    if is_group_norm:
        # not by torch.nn.functional, whose check torch.jit.trace warns of
        y = torch.group_norm(x, part.G, weight, bias, eps, torch.backends.cudnn.enabled)
        return y.to(x.dtype)  # on some devices autocast makes it float32
    return definition.normalize(x, part, weight, bias, eps, running, reference)


def _check(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running | None,
    reference: Reference | None,
) -> None:
    checks.affine(x, part.C, weight, bias)
    refuse_freed(input=x, weight=weight, bias=bias)
    for stats in (running, reference):
        if stats is not None:
            checks.statistics(x, part, stats.mean, stats.var, moving=True)
            refuse_freed(running_mean=stats.mean, running_var=stats.var)


def normalize_with(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    after: After | None = None,
) -> Tensor:
    """Normalize with given statistics, those of eval mode: (G,), or a mean per channel."""
    if after is not None:
        given = mean, var
        y = _with_activation(x, plan, weight, bias, eps, None, given, None, after)
        return after(normalize_with(x, plan, *given, weight, bias, eps)) if y is None else y
    if plan.part.channel_means:
        checks.statistics(x, plan.part, mean, var)
        var = definition.per_unit(var, plan.part)  # (G,) -> (C,)
        plan = channel_plan(x, plan)
    if backends.active.core:
        y = cpu.run(x, plan, weight, bias, eps, None, (mean, var))
        if y is not None:
            return y
    if x.device.type in backends.active.triton:
        y = triton.run(x, plan, weight, bias, eps, None, (mean, var))
        if y is not None:
            return y
    if x.device.type in backends.active.aten:
        y = aten.run(x, plan, weight, bias, eps, None, (mean, var))
        if y is not None:
            return y
    checks.affine(x, plan.part.C, weight, bias)
    checks.statistics(x, plan.part, mean, var)
    refuse_freed(input=x, weight=weight, bias=bias, running_mean=mean, running_var=var)
    if not torch.compiler.is_compiling() and x.is_mkldnn:
        dense = normalize_with(x.to_dense(), plan, mean, var, weight, bias, eps)
        return dense.to_mkldnn()
    known = plan.part.whole_channels and recorded.is_recording()
    run = recorded.normalize_with if known else definition.normalize_with
    return run(x, plan.part, mean, var, weight, bias, eps)


def _with_activation(x: Tensor, plan: Plan, *arguments: Any) -> Tensor | None:
    """The output of the C core or the GPU core; None, and nothing is changed, where neither is at
    work."""
    act, residual = arguments[-1]
    y = None
    if act.keeps_sign and backends.active.core and plan.kept:
        y = activated.run(x, plan, *arguments)
    if y is None and act.keeps_sign and x.device.type in backends.active.triton:
        y = triton.run(x, plan, *arguments)
    if y is None and residual is not None:
        refuse_freed(residual=residual)
        checks.residual(residual, x)
    return y


def positional(
    x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalize every position of every sample across its channels (PN)."""
    if backends.active.core:
        y = cpu.run(x, plan, weight, bias, eps, None, None)
        if y is not None:
            return y
    if backends.is_for_triton(x, plan):
        y = triton.run(x, plan, weight, bias, eps, None, None)
        if y is not None:
            return y
    if x.device.type in backends.active.aten:
        y = aten.positional(x, plan, weight, bias, eps)
        if y is not None:
            return y
    checks.affine(x, plan.part.C, weight, bias)
    refuse_freed(input=x, weight=weight, bias=bias)
    return definition.positional(x, weight, bias, eps)

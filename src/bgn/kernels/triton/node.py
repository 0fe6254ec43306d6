"""What autograd sees of the GPU core: a node per call; its backward pass checks tensors again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn import checks
from bgn.kernels import definition, fallback
from bgn.kernels.eligible import no_transform, refuse_freed
from bgn.kernels.fallback import Gradients
from bgn.kernels.plans import Plan
from bgn.kernels.triton.eligible import (
    Given,
    are_readable,
    are_writable,
    fits_positional,
    is_comparable,
    is_eligible,
    is_readable,
    is_readable_as,
)
from bgn.kernels.triton.installed import failed, is_of_triton, kernels
from bgn.kernels.triton.single import finish
from bgn.moments import Moments
from bgn.renorm import Reference
from bgn.running import Running, update


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
    reference: Reference | None = None,
    relu: bool = False,
    residual: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """The output, and the statistics that the backward pass wants.

    A residual is added, and a ReLU applied, where they are asked for, by the kernel that writes.
    """
    calls = kernels()
    moved = running
    if running is not None and not are_writable(running, x, plan):
        checks.statistics(x, plan.part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
        moved = None  # by torch's operators, below
    fused = calls.launch_of(plan, x.device).fused is not None
    several = plan.part.B > 1 and moved is not None  # blocks, whose average is wanted
    if fused and not several and (reference is None or reference.entries == plan.part.G):
        y, stats = calls.forward_fused(x, plan, weight, bias, eps, moved, reference, relu, residual)
    else:
        stats = calls.statistics(x, plan, eps, moved, reference)
        try:
            y = calls.write(x, plan, stats, weight, bias, 0.0, relu, residual)
        except Exception as error:  # running statistics have moved: this batch must not again
            if not is_of_triton(error):
                raise
            failed(error)
            of = stats.mean, stats.rstd
            y = definition.write(x, plan.part, *of, weight, bias, stats.correct)
            y = finish(y, relu, residual)
    if moved is not None:  # autograd must know
        counter = moved.counter
        kept = (moved.mean, moved.var)
        increment_version(kept if counter is None else (*kept, counter))
    elif running is not None:
        update(running, _moments(stats, plan, eps))
    return y, stats


def _moments(stats: Any, plan: Plan, eps: float) -> Moments:
    count = definition.count(plan.part, stats.mean)
    return Moments(count, stats.mean, (stats.rstd.pow(-2) - eps) * count)


def apply(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, plan: Plan, eps: float, given: Given
) -> tuple[Tensor, Any]:
    """The output with given statistics, (G,) each."""
    calls = kernels()
    stats = calls.Statistics(*given, given=True)
    return calls.write(x, plan, stats, weight, bias, eps), stats


def backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    stats: Any,
    eps: float,
    needs: tuple[bool, ...],
    affine: torch.dtype,
) -> Gradients:
    """The gradients of x, weight and bias that are needed."""
    calls = kernels()
    found: Gradients
    if stats.given:
        gx = gw = gb = None
        if needs[1] or needs[2]:
            only = False, *needs[1:]
            _, gw, gb = calls.products(gy, x, plan, weight, stats, eps, only, affine)
        if needs[0]:
            gx = calls.write_gradient(gy, x, plan, weight, stats, None, eps)
        return gx, gw, gb
    per_group = stats.correct is None or stats.correct.shape[2] == plan.part.G
    if calls.launch_of(plan, x.device).fused is not None and per_group:
        found = calls.backward_fused(gy, x, weight, plan, stats, needs, affine)
        return found
    means, gw, gb = calls.products(gy, x, plan, weight, stats, 0.0, needs, affine)
    gx = None
    if needs[0]:
        gx = calls.write_gradient(gy, x, plan, weight, stats, means)
    return gx, gw, gb


class _Normalize(torch.autograd.Function):
    """With given statistics (eval mode), or with the batch's own, which may move running ones."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        plan: Plan,
        eps: float,
        running: Running | None,
        given: Given | None,
        reference: Reference | None,
    ) -> Tensor:
        y, stats = _forward(x, weight, bias, plan, eps, running, given, reference)
        ctx.save_for_backward(x, weight, *(given or ()))
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.eps, ctx.device = plan, eps, x.device.type
        ctx.stats = None if given is not None else stats
        parameter = bias if weight is None else weight
        ctx.affine = torch.float32 if parameter is None else parameter.dtype
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None) -> Any:
        if gy is None:
            return (None,) * 8
        x, weight, *given = ctx.saved_tensors
        return *_gradients(ctx, gy, x, weight, given), *[None] * 5


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
    given: Given | None,
    reference: Reference | None,
) -> tuple[Tensor, Any]:
    if plan.positional:
        return kernels().positional_forward(x, plan, weight, bias, eps), None
    if given is not None:
        return apply(x, weight, bias, plan, eps, given)
    return forward(x, weight, bias, plan, eps, running, reference)


def _gradients(
    ctx: Any, gy: Tensor, x: Tensor, weight: Tensor | None, given: list[Tensor]
) -> Gradients:
    """The gradients that are needed, by the definition if what autograd hands back is unusual."""
    plan, affine, needs = ctx.plan, ctx.affine, ctx.needs_input_grad[:3]
    fallback.check_saved(x, plan.dtype, plan.shape, ctx.device)
    part = None if plan.positional else plan.part
    correct = None if ctx.stats is None else ctx.stats.correct
    if (
        not torch.is_grad_enabled()
        and no_transform()
        and is_readable_as(gy, x, plan)
        and is_eligible(x, plan, weight, None)
        and (weight is None or weight.dtype is affine)
        and all(is_readable(t, plan.part.G, x) for t in given)
    ):
        calls = kernels()
        gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
        try:
            if plan.positional:
                found: Gradients = calls.positional_backward(
                    gy, x, weight, plan, ctx.eps, needs, affine
                )
                return found
            stats = calls.Statistics(*given, given=True) if given else ctx.stats
            return backward(gy, x, weight, plan, stats, ctx.eps, needs, affine)
        except Exception as error:  # nothing was changed yet
            if not is_of_triton(error):
                raise
            failed(error)
    return fallback.gradients(gy, x, part, given, correct, weight, ctx.eps, affine, needs)


# what Function.apply does beyond this is for torch.func, which never comes here
_normalize: Any = super(torch.autograd.Function, _Normalize).apply


def run(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: Given | None,
    reference: Reference | None = None,
) -> Tensor | None:
    """Normalize, with a node of autograd where a derivative may be asked for.

    None, and nothing is changed, where a tensor is not eligible or triton does not work.
    """
    if not is_eligible(x, plan, weight, bias):
        return None
    if given is not None and not are_readable(given, x, plan):
        return None
    if reference is not None and not is_comparable(reference, x, plan, running):
        return None
    if plan.positional and not fits_positional(x, plan):
        return None
    x = x.contiguous(memory_format=plan.layout)
    recorded = torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    )
    options = plan, eps, running, given, reference
    try:
        if recorded:
            return _normalize(x, weight, bias, *options)  # type: ignore[no-any-return]
        return _forward(x, weight, bias, *options)[0]
    except Exception as error:
        if not is_of_triton(error):
            raise
        failed(error)  # before running statistics moved
        return None

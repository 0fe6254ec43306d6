"""What autograd sees of the GPU core: a node per call; its backward pass checks tensors again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn import checks
from bgn.activation import Activation, After
from bgn.kernels import definition, fallback
from bgn.kernels.eligible import no_transform, refuse_freed
from bgn.kernels.fallback import AllGradients, Gradients
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
    after: After | None = None,
) -> tuple[Tensor, Any]:
    """The output, after what follows, and the statistics that the backward pass wants."""
    calls = kernels()
    moved = running
    if running is not None and not are_writable(running, x, plan):
        checks.statistics(x, plan.part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
        moved = None  # by torch's operators, below
    fused = calls.launch_of(plan, x.device).fused is not None
    several = plan.part.B > 1 and moved is not None  # blocks, whose average is wanted
    if fused and not several and (reference is None or reference.entries == plan.part.G):
        y, stats = calls.forward_fused(x, plan, weight, bias, eps, moved, reference, after)
    else:
        stats = calls.statistics(x, plan, eps, moved, reference)
        try:
            y = calls.write(x, plan, stats, weight, bias, 0.0, after)
        except Exception as error:  # running statistics have moved: this batch must not again
            if not is_of_triton(error):
                raise
            failed(error)
            of = stats.mean, stats.rstd
            y = definition.write(x, plan.part, *of, weight, bias, stats.correct)
            y = y if after is None else after(y)
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
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    given: Given,
    after: After | None = None,
) -> tuple[Tensor, Any]:
    """The output with given statistics, (G,) each."""
    calls = kernels()
    stats = calls.Statistics(*given, given=True)
    return calls.write(x, plan, stats, weight, bias, eps, after), stats


def backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    stats: Any,
    eps: float,
    needs: tuple[bool, ...],
    affine: torch.dtype,
    followed: Any = None,
) -> Gradients:
    """The gradients of x, weight and bias that are needed; that of a residual is written to
    ``followed.inner``."""
    calls = kernels()
    followed = followed or calls.NOTHING
    found: Gradients
    sums = needs[1] or needs[2]
    per_group = stats.correct is None or stats.correct.shape[2] == plan.part.G
    if not stats.given and per_group and calls.launch_of(plan, x.device).fused is not None:
        found = calls.backward_fused(gy, x, weight, plan, stats, needs, affine, followed)
        return found
    means = gx = gw = gb = None
    if sums or not stats.given:
        wanted = (needs[0] and not stats.given, *needs[1:])
        means, gw, gb = calls.products(
            gy, x, plan, weight, stats, eps if stats.given else 0.0, wanted, affine,
            followed=followed,
        )  # fmt: skip
        if followed.inner is not None:
            gy, followed = followed.inner, calls.NOTHING
    if needs[0]:
        gx = calls.write_gradient(
            gy, x, plan, weight, stats, means, eps if stats.given else 0.0, followed
        )
    return gx, gw, gb


class _Normalize(torch.autograd.Function):
    """With given statistics (eval mode), or with the batch's own, which may move running ones."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        plan: Plan,
        eps: float,
        running: Running | None,
        given: Given | None,
        reference: Reference | None,
        act: Activation | None,
    ) -> Tensor:
        after = None if act is None else After(act, residual)
        y, stats = _forward(x, weight, bias, plan, eps, running, given, reference, after)
        by_sign = residual is not None and not _is_sum(act)
        ctx.save_for_backward(
            x, weight, None if act is None else bias, y if by_sign else None, *(given or ())
        )
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.eps, ctx.device, ctx.act = plan, eps, x.device.type, act
        ctx.stats, ctx.has_residual = None if given is not None else stats, residual is not None
        parameter = bias if weight is None else weight
        ctx.affine = torch.float32 if parameter is None else parameter.dtype
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None) -> Any:
        if gy is None:
            return (None,) * 10
        x, weight, bias, y, *given = ctx.saved_tensors
        return *_gradients(ctx, gy, x, weight, bias, y, given), *[None] * 6


def _is_sum(act: Activation | None) -> bool:
    """Whether what follows has the derivative 1."""
    return act is None or act.name == "identity"


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
    given: Given | None,
    reference: Reference | None,
    after: After | None,
) -> tuple[Tensor, Any]:
    if plan.positional:
        return kernels().positional_forward(x, plan, weight, bias, eps), None
    if given is not None:
        return apply(x, weight, bias, plan, eps, given, after)
    return forward(x, weight, bias, plan, eps, running, reference, after)


def _gradients(
    ctx: Any,
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor | None,
    given: list[Tensor],
) -> AllGradients:
    """The gradients that are needed, by the definition if what autograd hands back is unusual."""
    plan, affine, needs = ctx.plan, ctx.affine, ctx.needs_input_grad[:4]
    for t in (x, y):
        if t is not None:
            fallback.check_saved(t, plan.dtype, plan.shape, ctx.device)
    correct = None if ctx.stats is None else ctx.stats.correct
    if (
        not torch.is_grad_enabled()
        and no_transform()
        and is_readable_as(gy, x, plan)
        and is_readable_as(y, x, plan)
        and is_eligible(x, plan, weight, bias)
        and (weight is None or weight.dtype is affine)
        and all(is_readable(t, plan.part.G, x) for t in given)
    ):
        calls = kernels()
        layout = plan.layout
        of_y, of_x = gy.contiguous(memory_format=layout), x.contiguous(memory_format=layout)
        try:
            if plan.positional:
                found: Gradients = calls.positional_backward(
                    of_y, of_x, weight, plan, ctx.eps, needs[:3], affine
                )
                return *found, None
            stats = calls.Statistics(*given, given=True) if given else ctx.stats
            return _by_kernels(ctx, of_y, of_x, weight, bias, y, stats)
        except Exception as error:  # nothing was changed yet
            if not is_of_triton(error):
                raise
            failed(error)
    if ctx.act is not None:
        return fallback.gradients_after(
            gy, x, plan.part, given, correct, weight, bias, y, ctx.act, ctx.eps, affine, needs
        )
    part = None if plan.positional else plan.part
    found = fallback.gradients(gy, x, part, given, correct, weight, ctx.eps, affine, needs[:3])
    return *found, None


def _by_kernels(
    ctx: Any,
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor | None,
    stats: Any,
) -> AllGradients:
    """The gradients of x, weight, bias and the residual."""
    calls, needs, inner = kernels(), ctx.needs_input_grad[:4], gy
    followed = calls.NOTHING
    if not _is_sum(ctx.act):
        if y is None:
            followed = calls.Followed(*calls.act_of(ctx.act), bias)
        elif any(needs[1:3]) or (needs[0] and not stats.given):
            inner = torch.empty_like(gy)
            y = y.contiguous(memory_format=ctx.plan.layout)
            followed = calls.Followed(*calls.act_of(ctx.act), None, y, inner)
        else:  # no sweep comes by
            inner = gy = ctx.act.gradient(gy, y)
    found: Gradients = None, None, None
    if any(needs[:3]):
        found = backward(gy, x, weight, ctx.plan, stats, ctx.eps, needs[:3], ctx.affine, followed)
    return *found, inner if needs[3] else None


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
    after: After | None = None,
) -> Tensor | None:
    """Normalize and what follows, with a node of autograd where a derivative may be asked for.

    None, and nothing is changed, where a tensor is not eligible or triton does not work.
    """
    act: Any = None if after is None else after.act
    residual = None if after is None else after.residual
    if not is_eligible(x, plan, weight, bias):
        return None
    if given is not None and not are_readable(given, x, plan):
        return None
    if reference is not None and not is_comparable(reference, x, plan, running):
        return None
    if plan.positional and not fits_positional(x, plan):
        return None
    if residual is not None:
        if not (act.is_piecewise and is_readable_as(residual, x, plan)):
            return None
        residual = residual.contiguous(memory_format=plan.layout)
    x = x.contiguous(memory_format=plan.layout)
    tensors = x, weight, bias, residual
    options = plan, eps, running, given, reference
    try:
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
            return _normalize(*tensors, *options, act)  # type: ignore[no-any-return]
        after = None if act is None else After(act, residual)
        return _forward(x, weight, bias, *options, after)[0]
    except Exception as error:
        if not is_of_triton(error):
            raise
        failed(error)  # before running statistics moved
        return None

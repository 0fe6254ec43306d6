"""The fast path on the CPU: plain C and OpenMP on the tensors' memory, called through ctypes.

Contiguous and channels_last; float32, float64, bfloat16 and float16, with parameters of that dtype
or of float32. Other strides are copied. The functions here ask no questions: whoever calls them has
asked ``is_eligible`` first, or gets wrong memory.
"""

from __future__ import annotations

from ctypes import addressof, memmove
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn import checks
from bgn.kernels import definition
from bgn.kernels.eligible import extent, is_plain, is_plain_vector, no_transform, refuse_freed
from bgn.kernels.library import TYPES, CorePlan, Library, load
from bgn.kernels.plans import Plan
from bgn.moments import Moments
from bgn.running import Running, update

library: Library
_found, why_not = load()
if _found is not None:
    library = _found

_STATISTICS = {dtype: torch.promote_types(dtype, torch.float32) for dtype in TYPES}
Given = tuple[Tensor, Tensor]  # mean and variance


def available() -> bool:
    """Whether the C library was found."""
    return _found is not None


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C code may read x, weight and bias."""
    size = plan.part.N * plan.part.D
    if not plan.kept or not (is_plain(x, size) or is_plain(x, extent(x))):
        return False
    dtype, C = x.dtype, plan.part.C
    statistics = _STATISTICS.get(dtype)
    if statistics is None:
        return False
    for parameter in (weight, bias):
        if parameter is not None and not (
            (parameter.dtype is statistics or parameter.dtype is dtype)
            and is_plain_vector(parameter, C)
        ):
            return False
    return weight is None or bias is None or weight.dtype is bias.dtype


def are_readable(given: Given, x: Tensor, plan: Plan) -> bool:
    """Whether the C code may read given statistics, of x's dtype or of its own."""
    dtypes, size = (_STATISTICS[x.dtype], x.dtype), plan.part.B * plan.part.G
    return all(
        t.dtype in dtypes and not t.requires_grad and is_plain_vector(t, size) for t in given
    )


def _are_writable(running: Running, core: CorePlan) -> bool:
    """Whether the C code may write to the running statistics."""
    mean, var, counter = running.mean, running.var, running.counter
    entries, part = mean.numel(), core.part
    return (
        (entries == part.G or (entries == part.C and part.whole_channels))
        and mean.dtype is var.dtype is core.statistics
        and not (mean.requires_grad or var.requires_grad or mean.is_inference())
        and is_plain_vector(mean, entries)
        and is_plain_vector(var, entries)
        and (counter is None or (counter.dtype is torch.int64 and is_plain(counter, 1)))
    )


def core_of(plan: Plan) -> CorePlan:
    core: CorePlan | None = plan.core
    if core is None:
        core = plan.core = CorePlan(library, plan)
    return core


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(code: int) -> None:
    if code:
        raise MemoryError("no memory for the sums of a normalizer")


def _is_low(parameter: Tensor | None, plan: CorePlan) -> bool:
    """Whether the parameters have a lower precision than the statistics."""
    return parameter is not None and parameter.dtype is not plan.statistics


_NOWHERE: Any = (None, None, 0, 0.0, None)


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    core: CorePlan,
    eps: float,
    running: Running | None,
) -> tuple[Tensor, Any]:
    """The output and, in memory of C, mean, variance and 1 / standard deviation."""
    to = _NOWHERE
    direct = running is not None and _are_writable(running, core)
    if running is not None and not direct:
        checks.statistics(x, core.part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
    y = torch.empty_like(x)
    stats = core.Statistics()
    if direct:
        assert running is not None
        mean, counter = running.mean, running.counter
        momentum = running.weight_of_next()
        to = mean.data_ptr(), running.var.data_ptr(), mean.numel(), momentum, _pointer(counter)
    low = _is_low(bias if weight is None else weight, core)
    _check(
        library.forward(
            core.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            low,
            eps,
            stats,
            *to,
            core.threads(),
        )
    )
    if running is not None:
        if direct:  # autograd must know
            buffers = running.mean, running.var, running.counter
            increment_version([t for t in buffers if t is not None])
        else:
            update(running, core.moments(stats))
    return y, stats


def apply(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    core: CorePlan,
    eps: float,
    given: Given,
) -> tuple[Tensor, Any]:
    """The output and, in memory of C, mean, nothing and 1 / standard deviation."""
    y = torch.empty_like(x)
    stats = core.Statistics()
    mean, var = (t.to(core.statistics) for t in given)
    memmove(stats, mean.data_ptr(), core.step)
    low = _is_low(bias if weight is None else weight, core)
    _check(
        library.apply(
            core.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            low,
            eps,
            mean.data_ptr(),
            var.data_ptr(),
            addressof(stats) + 2 * core.step,
            core.threads(),
        )
    )
    return y, stats


def backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    core: CorePlan,
    mean: int,
    rstd: int,
    needs: tuple[bool, bool, bool],
    affine: torch.dtype,
    frozen: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of x, weight and bias that are needed; ``affine`` is the dtype of the last two.

    ``mean`` and ``rstd`` are addresses.
    """
    gx = torch.empty_like(x) if needs[0] else None
    gw = torch.empty(core.part.C, dtype=affine) if needs[1] else None
    gb = torch.empty(core.part.C, dtype=affine) if needs[2] else None
    _check(
        library.backward(
            core.pointer,
            gy.data_ptr(),
            x.data_ptr(),
            _pointer(gx),
            _pointer(weight),
            affine is not core.statistics,
            mean,
            rstd,
            _pointer(gw),
            _pointer(gb),
            frozen,
            core.threads(),
        )
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
        plan: Plan,
        eps: float,
        running: Running | None,
        given: Given | None,
    ) -> Tensor:
        core = core_of(plan)
        if given is None:
            y, ctx.stats = forward(x, weight, bias, core, eps, running)
            ctx.save_for_backward(x, weight)
        else:
            y, ctx.stats = apply(x, weight, bias, core, eps, given)
            ctx.save_for_backward(x, weight, *given)
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.eps, ctx.frozen = plan, eps, given is not None
        parameter = bias if weight is None else weight
        ctx.affine = core.statistics if parameter is None else parameter.dtype
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None) -> Any:
        if gy is None:
            return (None,) * 7
        x, weight, *given = ctx.saved_tensors
        plan: Plan = ctx.plan
        core: CorePlan = plan.core
        part = core.part
        if x.dtype is not plan.dtype or x.shape != plan.shape or x.device.type != "cpu":
            raise RuntimeError(
                f"a saved-tensor hook returned a {x.dtype} tensor of shape {tuple(x.shape)} on"
                f" {x.device} for the input of a normalizer, which was a {plan.dtype} tensor of"
                f" shape {tuple(plan.shape)} on cpu"
            )
        # what autograd hands back may be anything again: hooks change what was saved, and
        # gradients may be batched, dual, negated or subclasses
        size, needs = part.N * part.D, ctx.needs_input_grad[:3]
        if (
            not torch.is_grad_enabled()
            and no_transform()
            and gy.dtype is x.dtype
            and is_plain(gy, min(size, extent(gy)))
            and is_plain(x, min(size, extent(x)))
            and (weight is None or weight.dtype is ctx.affine)
            and (weight is None or is_plain_vector(weight, part.C))
        ):
            x, gy = (t.contiguous(memory_format=plan.layout) for t in (x, gy))
            mean = addressof(ctx.stats)
            rstd = mean + 2 * core.step
            found = backward(gy, x, weight, core, mean, rstd, needs, ctx.affine, ctx.frozen)
            return *found, None, None, None, None
        refuse_freed(gradient=gy, input=x, weight=weight)
        found = _by_definition(gy, x, weight, given, ctx)
        return *(g if need else None for g, need in zip(found, needs, strict=True)), *[None] * 4


# what Function.apply does beyond this is for torch.func, which never comes here
_normalize: Any = super(torch.autograd.Function, _Normalize).apply


def _by_definition(
    gy: Tensor, x: Tensor, weight: Tensor | None, given: list[Tensor], ctx: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias by the definition, which can be differentiated again."""
    plan, eps = ctx.plan, ctx.eps
    with torch._C.DisableTorchFunctionSubclass():  # as backward passes in C++
        if plan.positional:
            gx, gw, gb = definition.positional_gradients(gy, x, weight, eps)
        elif ctx.frozen:
            mean, var = given
            gx, gw, gb = definition.gradients_with(gy, x, plan.part, mean, var, weight, eps)
        else:
            gx, gw, gb = definition.gradients(gy, x, plan.part, weight, eps)
    return gx, gw.to(ctx.affine), gb.to(ctx.affine)


def run(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: Given | None,
) -> Tensor:
    """Normalize eligible tensors, with a node of autograd where a derivative may be asked for."""
    x = x.contiguous(memory_format=plan.layout)
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        y: Tensor = _normalize(x, weight, bias, plan, eps, running, given)
        return y
    if given is None:
        return forward(x, weight, bias, core_of(plan), eps, running)[0]
    return apply(x, weight, bias, core_of(plan), eps, given)[0]


def moments(x: Tensor, plan: Plan) -> Moments:
    """See :func:`bgn.kernels.definition.moments`."""
    core = core_of(plan)
    x = x.contiguous(memory_format=plan.layout)
    stats = core.Statistics()
    mean = addressof(stats)
    _check(library.moments(core.pointer, x.data_ptr(), mean, mean + core.step, core.threads()))
    return core.moments(stats)


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.write`."""
    core = core_of(plan)
    x = x.contiguous(memory_format=plan.layout)
    y = torch.empty_like(x)
    low = _is_low(bias if weight is None else weight, core)
    _check(
        library.write(
            core.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            low,
            mean.data_ptr(),
            rstd.data_ptr(),
            core.threads(),
        )
    )
    return y


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`bgn.kernels.definition.products`."""
    core = core_of(plan)
    gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
    affine = core.statistics if weight is None else weight.dtype
    sums = torch.empty(2, core.part.B, core.part.G, dtype=torch.float64)
    gw, gb = torch.empty(2, core.part.C, dtype=affine)
    _check(
        library.products(
            core.pointer,
            gy.data_ptr(),
            x.data_ptr(),
            _pointer(weight),
            _is_low(weight, core),
            mean.data_ptr(),
            rstd.data_ptr(),
            sums.data_ptr(),
            gw.data_ptr(),
            gb.data_ptr(),
            core.threads(),
        )
    )
    return sums, gw, gb


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
    core = core_of(plan)
    gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
    gx = torch.empty_like(x)
    means = None if means is None else means.double().contiguous()
    _check(
        library.write_gradient(
            core.pointer,
            gy.data_ptr(),
            x.data_ptr(),
            gx.data_ptr(),
            _pointer(weight),
            _is_low(weight, core),
            mean.data_ptr(),
            rstd.data_ptr(),
            _pointer(means),
            core.threads(),
        )
    )
    return gx

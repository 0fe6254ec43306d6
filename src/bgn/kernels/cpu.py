"""The fast path on the CPU: plain C and OpenMP on the tensors' memory, called through ctypes.

Contiguous and channels_last, float32, float64, bfloat16 and float16 (with parameters of that type or of float32); other strides
are copied. Compiled graphs get an operator (:mod:`bgn.kernels.graph`) that runs the same code. Everything that has no memory to
look at (other devices, torch.func, forward-mode derivatives, exported graphs) goes to the definition backend, which this one is
tested against.
"""

from __future__ import annotations

from ctypes import addressof, memmove
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from bgn.kernels import definition
from bgn.kernels.library import (
    BY_ROWS,
    CHANNELS_LAST,
    POSITIONAL,
    SLICED,
    TYPES,
    Library,
    Plan,
    load,
)
from bgn.moments import Moments
from bgn.partition import Partition
from bgn.running import Running, update

library: Library
_found, why_not = load()
if _found is not None:
    library = _found

_PLANS = 1024  # how many shapes are remembered
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_plans: dict[Any, Plan] = {}
PLAIN = (Tensor, torch.nn.Parameter)  # types whose memory is what it seems
_STATISTICS = {dtype: torch.promote_types(dtype, torch.float32) for dtype in TYPES}


def available() -> bool:
    """Whether the library was found."""
    return _found is not None


def _literal(x: Tensor) -> bool:
    """Whether x's memory holds its values: not their negatives, as in some views, nor nothing at all, as in lazy zeros."""
    return not x.is_neg() and not x._is_zerotensor()


def _eager(x: Tensor) -> bool:
    """Whether x has memory that the C code may look at now."""
    return (
        not torch.compiler.is_compiling()  # first: compilers cannot trace the rest
        and type(x) in PLAIN
        and x.is_cpu
        and _literal(x)
        and peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and not _len_torch_dispatch_stack()
        and not _get_tracing_state()
    )


def _fits(parameter: Tensor | None, C: int, statistics: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether the C code can read a weight or a bias."""
    return parameter is None or (
        (parameter.dtype is statistics or parameter.dtype is dtype)
        and type(parameter) in PLAIN
        and parameter.numel() == C
        and parameter.is_cpu
        and _literal(parameter)
        and parameter.is_contiguous()
    )


def serves(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C code may look at the memory of these tensors."""
    dtype = x.dtype
    statistics = _STATISTICS.get(dtype)
    return (
        statistics is not None
        and _eager(x)
        and _fits(weight, x.shape[1], statistics, dtype)
        and _fits(bias, x.shape[1], statistics, dtype)
        and (weight is None or bias is None or weight.dtype is bias.dtype)
    )


def _in_graph(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether a graph that is compiled gets the operator of :mod:`bgn.kernels.graph`; an exported one needs nothing of bgn."""
    statistics = _STATISTICS.get(x.dtype)
    if (
        statistics is None
        or x.device.type != "cpu"
        or not hasattr(torch.compiler, "is_exporting")
        or torch.compiler.is_exporting()
    ):
        return False
    dtypes = {t.dtype for t in (weight, bias) if t is not None}
    return len(dtypes) < 2 and dtypes <= {x.dtype, statistics}


def _readable(x: Tensor) -> Tensor:
    """x in a memory format that the C code can walk through."""
    if x.is_contiguous() or (x.dim() in _LAST and x.is_contiguous(memory_format=_LAST[x.dim()])):
        return x
    return x.contiguous()


def _plan(x: Tensor, part: Partition | None) -> Plan:
    """The plan for x and a partition, or for PN where there is none."""
    contiguous = x.is_contiguous()
    key = (part or x.shape, x.dtype, contiguous)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _PLANS:
            _plans.clear()
        layout = torch.contiguous_format if contiguous else _LAST[x.dim()]
        positions = x[0, 0].numel()
        together = contiguous and positions > 1  # the positions of a channel
        walk = SLICED if together else CHANNELS_LAST
        if part is None:
            part, walk = (
                Partition(len(x), x.shape[1], positions, 1, 1, True),
                POSITIONAL if together else BY_ROWS,
            )
        plan = _plans[key] = Plan(library, part, x.dtype, walk, layout)
    return plan


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _checked(code: int) -> None:
    if code == 1:
        raise MemoryError("no memory for the sums of a normaliser")
    if code:
        raise RuntimeError(f"the C code refused its arguments (code {code})")


def _low(plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the parameters are of a lower precision than the statistics."""
    parameter = bias if weight is None else weight
    return parameter is not None and parameter.dtype is not plan.statistics


_NOWHERE = None, None, 0.0, None


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
) -> tuple[Tensor, Any]:
    """Output, and statistics for the backward pass."""
    y = torch.empty_like(x)
    stats = plan.Statistics()
    direct = running is not None and running.within_reach(plan.statistics, plan.part.G)
    to_mean, to_var, momentum, counter = (
        running.pointers() if running is not None and direct else _NOWHERE
    )
    if running is not None and momentum < 0:  # every batch so far weighs the same
        momentum = 0.0 if running.counter is None else 1 / (running.counter.item() + 1)
    _checked(
        library.forward(
            plan.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            _low(plan, weight, bias),
            eps,
            stats,
            to_mean,
            to_var,
            plan.part.G,
            momentum,
            counter,
            plan.threads(),
        )
    )
    if running is not None and direct:
        running.written()
    elif running is not None:
        update(running, _moments(stats, plan))
    return y, stats


def _moments(stats: Any, plan: Plan) -> Moments:
    """Statistics that C has computed, as moments."""
    part = plan.part
    mean, var, _ = torch.frombuffer(stats, dtype=plan.statistics).view(3, part.B, part.G)
    count = definition.count(part, mean)
    return Moments(count, mean, var * count)


def _apply(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    mean: Tensor,
    var: Tensor,
) -> tuple[Tensor, Any]:
    """Output, and statistics for the backward pass."""
    y = torch.empty_like(x)
    stats = plan.Statistics()
    _checked(
        library.apply(
            plan.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            _low(plan, weight, bias),
            eps,
            mean.data_ptr(),
            var.data_ptr(),
            addressof(stats) + 2 * plan.step,
            plan.threads(),
        )
    )
    return y, stats


def _backward(
    gy: Tensor,
    x: Tensor,
    gx: Tensor | None,
    weight: Tensor | None,
    gw: Tensor | None,
    gb: Tensor | None,
    plan: Plan,
    mean: int,
    rstd: int,
    low: bool,
    frozen: bool,
) -> None:
    """Write the gradients that are asked for."""
    if not _literal(gy):
        gy = torch.zeros(gy.shape, dtype=gy.dtype) + gy
    gy = gy.contiguous(memory_format=plan.layout)
    _checked(
        library.backward(
            plan.pointer,
            gy.data_ptr(),
            x.data_ptr(),
            _pointer(gx),
            _pointer(weight),
            low,
            mean,
            rstd,
            _pointer(gw),
            _pointer(gb),
            frozen,
            plan.threads(),
        )
    )


class _Normalise(torch.autograd.Function):
    """Given statistics (those of eval mode) or running ones to be moved, never both."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        plan: Plan,
        eps: float,
        running: Running | None,
        given: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        if given is None:
            y, stats = _forward(x, weight, bias, plan, eps, running)
        else:
            y, stats = _apply(x, weight, bias, plan, eps, *given)
            memmove(stats, given[0].data_ptr(), plan.step)
        ctx.save_for_backward(x, weight, bias)
        ctx.stats = stats
        ctx.plan, ctx.eps, ctx.given = plan, eps, given
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        need_x, need_weight, need_bias = needs = ctx.needs_input_grad[:3]
        if (
            torch.is_grad_enabled() or type(gy) is not Tensor
        ):  # somebody wants to differentiate again
            return (*_differentiable(gy, x, weight, bias, ctx, needs), None, None, None, None)
        plan: Plan = ctx.plan
        gx = torch.empty_like(x) if need_x else None
        gw = torch.empty_like(weight) if need_weight else None
        gb = torch.empty_like(bias) if need_bias else None
        mean = addressof(ctx.stats)
        _backward(
            gy,
            x,
            gx,
            weight,
            gw,
            gb,
            plan,
            mean,
            mean + 2 * plan.step,
            _low(plan, weight, bias),
            ctx.given is not None,
        )
        return gx, gw, gb, None, None, None, None


# what Function.apply does beyond this is for torch.func, which never comes here
_normalise: Any = super(torch.autograd.Function, _Normalise).apply


def _differentiable(
    gy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, ctx: Any, needs: Any
) -> tuple[Tensor | None, ...]:
    """The gradients by way of the definition, with a graph of their own."""
    with torch.enable_grad():
        if ctx.given is not None:
            mean, var = ctx.given
            y = definition.apply(x, ctx.plan.part, mean, var, weight, bias, ctx.eps)
        elif ctx.plan.positional:
            y = definition.positional(x, weight, bias, ctx.eps)
        else:
            y = definition.train(x, ctx.plan.part, weight, bias, ctx.eps)
        inputs = [
            t for t, need in zip((x, weight, bias), needs, strict=True) if need and t is not None
        ]
        found = iter(torch.autograd.grad(y, inputs, gy, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


def _wanted(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether anybody may ask for a derivative."""
    return torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    )


def _run(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
    given: tuple[Tensor, Tensor] | None,
) -> Tensor:
    if _wanted(x, weight, bias):
        y: Tensor = _normalise(x, weight, bias, plan, eps, running, given)
    elif given is None:
        y = _forward(x, weight, bias, plan, eps, running)[0]
    else:
        y = _apply(x, weight, bias, plan, eps, *given)[0]
    return y


def train(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None = None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.train`."""
    if torch.compiler.is_compiling() and _in_graph(x, weight, bias):
        y, mean, m2, _ = torch.ops.bgn.normalise(
            x, weight, bias, part.B, part.G, part.whole_channels, eps
        )
        if running is not None:
            update(running, Moments(definition.count(part, mean), mean, m2))
        return y  # type: ignore[no-any-return]
    if not serves(x, weight, bias):
        return definition.train(x, part, weight, bias, eps, running)
    x = _readable(x)
    return _run(x, weight, bias, _plan(x, part), eps, running, None)


def apply(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """See :func:`bgn.kernels.definition.apply`."""
    if not serves(x, weight, bias) or not all(
        type(t) is Tensor and t.is_cpu and not t.requires_grad and _literal(t) for t in (mean, var)
    ):
        return definition.apply(x, part, mean, var, weight, bias, eps)
    x = _readable(x)
    plan = _plan(x, part)
    if not (
        mean.dtype is var.dtype is plan.statistics and mean.is_contiguous() and var.is_contiguous()
    ):
        mean, var = (t.to(plan.statistics).contiguous() for t in (mean, var))
    return _run(x, weight, bias, plan, eps, None, (mean, var))


def statistics(x: Tensor, part: Partition) -> Moments:
    """See :func:`bgn.kernels.definition.statistics`; they come with an output that nobody needs."""
    if not serves(x, None, None):
        return definition.statistics(x, part)
    x = _readable(x)
    plan = _plan(x, part)
    _, stats = _forward(x, None, None, plan, 1.0, None)
    return _moments(stats, plan)


def fixed(
    gy: Tensor, x: Tensor, part: Partition, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`bgn.kernels.definition.fixed`."""
    wide = _STATISTICS.get(x.dtype)
    if not (
        serves(x, weight, None)
        and wide is x.dtype
        and type(gy) is Tensor
        and gy.is_cpu
        and gy.dtype is wide
    ):
        return definition.fixed(gy, x, part, weight, mean, rstd)
    x = _readable(x)
    gx, sums = torch.empty_like(x), torch.empty(2, part.C, dtype=wide)
    _backward(
        gy,
        x,
        gx,
        weight,
        sums[1],
        sums[0],
        _plan(x, part),
        mean.data_ptr(),
        rstd.data_ptr(),
        False,
        True,
    )
    return gx, sums[0], sums[1]


def positional(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """See :func:`bgn.kernels.definition.positional`."""
    if not serves(x, weight, bias):
        return definition.positional(x, weight, bias, eps)
    x = _readable(x)
    return _run(x, weight, bias, _plan(x, None), eps, None, None)


_lanes: dict[
    Any, Plan
] = {}  # plans of calls that were checked before, by whatever the checks depend on


def remember(key: Any, x: Tensor, part: Partition) -> None:
    """Let :func:`quick` serve calls like this one, which has passed all checks."""
    if key is not None and x.dtype in TYPES and _eager(x) and _readable(x) is x:
        if len(_lanes) >= _PLANS:
            _lanes.clear()
        _lanes[key] = _plan(x, part)


def quick(
    key: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: tuple[Tensor, Tensor] | None,
) -> Tensor | None:
    """The output of a call like one that was checked before; None if there was none, or if anything is unusual."""
    plan = _lanes.get(key)
    if (
        plan is None
        or not x.is_contiguous(memory_format=plan.layout)
        or not serves(x, weight, bias)
        or (running is not None and not running.within_reach(plan.statistics, plan.part.G))
        or (
            given is not None
            and not Running(*given, None).within_reach(plan.statistics, plan.part.G)
        )
    ):
        return None
    return _run(x, weight, bias, plan, eps, running, given)

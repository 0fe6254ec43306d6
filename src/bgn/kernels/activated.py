"""A normalizer and what follows it, act(norm(x) + residual), in the sweeps of the C core.

The activation is part of the sweep that writes the output. Backward, with u the argument of the
activation, the normalizer's gradient is that of gu = gy * act'(u), which is also the residual's:

    what follows              what is kept             gu
    relu, leaky_relu          x                        made where gy is read, with u's sign from x
    the same and a residual   x and y                  written once, with u's sign from y
    silu, hardswish           x                        written once, with u from x
    save="output"             y (and the residual)     as with x; x is computed again from y

y is kept at no cost where the next layer keeps its input, as a convolution does. Statistics of eval
mode do not need x for the gradient of x: then gu is written once, with u's sign from y.

With save="output", x = mean + (act^-1(y) - residual - bias) / (weight * rstd): an error of y is
divided by the weight. ``is_invertible`` asks for weights that are far enough from 0; where they are
not, x is kept.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bgn.activation import OUTPUT, Activation, After
from bgn.kernels import cpu, definition, fallback
from bgn.kernels.cpu import Given
from bgn.kernels.eligible import is_plain_vector, no_transform, reaches, refuse_freed
from bgn.kernels.library import HARDSWISH, LEAKY, SILU, CAct, CorePlan
from bgn.kernels.plans import Plan
from bgn.renorm import Reference
from bgn.running import Running

_FUNCTIONS = {"silu": SILU, "hardswish": HARDSWISH}
# of weight, absolutely and as a share of |bias|: below, an input is not computed from its output
LEAST_WEIGHT = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.1}


def is_invertible(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, after: After, reference: Any
) -> bool:
    """Whether x can be computed again from the output, precisely enough."""
    if reference is not None or (after.residual is not None and x.itemsize < 4):
        return False
    least = LEAST_WEIGHT[x.dtype]
    with torch.no_grad():
        size = torch.ones(1) if weight is None else weight.abs().float()
        bound = size if bias is None else size / bias.abs().clamp(min=1)
        return bool((bound >= least).all())


class Call(NamedTuple):
    """What is asked for, apart from tensors that a derivative may be asked of."""

    plan: Plan
    eps: float
    running: Running | None
    given: Given | None
    reference: Reference | None
    act: Activation


def structure(act: Activation, residual: Tensor | None) -> CAct:
    """What the C core is told of an activation."""
    address = None if residual is None else residual.data_ptr()
    return CAct(_FUNCTIONS.get(act.name, LEAKY), 0, act.negative_slope, address)


def derivative(
    act: Activation, bias: Tensor | None, y: Tensor | None, inner: Tensor | None
) -> CAct:
    """What the C core is told to differentiate it: see the table above; ``inner`` is for gu."""
    then = structure(act, None)
    then.b, then.y, then.inner = map(cpu._pointer, (bias, y, inner))
    return then


def _forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, call: Call
) -> tuple[Tensor, Any, Tensor | None]:
    """The output; statistics in memory of C; corrections."""
    core, then = cpu.core_of(call.plan), structure(call.act, residual)
    if call.given is not None:
        return *cpu.apply(x, weight, bias, core, call.eps, call.given, then), None
    return cpu.forward(x, weight, bias, core, call.eps, call.running, call.reference, then)


class _Normalize(torch.autograd.Function):
    """As that of :mod:`bgn.kernels.cpu`, and what follows."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        residual: Tensor | None,
        call: Call,
    ) -> Tensor:
        y, ctx.stats, correct = _forward(x, weight, bias, residual, call)
        ctx.inverted = (
            call.act.save == OUTPUT
            and call.given is None
            and is_invertible(x, weight, bias, After(call.act, residual), call.reference)
        )
        by_sign = residual is not None or call.given is not None or ctx.inverted
        ctx.save_for_backward(
            None if ctx.inverted else x,
            weight,
            bias,
            y if by_sign and call.act.is_piecewise else None,
            residual if ctx.inverted else None,
            correct,
            *(call.given or ()),
        )
        ctx.set_materialize_grads(False)
        ctx.core, ctx.eps, ctx.act = cpu.core_of(call.plan), call.eps, call.act
        ctx.frozen, ctx.has_residual = call.given is not None, residual is not None
        ctx.low = cpu._is_low(bias if weight is None else weight, ctx.core)
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None) -> Any:
        if gy is None:
            return (None,) * 5
        x, weight, bias, y, residual, correct, *given = ctx.saved_tensors  # once: hooks run
        saved = Saved(x, weight, bias, y, residual, correct, given)
        found = gradients(gy, saved, ctx, addressof(ctx.stats), ctx.needs_input_grad[:4])
        return *found, None


# what Function.apply does beyond this is for torch.func, which never comes here
_normalize: Any = super(torch.autograd.Function, _Normalize).apply


class Saved(NamedTuple):
    """What a forward pass keeps: see the table above."""

    x: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    y: Tensor | None
    residual: Tensor | None
    correct: Tensor | None
    given: list[Tensor]


Gradients = fallback.AllGradients


def gradients(gy: Tensor, saved: Saved, ctx: Any, stats: int, needs: tuple[bool, ...]) -> Gradients:
    """The gradients of x, weight, bias and residual that are needed.

    ``ctx`` is the node: its core, eps, act, low, frozen, inverted and has_residual. ``stats`` is an
    address; 0 asks for the definition.
    """
    core: CorePlan = ctx.core
    maps = [t for t in (saved.x, saved.y, saved.residual) if t is not None]
    for t in maps:
        fallback.check_saved(t, core.dtype, core.shape, "cpu")
    affine = core.dtype if ctx.low else core.statistics
    vectors = [t for t in (saved.weight, saved.bias) if t is not None]
    eligible = (
        stats
        and not torch.is_grad_enabled()
        and no_transform()
        and all(t.dtype is core.dtype and reaches(t, core.numel) for t in (gy, *maps))
        and all(t.dtype is affine and is_plain_vector(t, core.part.C) for t in vectors)
        and (saved.correct is None or cpu.are_corrections(saved.correct, core))
    )
    if not eligible:
        return _by_definition(gy, saved, ctx, stats, affine, needs)
    gy, *maps = (t.contiguous(memory_format=core.layout) for t in (gy, *maps))
    rest = iter(maps)
    x, y, residual = (None if t is None else next(rest) for t in saved[:1] + saved[3:5])
    inner = again = None
    if ctx.has_residual or ctx.frozen or not ctx.act.is_piecewise:
        inner = torch.empty_like(gy)
    if ctx.inverted and residual is not None:
        again = torch.empty_like(gy)
    then = derivative(ctx.act, saved.bias, y, inner)
    then.inverted = ctx.inverted
    then.residual, then.again = cpu._pointer(residual), cpu._pointer(again)
    like: Any = next(t for t in (x, y) if t is not None)
    found = cpu.backward(
        gy, like, saved.weight, core, stats, stats + 2 * core.step, tuple(needs[:3]), affine,
        ctx.frozen, saved.correct, then,
    )  # fmt: skip
    return *found, inner if needs[3] else None


class _Node(NamedTuple):
    """What ``gradients`` asks of a node, from the one in C++."""

    core: CorePlan
    eps: float
    low: bool
    frozen: bool
    act: Activation
    has_residual: bool
    inverted: bool = False


def node_gradients(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor | None,
    given: list[Tensor],
    core: CorePlan,
    stats: int,
    eps: float,
    low: bool,
    frozen: bool,
    function: int,
    slope: float,
    has_residual: bool,
    needs: tuple[bool, ...],
) -> Gradients:
    """The backward pass of the node in C++, where that is not plain."""
    name = {SILU: "silu", HARDSWISH: "hardswish"}.get(function, "leaky_relu")
    act = Activation("relu" if name == "leaky_relu" and slope == 0 else name, slope)
    correct = given.pop() if given and not frozen else None
    node = _Node(core, eps, low, frozen, act, has_residual)
    saved = Saved(x, weight, bias, y, None, correct, given)
    return gradients(gy, saved, node, stats, needs)


def _by_definition(
    gy: Tensor,
    saved: Saved,
    ctx: Any,
    stats: int,
    affine: torch.dtype,
    needs: tuple[bool, ...],
) -> Gradients:
    """The same as differentiable functions, for tensors that are not plain."""
    core: CorePlan = ctx.core
    x, weight, bias, y, residual, correct, given = saved
    if x is None:
        assert y is not None
        refuse_freed(weight=weight, bias=bias, output=y, residual=residual)
        with torch._C.DisableTorchFunctionSubclass():  # as backward passes in C++
            x = _inverted(y, residual, weight, bias, ctx, stats)
    return fallback.gradients_after(
        gy, x, core.part, given, correct, weight, bias, y, ctx.act, ctx.eps, affine, needs
    )


def _inverted(
    y: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    ctx: Any,
    stats: int,
) -> Tensor:
    """x from y, numbers without a derivative."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "save='output' keeps no input, so the gradient has no derivative of its own"
            " (create_graph=True, gradgradcheck); expected save='input'"
        )
    core = ctx.core
    shape = 3, core.part.B, core.part.G
    memory = (ctypes.c_char * (3 * core.step)).from_address(stats)
    mean, _, rstd = torch.frombuffer(memory, dtype=core.statistics).view(shape)
    z = ctx.act.inverse(y.to(core.statistics))
    z = z if residual is None else z - residual
    z = z if bias is None else z - definition.per_channel(bias, y)
    scale = definition.spread(rstd, core.part, y)
    scale = scale if weight is None else scale * definition.per_channel(weight, y)
    x: Tensor = (z / scale + definition.spread(mean, core.part, y)).to(y.dtype)
    return x


def run(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: Given | None,
    reference: Reference | None,
    after: After,
) -> Tensor | None:
    """Normalize and what follows, as ``cpu.run``; None, and nothing is changed, where C may not."""
    act, residual = after
    if residual is not None and not (
        act.is_piecewise
        and residual.dtype is x.dtype
        and residual.shape == x.shape
        and plan.kept
        and reaches(residual, plan.numel)
    ):
        return None
    if cpu._run_in_cpp is not None and act.save != OUTPUT and plan.dtype in LEAST_WEIGHT:
        follows = _FUNCTIONS.get(act.name, LEAKY), act.negative_slope, residual
        of = plan.node or cpu._node_of(plan)
        y: Tensor | None = cpu._run_in_cpp(
            of, x, weight, bias, eps, running, given, reference, follows
        )
        if y is not None:
            return y
    if plan.positional or not cpu.accepts(x, plan, weight, bias, given, reference):
        return None
    x = x.contiguous(memory_format=plan.layout)
    if residual is not None:
        residual = residual.contiguous(memory_format=plan.layout)
    call = Call(plan, eps, running, given, reference, act)
    tensors = x, weight, bias, residual
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _normalize(*tensors, call)  # type: ignore[no-any-return]
    return _forward(*tensors, call)[0]

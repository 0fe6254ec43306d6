"""The C core and the GPU core as operators of torch: ``bgn::normalize`` and its derivative.

``bgn::normalize`` moves running statistics and their counter itself, as torch's batch_norm does, so
that a graph needs no nodes for them. AOTAutograd makes such an operator functional and inductor
makes it in-place again; nothing is copied. In eager mode a plain call is cheaper
(:mod:`bgn.kernels.cpu`); both run the same C code. With ``act``, on the CPU, it is a fused layer
(:mod:`bgn.kernels.activated`).

A call may come from anywhere, so all arguments are checked.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl

from bgn import activation, checks
from bgn.activation import Activation
from bgn.kernels import activated, backends, cpu, definition, fallback, plans, triton
from bgn.kernels.eligible import is_plain, reaches
from bgn.kernels.plans import Cut, Plan
from bgn.partition import Partition
from bgn.renorm import Reference, Renorm
from bgn.running import Running

_LIBRARY: Any = torch.library.Library("bgn", "DEF")  # type: ignore[no-untyped-call]
# inductor need not copy x to the layout that it was traced with: any one will do
_TAGS = tuple(
    getattr(torch.Tag, name)
    for name in ("pt2_compliant_tag", "flexible_layout")
    if hasattr(torch.Tag, name)  # older versions of torch do not know all of them
)
_OPTIONS = "SymInt B, SymInt G, bool whole_channels, float eps"
_ACT = 'str act="", float slope=0.0'  # what follows; "" for nothing
_LIBRARY.define(
    "normalize(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean,"
    " Tensor(b!)? running_var, Tensor(c!)? counter, float? momentum, bool moves, float r_max,"
    f" float d_max, Tensor? share, {_OPTIONS}, Tensor? residual=None, {_ACT})"
    " -> (Tensor y, Tensor mean, Tensor rstd, Tensor correct)",
    tags=_TAGS,
)
_LIBRARY.define(
    "normalize_backward(Tensor gy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd,"
    f" Tensor correct, {_OPTIONS}, Tensor? bias=None, Tensor? y=None, bool residual=False, {_ACT})"
    " -> (Tensor gx, Tensor gw, Tensor gb, Tensor gr)",
    tags=_TAGS,
)


def is_gpus(x: Tensor) -> bool:
    """Whether the GPU core runs where x is."""
    return x.device.type in backends.active.triton


class Options(NamedTuple):
    """Arguments of both operators: a partition, whose sizes are those of x, and eps."""

    B: int
    G: int
    whole_channels: bool
    eps: float

    @property
    def cut(self) -> Cut:
        return _whole if self.whole_channels else _features

    def partition(self, x: Tensor) -> Partition:
        return self.cut(x.shape[0], x.shape[1], math.prod(x.shape[2:]), self.G, self.B)

    def plan(self, x: Tensor) -> Plan:
        """The plan for an x with elements, checked: an operator's arguments come from anywhere."""
        checks.positive_int("B", self.B)
        checks.eps(self.eps)
        if (x.shape[1] if self.whole_channels else math.prod(x.shape[1:])) < self.G:
            shape = tuple(x.shape)
            raise ValueError(f"G={self.G} exceeds what there is to group in an input of {shape}")
        return plans.plan(self.cut, x, self.G, self.B)


def _whole(N: int, C: int, P: int, G: int, B: int) -> Partition:
    return Partition(N, C, P, B, G, whole_channels=True)


def _features(N: int, C: int, P: int, G: int, B: int) -> Partition:
    return Partition(N, C, P, B, G, whole_channels=False)


def _running(
    x: Tensor,
    options: Options,
    mean: Tensor | None,
    var: Tensor | None,
    counter: Tensor | None,
    momentum: float | None,
) -> Running | None:
    """The running statistics, checked, or None."""
    if mean is None and var is None and counter is None:
        return None
    if mean is None or var is None:
        raise ValueError("a running statistic is None; expected both, or neither and no counter")
    for name, value in ("running_mean", mean), ("running_var", var):
        if value.requires_grad:
            raise ValueError(f"{name}.requires_grad=True; expected False")
    if counter is not None and (counter.numel() != 1 or counter.dtype.is_floating_point):
        raise ValueError(f"counter is {counter.dtype} {tuple(counter.shape)}; expected one integer")
    checks.momentum(momentum)
    part = options.partition(x)
    checks.statistics(x, part, mean, var, moving=True)
    if x.numel() > 0 and part.smallest_count == 1:
        raise ValueError(f"x of shape {tuple(x.shape)} leaves 1 value per statistic of G={part.G}")
    return Running(mean, var, momentum, counter)


def _readable(x: Tensor, plan: Plan, **vectors: Tensor | None) -> Tensor:
    """x, where C may read it and the vectors; else an error."""
    for name, vector in vectors.items():
        checks.vector(name, vector, plan.part.C, "channel")
        if vector is not None and vector.dtype not in (x.dtype, definition.wide_dtype(x)):
            raise TypeError(f"{name} has dtype {vector.dtype}; expected {x.dtype} or float32")
    readable = x.contiguous(memory_format=plan.layout)
    core: Any = triton if is_gpus(x) else cpu
    if not core.is_eligible(readable, plan, *vectors.values()):
        where = "a GPU" if is_gpus(x) else "the CPU"
        raise RuntimeError(f"bgn operators need dense tensors on {where}, outside of transforms")
    return readable


def _like(x: Tensor, result: Tensor) -> Tensor:
    """The result with x's strides, which the caller was promised."""
    return result if result.stride() == x.stride() else torch.empty_like(x).copy_(result)


def _normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    counter: Tensor | None,
    momentum: float | None,
    moves: bool,
    r_max: float,
    d_max: float,
    share: Tensor | None,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
    residual: Tensor | None = None,
    act: str = "",
    slope: float = 0.0,
) -> tuple[Tensor, ...]:
    checks.feature_map(x)
    options = Options(B, G, whole_channels, eps)
    follows = _activation(x, act, slope, residual is not None)
    plan = None if x.numel() == 0 else options.plan(x)
    running = _running(x, options, running_mean, running_var, counter, momentum)
    if plan is None:  # an empty batch counts, and changes nothing else
        if counter is not None:
            counter.add_(1)
        return _fake(x, options, running_mean, r_max)
    reference = _reference(running, r_max, d_max, share)
    again = torch._C._current_graph_task_id() != -1  # in a checkpointed segment's second run
    if reference is not None and again:
        raise RuntimeError(
            "renorm in a compiled graph that gradient checkpointing runs again: the running"
            " statistics have moved since; compile without checkpointing, or checkpoint without"
            " torch.compile"
        )
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    readable = _readable(x, plan, weight=weight, bias=bias)
    if again or not moves:
        running = None
    if is_gpus(x):
        y, own = triton.forward(readable, weight, bias, plan, options.eps, running, reference)
        correct = own.mean.new_empty(0) if own.correct is None else own.correct
        return _like(x, y), own.mean, own.rstd, correct
    core, then = cpu.core_of(plan), None
    if follows is not None:
        residual = _residual(residual, x, plan)
        then = activated.structure(follows, residual)
    y, stats, correct = cpu.forward(readable, weight, bias, core, eps, running, reference, then)
    mean, _, rstd = torch.frombuffer(stats, dtype=core.statistics).view(3, options.B, options.G)
    if correct is None:
        correct = mean.new_empty(0)
    return _like(x, y), mean.clone(), rstd.clone(), correct


def _activation(x: Tensor, act: str, slope: float, residual: bool) -> Activation | None:
    """What follows, checked."""
    if not act:
        if residual:
            raise ValueError("residual without act; expected act='identity' for a sum alone")
        return None
    if is_gpus(x):
        raise ValueError(f"act={act!r} for an x on {x.device}; expected '', or x on the CPU")
    found = activation.checked(act, slope)
    if residual and not found.is_piecewise:
        raise ValueError(f"residual with act={act!r}; expected relu, leaky_relu or identity")
    if not found.keeps_sign:
        raise ValueError(f"slope={slope} with act={act!r}; expected at least 0")
    return found


def _residual(residual: Tensor | None, x: Tensor, plan: Plan) -> Tensor | None:
    """A residual that C may read, in the plan's layout."""
    if residual is None:
        return None
    if residual.shape != x.shape or residual.dtype is not x.dtype:
        told = f"residual is {residual.dtype} {tuple(residual.shape)}"
        raise ValueError(f"{told}; expected {x.dtype} {tuple(x.shape)}, as x")
    if not reaches(residual, plan.numel):
        raise RuntimeError("bgn operators need dense tensors on the CPU, outside of transforms")
    return residual.contiguous(memory_format=plan.layout)


def _reference(
    running: Running | None, r_max: float, d_max: float, share: Tensor | None
) -> Reference | None:
    """What a batch is corrected towards; r_max is 0 where it is not."""
    if r_max == 0:
        return None
    if running is None:
        raise ValueError(f"r_max={r_max} needs running_mean and running_var, got None")
    Renorm(r_max, d_max)  # checks them
    passed = 1.0 if share is None else share if share.is_cuda else float(share)
    mean, var = (t.to(definition.wide_dtype(t)) for t in (running.mean, running.var))
    return Reference(mean, var, r_max, d_max, passed)


def _fake_normalize(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Tensor | None,
    running_var: Any,
    counter: Any,
    momentum: Any,
    moves: Any,
    r_max: float,
    d_max: Any,
    share: Any,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
    *_: Any,
) -> tuple[Tensor, ...]:
    return _fake(x, Options(B, G, whole_channels, eps), running_mean, r_max)


def _fake(
    x: Tensor, options: Options, running_mean: Tensor | None, r_max: float
) -> tuple[Tensor, ...]:
    shape, dtype = (options.B, options.G), definition.wide_dtype(x)
    mean, rstd = (x.new_zeros(shape, dtype=dtype) for _ in range(2))
    correct = x.new_zeros(0, dtype=dtype)
    if r_max != 0 and running_mean is not None:
        correct = x.new_zeros((2, options.B, running_mean.shape[0]), dtype=dtype)
    return torch.empty_like(x), mean, rstd, correct


def _normalize_backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    correct: Tensor,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
    bias: Tensor | None = None,
    y: Tensor | None = None,
    residual: bool = False,
    act: str = "",
    slope: float = 0.0,
) -> tuple[Tensor, ...]:
    follows, maps = _activation(x, act, slope, residual), {"gy": gy}
    if residual:
        if y is None:
            raise ValueError("y is None; expected the output, for there was a residual")
        maps["y"] = y
    for name, t in maps.items():
        if t.shape != x.shape or t.dtype is not x.dtype:
            raise ValueError(
                f"{name} is {t.dtype} {tuple(t.shape)}; expected {x.dtype} {tuple(x.shape)}, as x"
            )
    if x.numel() == 0:
        return _fake_gradients(x, weight, residual)
    checks.feature_map(x)
    options = Options(B, G, whole_channels, eps)
    plan = options.plan(x)
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    readable = _readable(x, plan, weight=weight, bias=bias)
    maps = {name: t.contiguous(memory_format=plan.layout) for name, t in maps.items()}
    wide = definition.wide_dtype(x)
    for name, t in ("mean", mean), ("rstd", rstd):
        if t.shape != (B, G) or t.dtype is not wide:
            raise ValueError(f"{name} is {t.dtype} {tuple(t.shape)}; expected ({B}, {G})")
    mean, rstd, correct = mean.contiguous(), rstd.contiguous(), correct.contiguous()
    used = correct if correct.numel() else None
    affine = wide if weight is None else weight.dtype
    none = x.new_empty(0)
    if is_gpus(x):
        kept = mean, rstd, used
        return *_gradients_on_gpus(maps["gy"], readable, x, weight, plan, kept, eps, affine), none
    core = cpu.core_of(plan)
    if used is not None and not cpu.are_corrections(used, core):
        raise ValueError(f"correct is {used.dtype} {tuple(used.shape)}; expected (2, {B}, {G})")
    if not all(is_plain(t, t.numel()) for t in (*maps.values(), mean, rstd, correct)):
        raise RuntimeError("bgn operators need dense tensors on the CPU, outside of transforms")
    then = inner = None
    if follows is not None:
        if residual or not follows.is_piecewise:
            inner = torch.empty_like(readable)
        then = activated.derivative(follows, bias, maps.get("y"), inner)
    addresses, needs = (mean.data_ptr(), rstd.data_ptr()), (True, True, True)
    found: Any = cpu.backward(
        maps["gy"], readable, weight, core, *addresses, needs, affine, False, used, then
    )
    gx, gw, gb = found
    return _like(x, gx), gw, gb, _like(x, inner) if residual and inner is not None else none


def _gradients_on_gpus(
    gy: Tensor,
    readable: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    stats: tuple[Tensor, Tensor, Tensor | None],
    eps: float,
    affine: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by the GPU core."""
    if not triton.is_readable_as(gy, readable, plan):
        raise RuntimeError("bgn operators need dense tensors on a GPU, outside of transforms")
    kept, needs = triton.kernels().Statistics(*stats), (True, True, True)
    found: Any = triton.backward(gy, readable, weight, plan, kept, eps, needs, affine)
    gx, gw, gb = found
    return _like(x, gx), gw, gb


def _fake_normalize_backward(
    gy: Any,
    x: Tensor,
    weight: Tensor | None,
    mean: Any,
    rstd: Any,
    correct: Any,
    B: Any,
    G: Any,
    whole_channels: Any,
    eps: Any,
    bias: Any = None,
    y: Any = None,
    residual: bool = False,
    *_: Any,
) -> tuple[Tensor, ...]:
    return _fake_gradients(x, weight, residual)


def _fake_gradients(x: Tensor, weight: Tensor | None, residual: bool) -> tuple[Tensor, ...]:
    affine = definition.wide_dtype(x) if weight is None else weight.dtype
    gw, gb = (x.new_zeros(x.shape[1], dtype=affine) for _ in range(2))
    return torch.empty_like(x), gw, gb, torch.empty_like(x) if residual else x.new_empty(0)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, *_ = inputs
    *options, residual, act, slope = inputs[-7:]
    y, mean, rstd, correct = output
    kept_bias = bias if act else None
    kept_y = None if residual is None else y
    ctx.save_for_backward(x, weight, mean, rstd, correct, kept_bias, kept_y)
    ctx.options, ctx.has_bias = Options(*options), bias is not None
    ctx.has_residual, ctx.act = residual is not None, (act, slope)
    ctx.mark_non_differentiable(mean, rstd, correct)


def _derivative(ctx: Any, gy: Tensor, *_: Any) -> Any:
    x, weight, mean, rstd, correct, bias, y = ctx.saved_tensors
    gx, gw, gb, gr = torch.ops.bgn.normalize_backward(
        gy, x, weight, mean, rstd, correct, *ctx.options, bias, y, ctx.has_residual, *ctx.act
    )
    needs = True, weight is not None, ctx.has_bias
    found = (g if n else None for g, n in zip((gx, gw, gb), needs, strict=True))
    return *found, *[None] * 12, gr if ctx.has_residual else None, None, None


def _setup_backward(ctx: Any, inputs: Any, output: Any) -> None:
    gy, x, weight, _, _, correct, *options = inputs
    *options, bias, y, ctx.has_residual, act, slope = options
    ctx.save_for_backward(gy, x, weight, correct, bias, y)
    ctx.options, ctx.act = Options(*options), Activation(act, slope) if act else None


def _second_derivative(ctx: Any, *upstream: Tensor) -> Any:
    """By the definition, where mean and rstd are functions of x again."""
    gy, x, weight, correct, bias, y = ctx.saved_tensors
    correct = correct if correct.numel() else None
    again = torch.is_grad_enabled()  # whether somebody wants to differentiate once more
    with torch.enable_grad():
        part, eps, gu = ctx.options.partition(x), ctx.options.eps, gy
        if ctx.act is not None:
            options = weight, bias, eps, correct
            u = fallback.argument(x, part, *options) if y is None else y
            gu = ctx.act.gradient(gy, u).to(x.dtype)
        first = definition.gradients(gu, x, part, weight, eps, correct)
        if weight is not None:
            first = first[0], first[1].to(weight.dtype), first[2].to(weight.dtype)
        inputs = gy, x, weight, bias
        wanted = [t for t in inputs if t is not None and t.requires_grad]
        results = (*first, gu if ctx.has_residual else x.new_empty(0))
        pairs = [(a, b) for a, b in zip(results, upstream, strict=True) if a.requires_grad]
        found = torch.autograd.grad(
            [a for a, _ in pairs],
            wanted,
            [b for _, b in pairs],
            create_graph=again,
            allow_unused=True,
        )
    of = {id(t): g for t, g in zip(wanted, found, strict=True)}
    of_gy, of_x, of_weight, of_bias = (of.get(id(t)) for t in inputs)
    return of_gy, of_x, of_weight, *[None] * 7, of_bias, *[None] * 4


def _register(name: str, kernel: Any, fake: Any, setup: Any, derivative: Any) -> None:
    """As torch.library does, whose register_autograd refuses operators that change an argument."""
    operator = getattr(torch.ops.bgn, name).default
    for key in ("CPU", "CUDA"):
        _LIBRARY.impl(name, kernel, key)
    register: Any = torch.library.register_fake
    register(f"bgn::{name}", fake, lib=_LIBRARY)
    differentiable = make_autograd_impl(operator, Info(derivative, setup))
    _LIBRARY.impl(name, differentiable, "Autograd", with_keyset=True)


if cpu.available() or triton.available():
    _register("normalize", _normalize, _fake_normalize, _setup, _derivative)
    _register(
        "normalize_backward",
        _normalize_backward,
        _fake_normalize_backward,
        _setup_backward,
        _second_derivative,
    )

"""The C core as registered operators: a compiled graph has one node forward and one backward.

They are functional, as torch.library wants operators with derivatives to be: statistics are
returned, and the caller moves the running ones. In eager mode a plain call is cheaper
(:mod:`bgn.kernels.cpu`); both run the same C code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn import checks
from bgn.kernels import cpu, definition
from bgn.kernels.eligible import is_plain
from bgn.kernels.library import TYPES
from bgn.kernels.plans import Plan, plan
from bgn.moments import Moments
from bgn.partition import Partition
from bgn.running import Running, update

_LIBRARY: Any = torch.library.Library("bgn", "DEF")  # type: ignore[no-untyped-call]
_PARTITION = "SymInt B, SymInt G, bool whole_channels, float eps"
_LIBRARY.define(
    f"normalize(Tensor x, Tensor? weight, Tensor? bias, {_PARTITION})"
    " -> (Tensor y, Tensor mean, Tensor var, Tensor rstd)"
)
_LIBRARY.define(
    f"normalize_backward(Tensor gy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd,"
    f" {_PARTITION}) -> (Tensor gx, Tensor gw, Tensor gb)"
)


def is_eligible(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether a compiled graph gets the operator; an exported one needs nothing of this package."""
    if (
        x.dtype not in TYPES
        or x.device.type != "cpu"
        or not hasattr(torch.compiler, "is_exporting")
        or torch.compiler.is_exporting()
    ):
        return False
    dtypes = {t.dtype for t in (weight, bias) if t is not None}
    return len(dtypes) < 2 and dtypes <= {x.dtype, definition.wide_dtype(x)}


def normalize(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.normalize`."""
    y, mean, var, _ = torch.ops.bgn.normalize(
        x, weight, bias, part.B, part.G, part.whole_channels, eps
    )
    if running is not None:
        count = definition.count(part, mean)
        update(running, Moments(count, mean, var * count))
    return y  # type: ignore[no-any-return]


def _plan(x: Tensor, B: int, G: int, whole_channels: bool) -> Plan:
    """The plan for the arguments of an operator, which may come from anywhere."""
    checks.feature_map(x)
    checks.positive_int("B", B)
    if (x.shape[1] if whole_channels else x[0].numel()) < G:
        raise ValueError(f"G={G} exceeds what there is to group in an input of {tuple(x.shape)}")
    return plan(_whole if whole_channels else _features, x, G, B)


def _whole(N: int, C: int, P: int, G: int, B: int) -> Partition:
    return Partition(N, C, P, B, G, whole_channels=True)


def _features(N: int, C: int, P: int, G: int, B: int) -> Partition:
    return Partition(N, C, P, B, G, whole_channels=False)


def _readable(x: Tensor, found: Plan, **vectors: Tensor | None) -> Tensor:
    """x, where C may read it and the vectors; else an error."""
    for name, vector in vectors.items():
        checks.vector(name, vector, found.part.C, "channel")
        if vector is not None and vector.dtype not in (x.dtype, definition.wide_dtype(x)):
            raise TypeError(f"{name} has dtype {vector.dtype}; expected {x.dtype} or float32")
    readable = x.contiguous(memory_format=found.layout)
    if not cpu.is_eligible(readable, found, *vectors.values()):
        raise RuntimeError("bgn operators need dense tensors on the CPU, outside of transforms")
    return readable


def _normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.numel() == 0:
        return _fake_normalize(x, weight, bias, B, G, whole_channels, eps)
    found = _plan(x, B, G, whole_channels)
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    readable = _readable(x, found, weight=weight, bias=bias)
    core = cpu.core_of(found)
    y, stats = cpu.forward(readable, weight, bias, core, eps, None)
    mean, var, rstd = (
        t.clone() for t in torch.frombuffer(stats, dtype=core.statistics).view(3, B, G)
    )
    if y.stride() != x.stride():  # as the caller was promised
        y = torch.empty_like(x).copy_(y)
    return y, mean, var, rstd


def _fake_normalize(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, var, rstd = (x.new_zeros(B, G, dtype=definition.wide_dtype(x)) for _ in range(3))
    return torch.empty_like(x), mean, var, rstd


def _normalize_backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    if gy.shape != x.shape or gy.dtype is not x.dtype:
        raise ValueError(
            f"gy is {gy.dtype} {tuple(gy.shape)}; expected {x.dtype} {tuple(x.shape)}, as x"
        )
    if x.numel() == 0:
        return _fake_normalize_backward(gy, x, weight, mean, rstd, B, G, whole_channels, eps)
    found = _plan(x, B, G, whole_channels)
    weight = None if weight is None else weight.contiguous()
    readable = _readable(x, found, weight=weight, bias=None)
    gy = gy.contiguous(memory_format=found.layout)
    core = cpu.core_of(found)
    for name, t in ("mean", mean), ("rstd", rstd):
        if t.shape != (B, G) or t.dtype is not core.statistics:
            raise ValueError(f"{name} is {t.dtype} {tuple(t.shape)}; expected ({B}, {G})")
    mean, rstd = mean.contiguous(), rstd.contiguous()
    if not all(is_plain(t, t.numel()) for t in (gy, mean, rstd)):
        raise RuntimeError("bgn operators need dense tensors on the CPU, outside of transforms")
    affine = core.statistics if weight is None else weight.dtype
    gx, gw, gb = cpu.backward(
        gy,
        readable,
        weight,
        core,
        mean.data_ptr(),
        rstd.data_ptr(),
        (True, True, True),
        affine,
        frozen=False,
    )
    assert gx is not None
    assert gw is not None
    assert gb is not None
    if gx.stride() != x.stride():
        gx = torch.empty_like(x).copy_(gx)
    return gx, gw, gb


def _fake_normalize_backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    affine = definition.wide_dtype(x) if weight is None else weight.dtype
    gw, gb = (x.new_zeros(x.shape[1], dtype=affine) for _ in range(2))
    return torch.empty_like(x), gw, gb


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, *ctx.partition = inputs
    _, mean, var, rstd = output
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(mean, var, rstd)


def _derivative(ctx: Any, gy: Tensor, *_: Any) -> Any:
    x, weight, mean, rstd = ctx.saved_tensors
    gx, gw, gb = torch.ops.bgn.normalize_backward(gy, x, weight, mean, rstd, *ctx.partition)
    needs = True, weight is not None, ctx.has_bias
    return *(g if n else None for g, n in zip((gx, gw, gb), needs, strict=True)), *[None] * 4


def _setup_backward(ctx: Any, inputs: Any, output: Any) -> None:
    gy, x, weight, _, _, *ctx.partition = inputs
    ctx.save_for_backward(gy, x, weight)


def _second_derivative(ctx: Any, *upstream: Tensor) -> Any:
    """By the definition, where mean and rstd are functions of x again."""
    gy, x, weight = ctx.saved_tensors
    B, G, whole_channels, eps = ctx.partition
    again = torch.is_grad_enabled()  # whether somebody wants to differentiate once more
    part = (_whole if whole_channels else _features)(len(x), x.shape[1], x[0, 0].numel(), G, B)
    with torch.enable_grad():
        first = definition.gradients(gy, x, part, weight, eps)
        if weight is not None:
            first = first[0], first[1].to(weight.dtype), first[2].to(weight.dtype)
        wanted = [t for t in (gy, x, weight) if t is not None and t.requires_grad]
        pairs = [(a, b) for a, b in zip(first, upstream, strict=True) if a.requires_grad]
        found = torch.autograd.grad(
            [a for a, _ in pairs],
            wanted,
            [b for _, b in pairs],
            create_graph=again,
            allow_unused=True,
        )
    of = {id(t): g for t, g in zip(wanted, found, strict=True)}
    return *(of.get(id(t)) for t in (gy, x, weight)), *[None] * 6


if cpu.available():
    _LIBRARY.impl("normalize", _normalize, "CPU")
    _LIBRARY.impl("normalize_backward", _normalize_backward, "CPU")
    register: Any = torch.library
    register.register_fake("bgn::normalize", _fake_normalize, lib=_LIBRARY)
    register.register_fake("bgn::normalize_backward", _fake_normalize_backward, lib=_LIBRARY)
    register.register_autograd("bgn::normalize", _derivative, setup_context=_setup, lib=_LIBRARY)
    register.register_autograd(
        "bgn::normalize_backward",
        _second_derivative,
        setup_context=_setup_backward,
        lib=_LIBRARY,
    )

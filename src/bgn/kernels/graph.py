"""The native backend as registered operators, for torch.compile: a compiled graph sees one node, forward and backward.

They are functional, as torch.library wants operators with derivatives to be: statistics are returned, and the caller moves the
running ones. In eager mode a plain call is cheaper (:mod:`bgn.kernels.cpu`); both run the same C code.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn.kernels import cpu, definition
from bgn.partition import Partition

_LIBRARY: Any = torch.library.Library("bgn", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "normalise(Tensor x, Tensor? weight, Tensor? bias, SymInt B, SymInt G, bool whole_channels, float eps)"
    " -> (Tensor y, Tensor mean, Tensor M2, Tensor rstd)"
)
_LIBRARY.define(
    "normalise_backward(Tensor gy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, SymInt G, bool whole_channels)"
    " -> (Tensor gx, Tensor gw, Tensor gb)"
)


def _partition(x: Tensor, B: int, G: int, whole_channels: bool) -> Partition:
    return Partition(x.shape[0], x.shape[1], x[0, 0].numel(), B, G, whole_channels)


def _normalise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    readable = cpu._readable(x)
    plan = cpu._plan(readable, _partition(x, B, G, whole_channels))
    weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
    y, stats = cpu._forward(readable, weight, bias, plan, eps, None)
    mean, var, rstd = (
        t.clone() for t in torch.frombuffer(stats, dtype=plan.statistics).view(3, B, G)
    )
    m2 = var * definition.count(plan.part, var)
    if y.stride() != x.stride():  # as the caller was promised
        y = torch.empty_like(x).copy_(y)
    return y, mean, m2, rstd


def _fake_normalise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    B: int,
    G: int,
    whole_channels: bool,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    mean, m2, rstd = (x.new_empty(B, G, dtype=cpu._STATISTICS[x.dtype]) for _ in range(3))
    return torch.empty_like(x), mean, m2, rstd


def _normalise_backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    G: int,
    whole_channels: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    readable = cpu._readable(x)
    plan = cpu._plan(readable, _partition(x, mean.shape[0], G, whole_channels))
    weight = None if weight is None else weight.contiguous()
    gx = torch.empty_like(readable)
    gw, gb = (
        torch.empty(x.shape[1], dtype=plan.statistics if weight is None else weight.dtype)
        for _ in range(2)
    )
    low = gw.dtype is not plan.statistics
    cpu._backward(
        gy, readable, gx, weight, gw, gb, plan, mean.data_ptr(), rstd.data_ptr(), low, frozen=False
    )
    if gx.stride() != x.stride():
        gx = torch.empty_like(x).copy_(gx)
    return gx, gw, gb


def _fake_normalise_backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    G: int,
    whole_channels: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    gw, gb = (
        x.new_empty(x.shape[1], dtype=cpu._STATISTICS[x.dtype] if weight is None else weight.dtype)
        for _ in range(2)
    )
    return torch.empty_like(x), gw, gb


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, _, ctx.G, ctx.whole_channels, _ = inputs
    _, mean, m2, rstd = output
    ctx.save_for_backward(x, weight, mean, rstd)
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(mean, m2, rstd)


def _derivative(ctx: Any, gy: Tensor, *_: Any) -> Any:
    x, weight, mean, rstd = ctx.saved_tensors
    gx, gw, gb = torch.ops.bgn.normalise_backward(
        gy, x, weight, mean, rstd, ctx.G, ctx.whole_channels
    )
    return gx, None if weight is None else gw, gb if ctx.has_bias else None, None, None, None, None


if cpu.available():
    _LIBRARY.impl("normalise", _normalise, "CPU")
    _LIBRARY.impl("normalise_backward", _normalise_backward, "CPU")
    torch.library.register_fake("bgn::normalise", _fake_normalise, lib=_LIBRARY)
    torch.library.register_fake("bgn::normalise_backward", _fake_normalise_backward, lib=_LIBRARY)
    torch.library.register_autograd(
        "bgn::normalise", _derivative, setup_context=_setup, lib=_LIBRARY
    )

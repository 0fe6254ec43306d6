"""The fast path on the CPU: plain C and OpenMP on contiguous float32 and float64 tensors, called through ctypes.

Everything that it cannot serve (other devices, dtypes and layouts, torch.compile, torch.func, forward-mode derivatives) goes to
the reference backend, which it is tested against.
"""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bgn.backends import reference
from bgn.moments import Moments
from bgn.partition import Partition

_SUFFIX = {torch.float32: "f32", torch.float64: "f64"}
_SERIAL = 16384  # elements below which a second thread costs more than it gains
_PLANS = 1024  # how many shapes are remembered


class Library:
    """The shared library with its signatures."""

    def __init__(self, path: str) -> None:
        self.handle: Any = ctypes.CDLL(path)
        pointer, size, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
        self.handle.bgn_plan_new.argtypes = [size] * 5 + [number, size]
        self.handle.bgn_plan_new.restype = pointer
        self.handle.bgn_plan_free.argtypes = [pointer]
        self.handle.bgn_plan_free.restype = None
        self.handle.bgn_use_avx2.argtypes = [number]
        self.avx2 = bool(self.handle.bgn_use_avx2(1))
        self.forward, self.apply, self.backward = (
            {dtype: getattr(self.handle, f"bgn_{name}_{suffix}") for dtype, suffix in _SUFFIX.items()}
            for name in ("forward", "apply", "backward")
        )
        self.update = {dtype: getattr(self.handle, f"bgn_update_{suffix}") for dtype, suffix in _SUFFIX.items()}
        for dtype in _SUFFIX:
            self.forward[dtype].argtypes = [pointer] * 5 + [real] + [pointer] * 3 + [number]
            self.apply[dtype].argtypes = [pointer] * 5 + [real] + [pointer] * 2 + [number]
            self.backward[dtype].argtypes = [pointer] * 9 + [number]
            self.update[dtype].argtypes = [pointer] * 5 + [real]
            self.update[dtype].restype = None


def _load() -> tuple[Library | None, str]:
    spec = importlib.util.find_spec("bgn._native")
    if spec is None or spec.origin is None:
        return None, "not built: no C compiler was found when the package was installed"
    try:
        return Library(spec.origin), ""
    except (OSError, AttributeError) as error:
        return None, f"damaged or for another machine: {error}"


library, why_not = _load()


class Plan:
    """How the C code walks through one shape; freed with its last user."""

    def __init__(self, part: Partition, dtype: torch.dtype) -> None:
        assert library is not None
        itemsize = torch.finfo(dtype).bits // 8
        self.pointer = library.handle.bgn_plan_new(part.N, part.C, part.P, part.B, part.G, part.whole_channels, itemsize)
        if not self.pointer:
            raise MemoryError(f"no memory for the plan of {part}")
        sizes = part.starts().diff() * part.unit_size if part.units % part.G else torch.tensor(part.D // part.G)
        self.count = (sizes * part.block_size).to(dtype)
        self.serial = part.N * part.D < _SERIAL

    def threads(self) -> int:
        return 1 if self.serial else torch.get_num_threads()

    def __del__(self) -> None:
        if getattr(self, "pointer", None) and library is not None:
            library.handle.bgn_plan_free(self.pointer)


_plans: dict[tuple[Partition, torch.dtype], Plan] = {}


def _plan(part: Partition, dtype: torch.dtype) -> Plan:
    plan = _plans.get((part, dtype))
    if plan is None:
        if len(_plans) >= _PLANS:
            _plans.clear()
        plan = _plans[part, dtype] = Plan(part, dtype)
    return plan


def _serves(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the C code may look at the memory of these tensors."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.dtype in _SUFFIX
        and x.device.type == "cpu"
        and x.is_contiguous()
        and (weight is None or (weight.dtype == x.dtype and weight.is_contiguous() and weight.device == x.device))
        and (bias is None or (bias.dtype == x.dtype and bias.is_contiguous() and bias.device == x.device))
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._get_tracing_state()
    )


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _checked(code: int) -> None:
    if code:
        raise MemoryError("no memory for the sums of a normaliser")


def _forward(
    x: Tensor, plan: Plan, part: Partition, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    assert library is not None
    y = torch.empty_like(x)
    mean, m2, rstd = x.new_empty(3, part.B, part.G)
    _checked(
        library.forward[x.dtype](
            plan.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            eps,
            mean.data_ptr(),
            m2.data_ptr(),
            rstd.data_ptr(),
            plan.threads(),
        )
    )
    return y, mean, m2, rstd


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, plan: Plan, part: Partition, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, mean, m2, rstd = _forward(x, plan, part, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.plan, ctx.part, ctx.eps = plan, part, eps
        ctx.mark_non_differentiable(mean, m2)
        return y, mean, m2

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        gy = gradients[0]
        x, weight, bias, mean, rstd = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled() or type(gy) is not Tensor:  # somebody wants to differentiate again
            return (*_differentiable(gy, x, weight, bias, ctx.part, ctx.eps, needs), None, None, None)
        assert library is not None
        gy = gy.contiguous()
        gx = torch.empty_like(x) if needs[0] else None
        gw = torch.empty_like(weight) if needs[1] else None
        gb = torch.empty_like(bias) if needs[2] else None
        _checked(
            library.backward[x.dtype](
                ctx.plan.pointer,
                gy.data_ptr(),
                x.data_ptr(),
                _pointer(gx),
                _pointer(weight),
                mean.data_ptr(),
                rstd.data_ptr(),
                _pointer(gw),
                _pointer(gb),
                ctx.plan.threads(),
            )
        )
        return gx, gw, gb, None, None, None


def _differentiable(
    gy: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, part: Partition, eps: float, needs: Any
) -> tuple[Tensor | None, ...]:
    """The gradients by way of the reference backend, with a graph of their own."""
    with torch.enable_grad():
        y, _ = reference.train(x, part, weight, bias, eps)
        inputs = [t for t, need in zip((x, weight, bias), needs, strict=True) if need and t is not None]
        found = iter(torch.autograd.grad(y, inputs, gy, create_graph=True))
    return tuple(next(found) if need else None for need in needs)


@dataclass(frozen=True)
class NativeMoments(Moments):
    """Moments with the plan that they were computed by."""

    plan: Plan


def update(running_mean: Tensor, running_var: Tensor, stats: Moments, momentum: float | Tensor) -> None:
    """See :func:`bgn.backends.reference.update`."""
    buffers = (running_mean, running_var)
    if (
        library is None
        or not isinstance(stats, NativeMoments)
        or isinstance(momentum, Tensor)
        or not all(type(t) is Tensor and t.dtype == stats.mean.dtype and t.is_contiguous() for t in buffers)
    ):
        reference.update(running_mean, running_var, stats, momentum)
        return
    statistics = (stats.mean.data_ptr(), stats.M2.data_ptr())
    library.update[stats.mean.dtype](stats.plan.pointer, *statistics, *(t.data_ptr() for t in buffers), momentum)
    torch.autograd.graph.increment_version(buffers)


def train(x: Tensor, part: Partition, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Moments]:
    """See :func:`bgn.backends.reference.train`."""
    if not _serves(x, weight, bias):
        return reference.train(x, part, weight, bias, eps)
    plan = _plan(part, x.dtype)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        y, mean, m2 = _Normalise.apply(x, weight, bias, plan, part, eps)  # type: ignore[no-untyped-call]
    else:
        y, mean, m2, _ = _forward(x, plan, part, weight, bias, eps)
    return y, NativeMoments(plan.count, mean, m2, plan)


def apply(
    x: Tensor, part: Partition, mean: Tensor, var: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """See :func:`bgn.backends.reference.apply`."""
    tensors = (x, mean, var, weight, bias)
    wanted = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    plain = part.B == 1 and mean.dtype == var.dtype == x.dtype and mean.is_contiguous() and var.is_contiguous()
    if wanted or not plain or not _serves(x, weight, bias):
        return reference.apply(x, part, mean, var, weight, bias, eps)
    assert library is not None
    plan = _plan(part, x.dtype)
    y = torch.empty_like(x)
    _checked(
        library.apply[x.dtype](
            plan.pointer,
            x.data_ptr(),
            y.data_ptr(),
            _pointer(weight),
            _pointer(bias),
            eps,
            mean.data_ptr(),
            var.data_ptr(),
            plan.threads(),
        )
    )
    return y


positional = reference.positional

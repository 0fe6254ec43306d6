"""The fast path on the CPU: plain C and OpenMP on the tensors' memory.

Contiguous and channels_last; float32, float64, bfloat16 and float16, with parameters of that dtype
or of float32. Other strides are copied. Only ``run`` and ``gradients`` ask whether C may read the
tensors; whoever calls another function has asked ``is_eligible`` first, or gets wrong memory.

C is called in one of two ways, with the same results to the bit: through ctypes, with an
autograd.Function, or in less time through the node in C++ (:mod:`bgn.kernels.node`), where that was
built. The latter knows plain calls only, and returns None for all others.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from ctypes import addressof, memmove
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn import checks
from bgn.kernels import fallback, node
from bgn.kernels.eligible import (
    PLAIN,
    is_plain,
    is_plain_vector,
    no_transform,
    reaches,
    refuse_freed,
)
from bgn.kernels.fallback import Gradients
from bgn.kernels.library import TYPES, CorePlan, CRenorm, Library, load
from bgn.kernels.plans import Plan
from bgn.moments import Moments
from bgn.renorm import Reference
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
    part, dtype = plan.part, x.dtype
    if not (plan.kept and dtype in _STATISTICS and reaches(x, plan.numel)):
        return False
    if weight is None:
        return bias is None or _is_readable(bias, part.C, dtype)
    return _is_readable(weight, part.C, dtype) and (
        bias is None or (bias.dtype is weight.dtype and is_plain_vector(bias, part.C))
    )


def are_readable(given: Given, x: Tensor, plan: Plan) -> bool:
    """Whether the C code may read given statistics, of x's dtype or of its own."""
    mean, var = given
    size, dtype = plan.part.B * plan.part.G, x.dtype
    return (
        _is_readable(mean, size, dtype)
        and _is_readable(var, size, dtype)
        and not (mean.requires_grad or var.requires_grad)
    )


def _is_comparable(reference: Reference, x: Tensor, plan: Plan) -> bool:
    """Whether the C code may read what a batch is corrected towards."""
    mean, var, part = reference.mean, reference.var, plan.part
    entries, statistics = mean.numel(), _STATISTICS[x.dtype]
    return (
        (entries == part.G or (entries == part.C and part.whole_channels))
        and mean.dtype is var.dtype is statistics
        and is_plain_vector(mean, entries)
        and is_plain_vector(var, entries)
        and not plan.positional
    )


def _is_readable(vector: Tensor, size: int, dtype: torch.dtype) -> bool:
    own = vector.dtype
    return (own is dtype or own is _STATISTICS[dtype]) and is_plain_vector(vector, size)


def _are_writable(running: Running, core: CorePlan) -> bool:
    """Whether the C code may write to the running statistics."""
    mean, var, counter = running.mean, running.var, running.counter
    entries, part = mean.numel(), core.part
    return (
        (entries == part.G or (entries == part.C and part.whole_channels))
        and mean.dtype is var.dtype is core.statistics
        and not (mean.requires_grad or var.requires_grad)
        and not (mean.is_inference() or var.is_inference())
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


def _reference(structure: Any) -> Any:
    return None if structure is None else ctypes.byref(structure)


def _check(code: int) -> None:
    if code == 1:
        raise MemoryError("no memory for the sums of a normalizer")
    if code:
        raise RuntimeError("the C core refused its arguments: a counter of batches below 0?")


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
    reference: Reference | None = None,
    act: Any = None,
) -> tuple[Tensor, Any, Tensor | None]:
    """The output; in memory of C, mean, variance and 1 / standard deviation; corrections.

    ``act`` is what follows, a :class:`CAct`.
    """
    to = _NOWHERE
    direct = running is not None and _are_writable(running, core)
    if running is not None and not direct:
        checks.statistics(x, core.part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
    y = torch.empty_like(x)
    stats = core.Statistics()
    correct, renorm = _corrections(reference, core)
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
            renorm,
            _reference(act),
            core.threads(),
        )
    )
    if running is not None:
        if direct:  # autograd must know
            mean, var, counter = running.mean, running.var, running.counter
            increment_version((mean, var) if counter is None else (mean, var, counter))
        else:
            update(running, core.moments(stats))
    return y, stats, correct


def _corrections(reference: Reference | None, core: CorePlan) -> tuple[Tensor | None, Any]:
    """Memory for the corrections of a batch, (2, B, E), and what C fills it from."""
    if reference is None:
        return None, None
    E, bounds = reference.entries, reference.numbers()
    correct = torch.empty(2, core.part.B, E, dtype=core.statistics, device="cpu")
    addresses = reference.mean.data_ptr(), reference.var.data_ptr()
    r, d = correct[0].data_ptr(), correct[1].data_ptr()
    return correct, ctypes.byref(CRenorm(*addresses, E, *bounds, r, d))


def apply(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    core: CorePlan,
    eps: float,
    given: Given,
    act: Any = None,
) -> tuple[Tensor, Any]:
    """The output and, in memory of C, mean, nothing and 1 / standard deviation."""
    y = torch.empty_like(x)
    stats = core.Statistics()
    mean, var = given
    if mean.dtype is not core.statistics or var.dtype is not core.statistics:
        mean, var = mean.to(core.statistics), var.to(core.statistics)
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
            _reference(act),
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
    needs: tuple[bool, ...],
    affine: torch.dtype,
    frozen: bool,
    correct: Tensor | None = None,
    act: Any = None,
) -> Gradients:
    """The gradients of x, weight and bias that are needed; ``affine`` is the dtype of the last two.

    ``mean`` and ``rstd`` are addresses. ``act`` is what followed: gy is the gradient of its output.
    """
    renorm = None
    if correct is not None:
        r, d = correct[0].data_ptr(), correct[1].data_ptr()
        renorm = ctypes.byref(CRenorm(None, None, correct.shape[2], 1.0, 0.0, r, d))
    gx = torch.empty_like(x) if needs[0] else None
    # the device is named: torch.set_default_device may have set another one
    gw = torch.empty(core.part.C, dtype=affine, device="cpu") if needs[1] else None
    gb = torch.empty(core.part.C, dtype=affine, device="cpu") if needs[2] else None
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
            renorm,
            _reference(act),
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
        reference: Reference | None,
    ) -> Tensor:
        core = core_of(plan)
        if given is None:
            y, ctx.stats, correct = forward(x, weight, bias, core, eps, running, reference)
            ctx.save_for_backward(x, weight, *(() if correct is None else (correct,)))
        else:
            y, ctx.stats = apply(x, weight, bias, core, eps, given)
            ctx.save_for_backward(x, weight, *given)
        ctx.set_materialize_grads(False)
        ctx.core, ctx.eps, ctx.frozen = core, eps, given is not None
        ctx.low = _is_low(bias if weight is None else weight, core)
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None) -> Any:
        if gy is None:
            return (None,) * 8
        x, weight, *given = ctx.saved_tensors
        stats, needs = addressof(ctx.stats), ctx.needs_input_grad[:3]
        found = gradients(
            gy, x, weight, given, ctx.core, stats, ctx.eps, ctx.low, ctx.frozen, needs
        )
        return *found, *[None] * 5


# what Function.apply does beyond this is for torch.func, which never comes here
_normalize: Any = super(torch.autograd.Function, _Normalize).apply


def gradients(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    given: list[Tensor],
    core: CorePlan,
    stats: int,
    eps: float,
    low: bool,
    frozen: bool,
    needs: tuple[bool, ...],
) -> Gradients:
    """The backward pass of a node, from what autograd hands back: the gradients that are needed.

    That may be anything: hooks change what was saved, and gradients may be batched, dual, negated
    or subclasses. ``given`` has the statistics of eval mode, or the corrections of renormalization,
    or nothing. ``stats`` is an address; 0 asks for the definition.
    """
    correct = None
    if given and not frozen:
        (correct,) = given
        given = []
    fallback.check_saved(x, core.dtype, core.shape, "cpu")
    affine = core.dtype if low else core.statistics
    if (
        stats
        and not torch.is_grad_enabled()
        and no_transform()
        and gy.dtype is x.dtype
        and reaches(gy, core.numel)
        and reaches(x, core.numel)
        and (weight is None or (weight.dtype is affine and is_plain_vector(weight, core.part.C)))
        and (correct is None or are_corrections(correct, core))
    ):
        x = x.contiguous(memory_format=core.layout)
        gy = gy.contiguous(memory_format=core.layout)
        rstd = stats + 2 * core.step
        return backward(gy, x, weight, core, stats, rstd, needs, affine, frozen, correct)
    part = None if core.positional else core.part
    return fallback.gradients(gy, x, part, given, correct, weight, eps, affine, needs)


def accepts(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    given: Given | None,
    reference: Reference | None,
) -> bool:
    """Whether the C code may read all tensors of a call."""
    return (
        is_eligible(x, plan, weight, bias)
        and (given is None or are_readable(given, x, plan))
        and (reference is None or _is_comparable(reference, x, plan))
    )


def are_corrections(correct: Tensor, core: CorePlan) -> bool:
    """Whether the C code may read corrections."""
    return (
        correct.dtype is core.statistics
        and correct.dim() == 3
        and correct.shape[:2] == (2, core.part.B)
        and correct.shape[2] in (core.part.G, core.part.C)
        and correct.is_contiguous()
        and is_plain(correct, correct.numel())
    )


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

    None, and nothing is changed, where C may not read a tensor.
    """
    if not plan.kept or plan.dtype not in _STATISTICS:
        return None
    if _run_in_cpp is not None:
        y: Tensor | None = _run_in_cpp(
            plan.node or _node_of(plan), x, weight, bias, eps, running, given, reference, None
        )
        if y is not None:
            return y
    if not accepts(x, plan, weight, bias, given, reference):
        return None
    x = x.contiguous(memory_format=plan.layout)
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        return _normalize(x, weight, bias, plan, eps, running, given, reference)  # type: ignore[no-any-return]
    if given is None:
        return forward(x, weight, bias, core_of(plan), eps, running, reference)[0]
    return apply(x, weight, bias, core_of(plan), eps, given)[0]


_LAYOUTS = {torch.contiguous_format: 0, torch.channels_last: 2, torch.channels_last_3d: 3}


def _node_of(plan: Plan) -> Any:
    """What the node in C++ knows of a plan."""
    assert _cpp is not None
    core, part = core_of(plan), plan.part
    plan.node = _cpp.Core(
        core,
        core.pointer,
        tuple(plan.shape),
        TYPES[plan.dtype],
        TYPES[core.statistics],
        _LAYOUTS[plan.layout],
        part.C,
        part.B,
        part.G,
        core.step,
        part.whole_channels,
        core.positional,
        core.serial,
    )
    return plan.node


def _activated_gradients(*arguments: Any) -> Any:
    """See :func:`bgn.kernels.activated.node_gradients`, in a module that imports this one."""
    from bgn.kernels import activated

    return activated.node_gradients(*arguments)


def _connect(module: Any) -> Any:
    """Tell the node in C++ where the C core and ``gradients`` are; its function ``run``."""
    entries = library.forward, library.apply, library.backward
    addresses = (ctypes.cast(entry, ctypes.c_void_p).value for entry in entries)
    module.setup(*addresses, PLAIN, gradients, _activated_gradients)
    return module.run


_cpp: Any = None
node_choice = node.Choice("none", "the C core is missing")
if available():
    _cpp, node_choice = node.choose(os.environ.get(node.VARIABLE, ""))
_run_in_cpp = None if _cpp is None else _connect(_cpp)


@contextlib.contextmanager
def use_node(name: str) -> Iterator[None]:
    """Within the context, another node: python or cpp; for tests and benchmarks, not threads."""
    global _cpp, _run_in_cpp
    before, chosen = _run_in_cpp, None
    if name == "cpp":
        _cpp = _cpp or node.choose(name)[0]
        chosen = _connect(_cpp)
    _run_in_cpp = chosen
    try:
        yield
    finally:
        _run_in_cpp = before


@contextlib.contextmanager
def use_capability(most: str) -> Iterator[str]:
    """Within the context, instruction sets up to ``most``; for tests and benchmarks."""
    before = library.capability
    try:
        yield library.use(most)
    finally:
        library.use(before)


def moments(x: Tensor, plan: Plan) -> Moments:
    """See :func:`bgn.kernels.definition.moments`."""
    core = core_of(plan)
    x = x.contiguous(memory_format=plan.layout)
    stats = core.Statistics()
    mean = addressof(stats)
    _check(library.moments(core.pointer, x.data_ptr(), mean, mean + core.step, core.threads()))
    return core.moments(stats)


def track(x: Tensor, plan: Plan, running: Running) -> bool:
    """Move running statistics towards those of x; False, and nothing moves, if C may not."""
    core = core_of(plan)
    if not _are_writable(running, core):
        return False
    x = x.contiguous(memory_format=plan.layout)
    mean, var, counter = running.mean, running.var, running.counter
    to = mean.data_ptr(), var.data_ptr(), mean.numel(), running.weight_of_next(), _pointer(counter)
    stats, nothing = core.Statistics(), (None, None, None, False, 1.0)  # y, weight, bias, low, eps
    threads = core.threads()
    _check(library.forward(core.pointer, x.data_ptr(), *nothing, stats, *to, None, None, threads))
    increment_version((mean, var) if counter is None else (mean, var, counter))
    return True


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
    sums = torch.empty(2, core.part.B, core.part.G, dtype=torch.float64, device="cpu")
    gw, gb = torch.empty(2, core.part.C, dtype=affine, device="cpu")
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

"""The GPU core: the four sweeps in Triton, for CUDA and ROCm.

:mod:`~bgn.kernels.triton.launch` decides how a shape is cut into programs, in plain numbers.
:mod:`~bgn.kernels.triton.sweeps`, ``merge``, ``fused`` and ``positional`` are the kernels, and
:mod:`~bgn.kernels.triton.calls` calls them. This module asks whether they may read the tensors, and
is what autograd sees. Triton is imported when the first such tensor comes. If it cannot be
imported or cannot compile, that is said once, and other backends run.

No kernel waits for the device, adds floats atomically, or allocates in another way than torch's, so
results have the same bits every time, and calls can be recorded in CUDA graphs.

``TRITON_INTERPRET=1``, set before Python starts, runs the kernels on the CPU, for tests.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import warnings
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn import checks
from bgn.kernels import definition, fallback
from bgn.kernels.eligible import (
    is_plain,
    is_plain_vector,
    no_transform,
    plain_keys,
    reaches,
    refuse_freed,
)
from bgn.kernels.fallback import Gradients
from bgn.kernels.plans import Plan
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton.launch import Launch, fits_positional
from bgn.moments import Moments
from bgn.renorm import Reference
from bgn.running import Running, update

Given = tuple[Tensor, Tensor]  # mean and variance
TYPES = (torch.float32, torch.bfloat16, torch.float16)
interpreted = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ("cpu",) if interpreted else ("cuda",)  # that is what torch calls ROCm, too
LARGEST_GRID = (1 << 31) - 1
_failure = ""


def available() -> bool:
    """Whether triton is installed and this torch could run it."""
    runs = interpreted or torch.version.cuda is not None or torch.version.hip is not None
    return runs and not _failure and importlib.util.find_spec("triton") is not None


def why_not() -> str:
    """Why the kernels do not run."""
    if _failure:
        return _failure
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed (pip install 'batch-group-norm[gpu]')"
    return "" if available() else "this torch has no GPU"


def version() -> str:
    """The version of triton that is installed."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:  # ROCm's has another name
        return "of unknown version"


def failed(error: BaseException) -> None:
    """Say once that triton does not work here, and do not try again."""
    global _failure
    if _failure:
        return
    lines = str(error).strip().splitlines() or [""]
    _failure = f"{type(error).__name__}: {lines[0]}"
    warnings.warn(
        f"triton does not work here ({_failure}): bgn uses torch's own kernels on GPUs",
        RuntimeWarning,
        stacklevel=3,
    )


def launch_of(plan: Plan, processors: int) -> Launch:
    """The launch plan of a shape on a device with so many multiprocessors, made on first use."""
    found: Launch | None = plan.launches.get(processors)
    if found is None:
        last = plan.layout is not torch.contiguous_format
        found = launches.launch(plan.part, last, plan.dtype.itemsize, processors)
        plan.launches[processors] = found
    return found


_loaded: Any = None


def kernels() -> Any:
    """The module that calls the kernels, or None where triton does not work."""
    global _loaded
    if _loaded is None and not _failure:
        try:
            from bgn.kernels.triton import calls

            _loaded = calls
        except Exception as error:  # whatever an installation may be broken by
            failed(error)
    return None if _failure else _loaded


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernels may read x, weight and bias."""
    return (
        plan.kept
        and not plan.empty
        and x.dtype in TYPES
        and x.device.type in DEVICES
        and reaches(x, plan.numel, plain_keys(x.device.type))
        and _is_parameter(weight, plan, x)
        and _is_parameter(bias, plan, x)
        and (weight is None or bias is None or weight.dtype is bias.dtype)
        and _fits(plan)
        and kernels() is not None
    )


def is_readable_as(other: Tensor | None, x: Tensor, plan: Plan) -> bool:
    """Whether the kernels may read another tensor as they read x; None is no tensor."""
    return other is None or (
        other.dtype is x.dtype
        and other.shape == x.shape
        and other.device == x.device
        and reaches(other, plan.numel, plain_keys(x.device.type))
    )


def _fits(plan: Plan) -> bool:
    """Whether the grids are not too large; each tile has elements."""
    return plan.numel // 16 + plan.part.B < LARGEST_GRID


def _is_parameter(vector: Tensor | None, plan: Plan, x: Tensor) -> bool:
    return vector is None or _is_readable(vector, plan.part.C, x)


def _is_readable(vector: Tensor, size: int, x: Tensor) -> bool:
    return (
        vector.dtype in (x.dtype, torch.float32)
        and vector.device == x.device
        and is_plain_vector(vector, size, plain_keys(x.device.type))
    )


def are_readable(given: Given, x: Tensor, plan: Plan) -> bool:
    """Whether the kernels may read given statistics."""
    size = plan.part.B * plan.part.G
    return all(_is_readable(t, size, x) and not t.requires_grad for t in given)


def _are_entries(mean: Tensor, var: Tensor, x: Tensor, plan: Plan) -> bool:
    """Whether there is an entry per group, or per channel where groups are whole channels."""
    part, size = plan.part, mean.numel()
    fits = size == part.G or (size == part.C and part.whole_channels)
    return fits and all(_is_readable(t, size, x) and not t.requires_grad for t in (mean, var))


def _are_writable(running: Running, x: Tensor, plan: Plan) -> bool:
    """Whether the kernels may move the running statistics."""
    counter, keys = running.counter, plain_keys(x.device.type)
    return (
        _are_entries(running.mean, running.var, x, plan)
        and not (running.mean.is_inference() or running.var.is_inference())
        and (running.momentum is not None or counter is not None)
        and (
            counter is None
            or (
                counter.dtype is torch.int64
                and counter.device == x.device
                and is_plain(counter, 1, keys)
                and not counter.is_inference()
            )
        )
    )


def _is_comparable(reference: Reference, x: Tensor, plan: Plan, running: Running | None) -> bool:
    """Whether the kernels may read what a batch is corrected towards."""
    share, mean = reference.share, reference.mean
    if isinstance(share, Tensor) and not (
        share.device == x.device
        and share.dtype.is_floating_point
        and is_plain(share, 1, plain_keys(x.device.type))
    ):
        return False
    same = running is None or running.mean.numel() == mean.numel()
    return same and mean.dtype is torch.float32 and _are_entries(mean, reference.var, x, plan)


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
    reference: Reference | None = None,
) -> tuple[Tensor, Any]:
    """The output, and the statistics that the backward pass wants."""
    calls = kernels()
    moved = running
    if running is not None and not _are_writable(running, x, plan):
        checks.statistics(x, plan.part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
        moved = None  # by torch's operators, below
    fused = calls.launch_of(plan, x.device).fused is not None
    several = plan.part.B > 1 and moved is not None  # blocks, whose average is wanted
    if fused and not several and (reference is None or reference.entries == plan.part.G):
        y, stats = calls.forward_fused(x, plan, weight, bias, eps, moved, reference)
    else:
        stats = calls.statistics(x, plan, eps, moved, reference)
        try:
            y = calls.write(x, plan, stats, weight, bias)
        except Exception as error:  # running statistics have moved: this batch must not again
            failed(error)
            of = stats.mean, stats.rstd
            y = definition.write(x, plan.part, *of, weight, bias, stats.correct)
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
        and all(_is_readable(t, plan.part.G, x) for t in given)
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
    if reference is not None and not _is_comparable(reference, x, plan, running):
        return None
    if plan.positional and not _fits_positional(x, plan):
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
        if not _is_of_triton(error):
            raise
        failed(error)  # before running statistics moved
        return None


def _is_of_triton(error: BaseException) -> bool:
    """Whether an error comes from triton and its tools, and not from arguments or memory."""
    names = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return "triton" in names


def _fits_positional(x: Tensor, plan: Plan) -> bool:
    last = plan.layout is not torch.contiguous_format or plan.part.P == 1
    return fits_positional(plan.part.C, last, x.dtype.itemsize)


def moments(x: Tensor, plan: Plan) -> Moments:
    """See :func:`bgn.kernels.definition.moments`."""
    calls = kernels()
    x = x.contiguous(memory_format=plan.layout)
    var = torch.empty(plan.part.B, plan.part.G, dtype=torch.float32, device=x.device)
    stats = calls.statistics(x, plan, 1e-5, var=var)
    count = definition.count(plan.part, var)
    return Moments(count, stats.mean, var * count)


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.write`; with a residual added, and a ReLU, if asked for."""
    calls = kernels()
    x = x.contiguous(memory_format=plan.layout)
    if residual is not None:
        residual = residual.contiguous(memory_format=plan.layout)
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    y: Tensor = calls.write(x, plan, stats, weight, bias, 0.0, relu, residual)
    return y


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`bgn.kernels.definition.products`."""
    calls = kernels()
    gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    needs = True, True, True
    found: tuple[Tensor, Tensor, Tensor] = calls.products(
        gy, x, plan, weight, stats, 0.0, needs, torch.float32, divide=False
    )
    return found


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
    calls = kernels()
    gy, x = (t.contiguous(memory_format=plan.layout) for t in (gy, x))
    stats = calls.Statistics(mean.contiguous(), rstd.contiguous())
    means = None if means is None else means.float().contiguous()
    gx: Tensor = calls.write_gradient(gy, x, plan, weight, stats, means)
    return gx

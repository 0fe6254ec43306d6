"""Every normalizer on torch's own fused kernels, on any device that has them.

Where no kernel of ours runs, torch's batch_norm kernels do the four sweeps
(:mod:`bgn.kernels.batch_norm`), on a view of x in which every run of memory with one channel and
one group counts as a channel (:mod:`bgn.kernels.pieces`). Where every statistic is that of one such
piece (G = C, or G a multiple of C), the same kernels in training mode do a whole pass. The backward
pass keeps x and two numbers per statistic. No number goes to Python, so nothing waits for the
device.

Only plain tensors come here (:mod:`bgn.kernels.eligible`), and no compiler: it gets the definition,
which it fuses itself. ``run`` asks; whoever calls another function has asked ``is_eligible`` first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn import checks
from bgn.kernels import batch_norm, definition, fallback
from bgn.kernels.batch_norm import WIDE
from bgn.kernels.eligible import (
    DEVICES,
    is_plain_vector,
    no_transform,
    plain_keys,
    reaches,
    refuse_freed,
)
from bgn.kernels.fallback import Gradients
from bgn.kernels.pieces import Pieces, pieces_of
from bgn.kernels.plans import Plan
from bgn.moments import Moments
from bgn.running import Running, update

Statistics = tuple[Tensor, Tensor]


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether these are plain tensors, and batch_norm's kernels a gain for the shape."""
    if not plan.kept or plan.empty or plan.positional:
        return False
    if pieces_of(plan).size < 2:  # as many coefficients as elements
        return False
    if x.device.type == "mps" and (  # whose kernels take one dtype and not this layout
        x.dtype is not torch.float32 or plan.layout is torch.channels_last_3d
    ):
        return False
    return _are_plain(x, plan, weight, bias)


def _are_plain(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    return (
        x.dtype in WIDE
        and x.device.type in DEVICES
        and reaches(x, plan.numel, plain_keys(x.device.type))
        and _is_readable(weight, plan.part.C, x)
        and _is_readable(bias, plan.part.C, x)
        and (weight is None or bias is None or weight.dtype is bias.dtype)
    )


def are_readable(stats: Statistics, x: Tensor, plan: Plan) -> bool:
    """Whether given statistics are plain vectors without a derivative."""
    size = plan.part.B * plan.part.G
    return all(_is_readable(t, size, x) and not t.requires_grad for t in stats)


def _is_readable(vector: Tensor | None, size: int, x: Tensor) -> bool:
    return vector is None or (
        (vector.dtype is x.dtype or vector.dtype is WIDE[x.dtype])
        and vector.device == x.device
        and is_plain_vector(vector, size, plain_keys(x.device.type))
    )


def forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    plan: Plan,
    eps: float,
    running: Running | None,
) -> tuple[Tensor, Statistics]:
    """The output, and the statistics that the backward pass wants.

    They are mean and rstd of every piece if batch_norm computed them, else mean and variance plus
    eps, (B, G) each.
    """
    pieces, wide = pieces_of(plan), WIDE[x.dtype]
    if running is not None:
        checks.statistics(x, plan.part, running.mean, running.var, moving=True)
        refuse_freed(running_mean=running.mean, running_var=running.var)
    x = pieces.view(x)
    w, b = pieces.spread_channels(weight, bias, wide)
    if pieces.direct and (running is None or _is_moved_by_torch(running, pieces, x)):
        y, mean, rstd = batch_norm.train(x, w, b, running, eps)
        if running is not None:
            increment_version((running.mean, running.var))  # autograd must know
            if running.counter is not None:
                running.counter.add_(1)
        return pieces.restore(y), (mean, rstd)
    if running is None:
        mean, var = batch_norm.mean_var(x, pieces)
        var = var + eps
    else:
        mean, unbiased = batch_norm.mean_var(x, pieces, correction=1)
        _move(running, pieces, mean, unbiased)
        if pieces.equal:  # eps + var, in one operator
            var = torch.rsub(unbiased, eps, alpha=-1 / batch_norm.bessel(pieces, unbiased))
        else:
            var = unbiased / batch_norm.bessel(pieces, unbiased) + eps
    of_mean, of_var = pieces.spread_groups(mean, var)
    return pieces.restore(batch_norm.write(x, of_mean, of_var, w, b, 0.0)), (mean, var)


def _is_moved_by_torch(running: Running, pieces: Pieces, x: Tensor) -> bool:
    """Whether batch_norm in training mode may move the running statistics, one per piece."""
    return (
        running.momentum is not None
        and pieces.rows == 1
        and running.mean.dtype is running.var.dtype is WIDE[x.dtype]
        and _is_readable(running.mean, pieces.K, x)
        and _is_readable(running.var, pieces.K, x)
        and not (running.mean.is_inference() or running.var.is_inference())
    )


@torch.no_grad()
def _move(running: Running, pieces: Pieces, mean: Tensor, unbiased: Tensor) -> None:
    """As :func:`bgn.running.update`, in two operators for the usual dtype, momentum and shape."""
    kept = [running.mean, running.var]
    if running.momentum is None or not all(_is_readable(t, t.numel(), mean) for t in kept):
        count = definition.count(pieces.part, mean)
        update(running, Moments(count, mean, unbiased * (count - 1)))
        return
    batch = [t[0] if len(t) == 1 else t.mean(0) for t in (mean, unbiased)]  # (B, G) -> (G,)
    if len(kept[0]) != len(batch[0]):  # (G,) -> (C,)
        batch = [t.repeat_interleave(len(kept[0]) // len(t)) for t in batch]
    if running.momentum < 0.5:
        torch._foreach_lerp_(kept, batch, running.momentum)
    else:  # lerp computes batch - (batch - kept) * (1 - momentum) then: infinity would be NaN
        torch._foreach_mul_(kept, 1 - running.momentum)
        torch._foreach_add_(kept, batch, alpha=running.momentum)
    if running.counter is not None:
        running.counter.add_(1)


def apply(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, plan: Plan, eps: float, given: Statistics
) -> Tensor:
    """The output with given statistics, (G,) each."""
    pieces, wide = pieces_of(plan), WIDE[x.dtype]
    mean, var = pieces.spread_groups(*(t.to(wide)[None] for t in given))
    w, b = pieces.spread_channels(weight, bias, wide)
    return pieces.restore(batch_norm.write(pieces.view(x), mean, var, w, b, eps))


def backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    stats: Statistics,
    needs: tuple[bool, ...],
) -> Gradients:
    """The gradients of x, weight and bias that are needed; ``stats`` are what ``forward`` kept."""
    pieces = pieces_of(plan)
    gy, x = pieces.view(gy), pieces.view(x)
    if stats[0].dim() == 1:  # batch_norm computed them
        return _of_pieces(gy, x, weight, pieces, stats[0], None, stats[1], needs)
    of = batch_norm.coefficients(pieces, weight, *stats)
    sums = batch_norm.products(gy, x, of)
    gx = None
    if needs[0]:
        # rstd is the same in a group: these are rstd times the sums of g and of g * xhat
        per_group = pieces.sum_groups(torch.stack(sums) * of.scale)
        shift, slope = pieces.spread_scaled(per_group, -1 / pieces.count(per_group))
        gx = pieces.restore(batch_norm.write_gradient(gy, x, of, shift, slope))
    of_gy, of_product = sums
    return (
        gx,
        pieces.sum_channels(of_product) if needs[1] else None,
        pieces.sum_channels(of_gy) if needs[2] else None,
    )


def backward_frozen(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    given: Statistics,
    eps: float,
    needs: tuple[bool, ...],
) -> Gradients:
    """The same as ``backward``, with given statistics, which do not depend on x."""
    pieces, wide = pieces_of(plan), WIDE[x.dtype]
    mean, var = pieces.spread_groups(*(t.to(wide)[None] for t in given))
    var = var + eps
    gy, x = pieces.view(gy), pieces.view(x)
    return _of_pieces(gy, x, weight, pieces, mean, var, torch.rsqrt(var), needs)


def _of_pieces(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    pieces: Pieces,
    mean: Tensor,
    var: Tensor | None,
    rstd: Tensor,
    needs: tuple[bool, ...],
) -> Gradients:
    """The gradients where each piece's depends on that piece alone; see batch_norm.gradients."""
    w, _ = pieces.spread_channels(weight, None, WIDE[x.dtype])
    gx, gw, gb = batch_norm.gradients(gy, x, w, mean, var, rstd, (needs[0], needs[1] or needs[2]))
    return (
        pieces.restore(gx) if needs[0] else None,
        pieces.sum_channels(gw) if needs[1] else None,
        pieces.sum_channels(gb) if needs[2] else None,
    )


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
        given: Statistics | None,
    ) -> Tensor:
        if given is None:
            y, ctx.stats = forward(x, weight, bias, plan, eps, running)
            ctx.save_for_backward(x, weight)
        else:
            y, ctx.stats = apply(x, weight, bias, plan, eps, given), None
            ctx.save_for_backward(x, weight, *given)
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.eps, ctx.device = plan, eps, x.device.type
        parameter = bias if weight is None else weight
        ctx.affine = WIDE[x.dtype] if parameter is None else parameter.dtype
        return y

    @staticmethod
    def backward(ctx: Any, gy: Tensor | None) -> Any:
        if gy is None:
            return (None,) * 7
        x, weight, *given = ctx.saved_tensors
        return *_gradients(ctx, gy, x, weight, given), None, None, None, None


def _gradients(
    ctx: Any, gy: Tensor, x: Tensor, weight: Tensor | None, given: list[Tensor]
) -> Gradients:
    """The gradients that are needed, by the definition if what autograd hands back is unusual."""
    plan, affine, needs = ctx.plan, ctx.affine, ctx.needs_input_grad[:3]
    fallback.check_saved(x, plan.dtype, plan.shape, ctx.device)
    if not (
        not torch.is_grad_enabled()
        and no_transform()
        and gy.dtype is x.dtype
        and gy.shape == x.shape
        and gy.device == x.device
        and reaches(gy, plan.numel, plain_keys(x.device.type))
        and is_eligible(x, plan, weight, None)
        and (weight is None or weight.dtype is affine)
        and all(_is_readable(t, plan.part.G, x) for t in given)
    ):
        frozen = given if ctx.stats is None else None
        return fallback.gradients(gy, x, plan.part, frozen, None, weight, ctx.eps, affine, needs)
    if ctx.stats is None:
        mean, var = given
        gx, gw, gb = backward_frozen(gy, x, weight, plan, (mean, var), ctx.eps, needs)
    else:
        gx, gw, gb = backward(gy, x, weight, plan, ctx.stats, needs)
    return gx, None if gw is None else gw.to(affine), None if gb is None else gb.to(affine)


# what Function.apply does beyond this is for torch.func, which never comes here
_normalize: Any = super(torch.autograd.Function, _Normalize).apply


def run(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: Statistics | None,
) -> Tensor | None:
    """Normalize, with a node of autograd where a derivative may be asked for.

    None, and nothing is changed, where a tensor is not eligible.
    """
    if not is_eligible(x, plan, weight, bias):
        return None
    if given is not None and not are_readable(given, x, plan):
        return None
    if torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        return _normalize(x, weight, bias, plan, eps, running, given)  # type: ignore[no-any-return]
    if given is None:
        return forward(x, weight, bias, plan, eps, running)[0]
    return apply(x, weight, bias, plan, eps, given)


def positional(
    x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor | None:
    """PN: torch's layer_norm over the channels, with torch's derivatives; None as in ``run``."""
    if not plan.kept or not _are_plain(x, plan, weight, bias):
        return None
    if any(t is not None and t.dtype is not x.dtype for t in (weight, bias)):
        return None  # not every device has a layer_norm of two dtypes
    if x.device.type == "cpu" and x.dtype is not WIDE[x.dtype] and (weight, bias) != (None, None):
        return None  # the CPU's sums the gradients of weight and bias in x's dtype
    y = torch.nn.functional.layer_norm(x.movedim(1, -1), x.shape[1:2], weight, bias, eps)
    y = y.to(x.dtype)  # on some devices autocast makes it float32
    return y.movedim(-1, 1).contiguous(memory_format=plan.layout)


def moments(x: Tensor, plan: Plan) -> Moments:
    """See :func:`bgn.kernels.definition.moments`."""
    pieces = pieces_of(plan)
    mean, var = batch_norm.mean_var(pieces.view(x), pieces)
    count = definition.count(plan.part, mean)
    return Moments(count, mean, var * count)


def write(
    x: Tensor,
    plan: Plan,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.write`."""
    pieces = pieces_of(plan)
    mean, var = pieces.spread_groups(mean, rstd.pow(-2))
    w, b = pieces.spread_channels(weight, bias, WIDE[x.dtype])
    return pieces.restore(batch_norm.write(pieces.view(x), mean, var, w, b, 0.0))


def products(
    gy: Tensor, x: Tensor, plan: Plan, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """See :func:`bgn.kernels.definition.products`."""
    pieces = pieces_of(plan)
    of = batch_norm.coefficients(pieces, None, mean, rstd.pow(-2))
    sums = batch_norm.products(pieces.view(gy), pieces.view(x), of)
    gb, gw = (pieces.sum_channels(t) for t in sums)
    per_piece = torch.stack(sums)
    w, _ = pieces.spread_channels(weight, None, mean.dtype)
    if w is not None:
        per_piece = per_piece * w
    return pieces.sum_groups(per_piece), gw, gb


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
    pieces = pieces_of(plan)
    of = batch_norm.coefficients(pieces, weight, mean, rstd.pow(-2))
    gy, x = pieces.view(gy), pieces.view(x)
    if means is None:
        means = mean.new_zeros(2, *mean.shape)
    shift, slope = pieces.spread_scaled(means.to(mean.dtype) * rstd, -1.0)
    return pieces.restore(batch_norm.write_gradient(gy, x, of, shift, slope))

"""Normalization sweep by sweep, for what changes the numbers between them.

Those are statistics of all processes (:mod:`bgn.sync`), renormalization where the C core does not
run, and a mean per channel beside a variance per group. Two sweeps forward, two backward, by the
fastest backend for the tensors; between them a few numbers per group or channel.

With z = xhat * r + d, where r = 1 and d = 0 without renormalization, y = z * weight + bias: the
sweeps see the statistics of z. g = r * weight * gy is the gradient of xhat, and

    gx = rstd * (g - mean(g) - xhat * mean(g * xhat))

where the first mean is over the elements that share a mean and the second over those that share a
variance.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn.kernels import definition, fallback, sweeps
from bgn.kernels.eligible import no_transform
from bgn.kernels.plans import Plan, channel_plan
from bgn.moments import Moments
from bgn.partition import Partition
from bgn.renorm import Reference, corrections
from bgn.running import Running, update


class Alone:
    """Statistics of this process: nothing is gathered."""

    def moments(self, own: Moments, plan: Plan) -> Moments | None:  # noqa: ARG002
        """The moments of all samples, from those of the samples here; None if there are none."""
        return own

    def sums(self, own: Tensor) -> Tensor:
        """Sums over all samples, from those over the samples here."""
        return own


def is_eligible(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    reference: Reference | None,
) -> bool:
    """Whether a kernel, and not the definition, would run the sweeps."""
    if x.dim() < 2 or plan.empty or not no_transform():
        return False
    fine = _fine(x, plan, reference)
    return fine.kept and sweeps.kernel_for(x, fine, weight, bias) is not None


def _fine(x: Tensor, plan: Plan, reference: Reference | None) -> Plan:
    """The plan of the sweeps: with a group per channel where statistics differ between channels."""
    part = plan.part
    by_channel = reference is not None and reference.entries != part.G
    return channel_plan(x, plan) if part.channel_means or by_channel else plan


def normalize(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    reference: Reference | None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.normalize`."""
    apply: Any = Normalize.apply
    y: Tensor = apply(x, weight, bias, plan, eps, running, reference, Alone())
    return y


class Normalize(torch.autograd.Function):
    """The definition, with moments and sums gathered by ``samples``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        plan: Plan,
        eps: float,
        running: Running | None,
        reference: Reference | None,
        samples: Any,
    ) -> Tensor:
        part, fine = plan.part, _fine(x, plan, reference)
        own = _no_moments(x, fine) if plan.empty else sweeps.moments(x, fine)
        stats = samples.moments(own, fine)
        if stats is None:  # nothing moves, and gradients are zero
            running, stats = None, Moments(torch.ones_like(own.mean[0]), own.mean, own.M2)
        if fine is not plan:
            stats = definition.pool_channels(stats, part)
        correct = None if reference is None else corrections(reference, stats, part, eps)
        if running is not None:
            update(running, stats)
        rstd = torch.rsqrt(stats.var + eps)
        count = stats.count.expand(part.G)
        ctx.save_for_backward(x, weight, count, stats.mean, rstd, correct)
        ctx.plan, ctx.fine, ctx.eps, ctx.samples = plan, fine, eps, samples
        ctx.affine = None if bias is None else bias.dtype
        if plan.empty:
            return torch.empty_like(x)
        mean, rstd = _of_z(part, fine.part.G, stats.mean, rstd, correct)
        return sweeps.write(x, fine, mean, rstd, weight, bias)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight, count, mean, rstd, correct = ctx.saved_tensors
        plan, fine, needs = ctx.plan, ctx.fine, ctx.needs_input_grad[:3]
        part, F = plan.part, fine.part.G
        alone = isinstance(ctx.samples, Alone)
        if alone and (torch.is_grad_enabled() or not no_transform()):
            affine = weight.dtype if weight is not None else ctx.affine or mean.dtype
            found = fallback.gradients(
                gy, x, part, None, correct, weight, ctx.eps, affine, tuple(needs)
            )
            return *found, *[None] * 5
        own_mean, own_rstd = _of_z(part, F, mean, rstd, correct)
        if plan.empty:
            sums = torch.zeros(2, part.B, F, dtype=mean.dtype, device=x.device)
            gw = gb = torch.zeros(part.C, dtype=mean.dtype, device=x.device)
        else:
            sums, gw, gb = sweeps.products(gy, x, fine, weight, own_mean, own_rstd)
        gx = None
        if needs[0]:
            sums = ctx.samples.sums(sums.to(mean.dtype))
            if plan.empty:
                gx = torch.zeros_like(x)
            else:
                means = _means(sums, part, F, count, correct)
                gx = sweeps.write_gradient(gy, x, fine, weight, own_mean, own_rstd, means)
        return (
            gx,
            gw.to(weight.dtype) if needs[1] else None,
            gb.to(ctx.affine) if needs[2] else None,
            *[None] * 5,
        )


def _no_moments(x: Tensor, fine: Plan) -> Moments:
    """The moments of no samples."""
    wide = definition.wide_dtype(x)
    zeros = torch.zeros(fine.part.B, fine.part.G, dtype=wide, device=x.device)
    return Moments(zeros[0], zeros, zeros)


def _spread(stat: Tensor, part: Partition, F: int) -> Tensor:
    """A (..., G) or (..., C) statistic for the F groups of the sweeps."""
    return stat if stat.shape[-1] == F else stat[..., part.group_of_unit(stat.device)]


def _of_z(
    part: Partition, F: int, mean: Tensor, rstd: Tensor, correct: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The mean and 1 / standard deviation for which (x - mean) * rstd is z, (B, F) each."""
    mean, rstd = _spread(mean, part, F), _spread(rstd, part, F)
    if correct is None:
        return mean.contiguous(), rstd.contiguous()
    r, d = _spread(correct, part, F)
    return mean - d / (rstd * r), rstd * r


def _means(sums: Tensor, part: Partition, F: int, count: Tensor, correct: Tensor | None) -> Tensor:
    """What write_gradient subtracts, (2, B, F), from the sums of weight * gy and weight * gy * z.

    It writes r * rstd * (weight * gy - means[0] - z * means[1]).
    """
    s, q = sums
    r = d = None
    if correct is not None:
        r, d = _spread(correct, part, F)
        s, q = s * r, q - s * d  # of g and g * xhat: (z - d) / r is xhat
    if part.G != F:
        q = definition.sum_groups(q, part)
        if not part.channel_means:
            s = definition.sum_groups(s, part)
    of_mean = count
    if part.channel_means:  # groups have equal channels
        of_mean = (count * (part.G / F))[part.group_of_unit(count.device)]
    first = _spread(s / of_mean, part, F)
    second = _spread(q / count, part, F)
    if r is None or d is None:
        return torch.stack([first, second])
    second = second / r.square()
    return torch.stack([first / r - d * second, second])

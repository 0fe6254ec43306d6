"""Statistics across processes: the batch of all workers normalized as one.

Each process sends the count, mean and M2 of its own samples, in one collective between the two
sweeps of the forward pass, and two sums per group, in one between those of the backward pass;
nothing of x's size. Samples may be spread unevenly, and a process may have none, as long as it
takes part in both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from bgn import checks, kernels
from bgn.kernels import Plan, definition
from bgn.layers import GeneralBatchGroupNorm2d, _BatchWideNorm
from bgn.moments import Moments, merged
from bgn.running import Running, update


class _Synchronized(_BatchWideNorm):
    """In training with several processes, statistics over all of them; else as without sync."""

    process_group: Any = None

    def forward(self, input: Tensor) -> Tensor:
        several = dist.is_available() and dist.is_initialized()
        if not (self.training and several and dist.get_world_size(self.process_group) > 1):
            alone: Tensor = super().forward(input)
            return alone
        # collectives in a graph are torch's affair; asked for here, as it imports a lot
        if torch.compiler.is_compiling():
            disable: Any = torch.compiler.disable
            broken: Tensor = disable(self._across)(input)
            return broken
        return self._across(input)

    def _across(self, input: Tensor) -> Tensor:
        checks.dims(input.shape, self.accepted_dims, type(self).__name__)
        checks.channels(input.shape, "num_features", self.num_features)
        checks.eps(self.eps, training=True)
        checks.momentum(self.momentum)
        weight, bias, mean, var, counter = self._tensors()
        checks.affine(input, self.num_features, weight, bias)
        plan = kernels.plan(self.cut, input, self.num_groups)
        running = self._running(mean, var, counter)
        if running is not None:
            checks.statistics(input, plan.part, mean, var, moving=True)
        apply: Any = _Normalize.apply
        output: Tensor = apply(input, weight, bias, plan, self.eps, running, self.process_group)
        return output


class SyncBatchGroupNorm(_Synchronized):
    """:class:`BatchGroupNorm2d` (or 1d, 3d) with statistics over the samples of all processes.

    With ``num_groups == num_features`` it is a synchronized BatchNorm that runs on the CPU too.
    ``process_group`` is that of ``torch.distributed``; None is all processes. In eval mode, without
    ``torch.distributed`` or with a single process it does what the layer without "Sync" does. All
    processes take part in every forward and backward, those without samples too.

    >>> SyncBatchGroupNorm(64, num_groups=8)(torch.randn(2, 64, 7, 7)).shape
    torch.Size([2, 64, 7, 7])
    """

    accepted_dims = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        num_groups: int,
        *args: Any,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        # not "auto": processes might decide differently
        num_groups = checks.positive_int("num_groups", num_groups)
        if options.get("batch_blocks", 1) != 1:
            raise ValueError(
                f"batch_blocks={options['batch_blocks']}: blocks across processes are not"
                " supported; expected 1"
            )
        super().__init__(num_features, num_groups, *args, **options)
        self.process_group = process_group


class SyncGeneralBatchGroupNorm2d(_Synchronized, GeneralBatchGroupNorm2d):
    """:class:`GeneralBatchGroupNorm2d` with one block, the samples of all processes.

    See :class:`SyncBatchGroupNorm`.
    """

    def __init__(
        self,
        num_features: int,
        num_groups: int = 32,
        *args: Any,
        process_group: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(num_features, num_groups, 1, *args, **options)
        self.process_group = process_group


class _Normalize(torch.autograd.Function):
    """As the definition, but statistics and their gradients are those of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        plan: Plan,
        eps: float,
        running: Running | None,
        group: Any,
    ) -> Tensor:
        stats = _gathered(x, plan, group)
        # only then may there be too few in all: others need not wait for the counts
        if plan.smallest_count < 2:
            least = int(stats.count.min())
            if least == 1:
                raise ValueError(
                    f"inputs of shape {tuple(x.shape)} here, with num_groups={plan.part.G}, leave"
                    " 1 value per statistic over all processes; expected more than 1: a larger"
                    " batch, a smaller num_groups, or eval()"
                )
            if least == 0:  # nobody has samples: nothing moves, and gradients are zero
                running, zeros = None, torch.zeros_like(stats.mean)
                stats = Moments(stats.count + 1, zeros, zeros)
        if running is not None:
            update(running, Moments(stats.count, stats.mean[None], stats.M2[None]))
        mean, rstd = stats.mean[None], torch.rsqrt(stats.var + eps)[None]  # (1, G)
        ctx.save_for_backward(x, weight, stats.count, mean, rstd)
        ctx.plan, ctx.group = plan, group
        ctx.affine = None if bias is None else bias.dtype
        if plan.empty:
            return torch.empty_like(x)
        return kernels.write(x, plan, mean, rstd, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, weight, count, mean, rstd = ctx.saved_tensors
        plan: Plan = ctx.plan
        if plan.empty:
            sums = torch.zeros(2, 1, plan.part.G, dtype=mean.dtype, device=x.device)
            gw = gb = torch.zeros(plan.part.C, dtype=mean.dtype, device=x.device)
        else:
            sums, gw, gb = kernels.products(gy, x, plan, weight, mean, rstd)
        need_x, need_weight, need_bias = ctx.needs_input_grad[:3]
        gx = None
        if need_x:
            sums = sums.to(mean.dtype)
            dist.all_reduce(sums, group=ctx.group)
            if plan.empty:
                gx = torch.zeros_like(x)
            else:
                means = sums / count
                gx = kernels.write_gradient(gy, x, plan, weight, mean, rstd, means)
        return (
            gx,
            gw.to(weight.dtype) if need_weight else None,
            gb.to(ctx.affine) if need_bias else None,
            *[None] * 4,
        )


def _gathered(x: Tensor, plan: Plan, group: Any) -> Moments:
    """The moments of all processes' samples, (G,) each.

    Everybody merges the same parts in the same order, so that all have the same bits.
    """
    own = torch.zeros(3, plan.part.G, dtype=definition.wide_dtype(x), device=x.device)
    if not plan.empty:
        stats = kernels.moments(x, plan)
        own[0] = definition.count(plan.part, stats.mean)
        own[1], own[2] = stats.mean[0], stats.M2[0]
    everybody = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybody, own, group=group)
    return merged(torch.stack(everybody, 1))

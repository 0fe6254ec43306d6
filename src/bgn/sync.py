"""Statistics across processes: the batch of all workers normalised as one.

Each process sends the count, mean and M2 of its own samples, in one collective forward, and two sums per group, in one
backward; nothing of x's size. Samples may be spread unevenly, and a process may have none, as long as it takes part in both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from bgn import checks
from bgn import functional as F
from bgn.kernels import definition
from bgn.layers import GeneralBatchGroupNorm2d, _BatchWideNorm, _recomputing
from bgn.moments import Moments, merged
from bgn.partition import Partition
from bgn.running import Running, update


class _Synchronised(_BatchWideNorm):
    """In training with several processes, statistics over all of them; otherwise the layer as it is without."""

    process_group: Any = None

    def forward(self, input: Tensor) -> Tensor:
        if not (
            self.training
            and dist.is_available()
            and dist.is_initialized()
            and dist.get_world_size(self.process_group) > 1
        ):
            alone: Tensor = super().forward(input)
            return alone
        if (
            torch.compiler.is_compiling()
        ):  # collectives in a graph are torch's affair; asked for here, as it imports a lot
            broken: Tensor = torch.compiler.disable(self._across)(input)  # type: ignore[no-untyped-call]
            return broken
        return self._across(input)

    def _across(self, input: Tensor) -> Tensor:
        checks.dims(input, self.accepted_dims, type(self).__name__)
        checks.channels(input, "num_features", self.num_features)
        running = None
        if self.running_mean is not None and self.running_var is not None and not _recomputing():
            running = Running(
                self.running_mean, self.running_var, self.momentum, self.num_batches_tracked
            )
        part = F.partition(self.cut, input, self.num_groups, 1)
        arguments = input, self.weight, self.bias, part, self.eps, running, self.process_group
        output: Tensor = _Normalise.apply(*arguments)  # type: ignore[no-untyped-call]
        return output


class SyncBatchGroupNorm(_Synchronised):
    """:class:`BatchGroupNorm2d` (or 1d, 3d) with statistics over the samples of all processes.

    With ``num_groups == num_features`` it is a synchronised BatchNorm that runs on the CPU too. ``process_group`` is that of
    ``torch.distributed``; None is all processes. In eval mode, without ``torch.distributed`` or with a single process it does
    what the layer without "Sync" does. All processes take part in every forward and backward, those without samples too.

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
        checks.positive_int(
            "num_groups", num_groups
        )  # not "auto": processes might decide differently
        super().__init__(num_features, num_groups, *args, **options)
        self.process_group = process_group


class SyncGeneralBatchGroupNorm2d(_Synchronised, GeneralBatchGroupNorm2d):
    """:class:`GeneralBatchGroupNorm2d` with one block, the samples of all processes; see :class:`SyncBatchGroupNorm`."""

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


class _Normalise(torch.autograd.Function):
    """As the definition backend, but statistics and their gradients are those of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        part: Partition,
        eps: float,
        running: Running | None,
        group: Any,
    ) -> Tensor:
        stats = _gathered(x, part, group)
        if (
            part.smallest_count < 2
        ):  # only then may there be too few in all: others need not wait for the counts
            least = int(stats.count.min())
            if least == 1:
                raise ValueError(
                    f"inputs of shape {tuple(x.shape)} here, with num_groups={part.G}, leave 1 value per statistic over all"
                    " processes; expected more than 1: a larger batch, a smaller num_groups, or eval()"
                )
            if least == 0:  # nobody has samples: nothing moves, and gradients are zero
                running, stats = (
                    None,
                    Moments(stats.count + 1, *torch.zeros_like(stats.mean).expand(2, -1)),
                )
        if running is not None:
            update(running, Moments(stats.count, stats.mean[None], stats.M2[None]))
        ctx.save_for_backward(x, weight, stats.count, stats.mean, stats.var)
        ctx.part, ctx.group, ctx.eps = part, group, eps
        return (
            F.backend.apply(x, part, stats.mean, stats.var, weight, bias, eps)
            if x.numel()
            else torch.empty_like(x)
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gy: Tensor) -> Any:
        x, part = ctx.saved_tensors[0], ctx.part
        # groups of whole channels: their sums are sums over channels. In half precision the two steps would round twice
        whole = part.units == part.C and x.numel() > 0 and x.dtype is ctx.saved_tensors[3].dtype
        return *(_of_channels if whole else _of_units)(gy, ctx), None, None, None, None


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def _of_channels(gy: Tensor, ctx: Any) -> Gradients:
    """Gradients where channels lie in one group each: as if statistics were fixed, and then what these add."""
    x, weight, count, mean, var = ctx.saved_tensors
    part: Partition = ctx.part
    rstd = torch.rsqrt(var + ctx.eps)
    gx, *sums = F.backend.fixed(
        gy, x, part, weight, mean, rstd
    )  # the sums of gy and gy * xhat per channel
    if ctx.needs_input_grad[0]:
        group = part.group_of_unit(x.device)
        weighted = (
            torch.stack(sums) if weight is None else torch.stack(sums) * weight.to(mean.dtype)
        )
        s, q = _total(weighted, group, ctx) / count
        # gx - rstd * (s + xhat * q), where xhat * w + b is what a normaliser does
        gx = gx.add_(
            F.backend.apply(
                x.detach(), part, mean, var, -(rstd * q)[group], -(rstd * s)[group], ctx.eps
            )
        ).to(x.dtype)
    gb, gw = sums
    need_weight, need_bias = ctx.needs_input_grad[1:3]
    return gx, gw.to(weight.dtype) if need_weight else None, gb if need_bias else None


def _of_units(gy: Tensor, ctx: Any) -> Gradients:
    """Gradients for any partition."""
    x, weight, count, mean, var = ctx.saved_tensors
    part: Partition = ctx.part
    rstd, wide = torch.rsqrt(var + ctx.eps), mean.dtype
    centred = x.to(wide) - definition.spread(mean[None], part, x)
    # per unit: the sums of gy and of gy * (x - mean); then per channel and, weighted, per group
    units = (part.N, part.units, part.unit_size)
    sums = torch.stack(
        [t.reshape(units).sum((0, 2)) for t in (gy.to(wide), gy.to(wide) * centred)]
    )  # (2, units)
    channel = torch.arange(part.units, device=x.device) // (part.units // part.C)
    group = part.group_of_unit(x.device)
    gx = gw = gb = None
    if ctx.needs_input_grad[0]:
        s, q = (
            _total(sums if weight is None else sums * weight.to(wide)[channel], group, ctx) / count
        )
        g = (
            gy.to(wide)
            if weight is None
            else gy.to(wide) * definition.per_channel(weight.to(wide), x)
        )
        r, shift, slope = (
            definition.spread(t[None], part, x) for t in (rstd, s, q * rstd.square())
        )
        gx = (r * (g - shift - centred * slope)).to(x.dtype)
    if weight is not None and ctx.needs_input_grad[1]:
        per_channel = torch.zeros(part.C, dtype=wide, device=x.device)
        gw = per_channel.index_add(0, channel, sums[1] * rstd[group]).to(weight.dtype)
    if ctx.needs_input_grad[2]:
        gb = torch.zeros(part.C, dtype=wide, device=x.device).index_add(0, channel, sums[0])
    return gx, gw, gb


def _total(sums: Tensor, group: Tensor, ctx: Any) -> Tensor:
    """Two sums per group, (2, G), over all processes."""
    total = torch.zeros(2, ctx.part.G, dtype=sums.dtype, device=sums.device).index_add(
        1, group, sums
    )
    dist.all_reduce(total, group=ctx.group)
    return total


def _gathered(x: Tensor, part: Partition, group: Any) -> Moments:
    """The moments of all processes' samples, (G,) each: everybody merges the same parts, so that all have the same bits."""
    wide = torch.promote_types(x.dtype, torch.float32)
    own = torch.zeros(3, part.G, dtype=wide, device=x.device)
    if x.numel():
        stats = F.backend.statistics(x, part)
        own[0], own[1], own[2] = definition.count(part, stats.mean), stats.mean[0], stats.M2[0]
    everybody = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everybody, own, group=group)
    return merged(torch.stack(everybody, 1))

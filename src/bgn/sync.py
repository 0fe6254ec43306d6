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
from bgn.kernels import Plan, between, definition
from bgn.layers import GeneralBatchGroupNorm2d, _BatchWideNorm
from bgn.moments import Moments, merged


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
        samples = _Processes(self.process_group)
        reference = None
        if self.renorm is not None and self.track_running_stats:
            reference = self._reference(mean, var, input, self.num_groups)
        output: Tensor = apply(input, weight, bias, plan, self.eps, running, reference, samples)
        if self.renorm is not None:
            self._count_step(running)
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


class _Processes:
    """Statistics of all processes of a group."""

    def __init__(self, group: Any) -> None:
        self.group = group

    def moments(self, own: Moments, plan: Plan) -> Moments | None:
        """The moments of all processes' samples, or None if nobody has any.

        Everybody merges the same parts in the same order, so that all have the same bits.
        """
        count = definition.count(plan.part, own.mean) if not plan.empty else own.count
        parts = torch.stack([count, own.mean[0], own.M2[0]])  # (3, G): one block
        everybody = [torch.empty_like(parts) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(everybody, parts, group=self.group)
        found = merged(torch.stack(everybody, 1))
        # only then may there be too few in all: others need not wait for the counts
        if plan.smallest_count < 2:
            least = int(found.count.min())
            if least == 1:
                raise ValueError(
                    f"inputs of shape {tuple(plan.shape)} here, with {plan.part.G} statistics,"
                    " leave 1 value per statistic over all processes; expected more than 1: a"
                    " larger batch, a smaller num_groups, or eval()"
                )
            if least == 0:
                return None
        return Moments(found.count, found.mean[None], found.M2[None])

    def sums(self, own: Tensor) -> Tensor:
        """Sums over all processes' samples."""
        dist.all_reduce(own, group=self.group)
        return own


class _Normalize(between.Normalize):
    """As the definition, but statistics and their gradients are those of all processes."""

    backward: Any = staticmethod(once_differentiable(between.Normalize.backward))

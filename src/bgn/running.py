"""Running statistics, and how a batch moves them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from bgn.moments import Moments


class Running:
    """Running mean and variance (G,), and how far a batch moves them.

    ``running = (1 - momentum) * running + momentum * batch``, where the batch's are averages over its blocks and its variance is
    the unbiased one. ``counter``, where there is one, counts the batches; without a momentum, every batch so far weighs the same.
    """

    __slots__ = ("counter", "direct", "mean", "momentum", "var")

    def __init__(
        self, mean: Tensor, var: Tensor, momentum: float | None, counter: Tensor | None = None
    ) -> None:
        self.mean, self.var, self.momentum, self.counter = mean, var, momentum, counter
        self.direct: bool | None = None  # whether C can write to them; not yet known

    def within_reach(self, dtype: torch.dtype, G: int) -> bool:
        """Whether C can write to them: plain, contiguous tensors of G numbers on the CPU."""
        if self.direct is None:
            mean, var, counter = self.mean, self.var, self.counter
            self.direct = (
                type(mean) is type(var) is Tensor
                and mean.dtype is var.dtype is dtype
                and mean.numel() == var.numel() == G
                and mean.is_cpu
                and var.is_cpu
                and mean.is_contiguous()
                and var.is_contiguous()
                and (
                    counter is None
                    or (type(counter) is Tensor and counter.dtype is torch.int64 and counter.is_cpu)
                )
            )
        return self.direct

    def pointers(self) -> tuple[int, int, float, int | None]:
        """For C: mean, variance, momentum (below 0 for none) and counter."""
        counter = None if self.counter is None else self.counter.data_ptr()
        return (
            self.mean.data_ptr(),
            self.var.data_ptr(),
            -1.0 if self.momentum is None else self.momentum,
            counter,
        )

    def written(self) -> None:
        """Tell autograd that C wrote to the statistics."""
        increment_version(
            (self.mean, self.var) if self.counter is None else (self.mean, self.var, self.counter)
        )


@torch.no_grad()
def update(running: Running, stats: Moments) -> None:
    """Move running statistics towards those of a batch."""
    momentum: float | Tensor | None = running.momentum
    if running.counter is not None:
        running.counter.add_(1)
        if momentum is None:  # as a tensor: reading the counter would stop compile and CUDA graphs
            momentum = running.counter.to(stats.mean.dtype).reciprocal()
    assert momentum is not None, "neither a momentum nor a counter"
    for kept, batch in (running.mean, stats.mean), (running.var, stats.unbiased_var):
        batch = batch[0] if len(batch) == 1 else batch.mean(0)  # (B, G) -> (G,)
        if kept.dtype == batch.dtype:
            kept.lerp_(batch, momentum)
        else:
            kept.copy_(torch.lerp(kept.to(batch.dtype), batch, momentum))

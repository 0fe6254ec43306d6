"""Running statistics: what a training batch does to them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bgn.checks import sizes
from bgn.moments import Moments


class Running:
    """Running mean and variance, and the weight of a new batch in them.

    ``running = (1 - momentum) * running + momentum * batch``, where the batch's statistics are
    averages over its blocks, and its variance is the unbiased one. ``counter``, where there is one,
    counts the batches; with ``momentum=None`` every batch so far weighs the same.

    There is one entry per group; or, for groups of whole channels, one per channel, and all
    channels of a group move towards the same statistic.
    """

    __slots__ = ("counter", "mean", "momentum", "var")

    def __init__(
        self, mean: Tensor, var: Tensor, momentum: float | None, counter: Tensor | None = None
    ) -> None:
        self.mean, self.var, self.momentum, self.counter = mean, var, momentum, counter

    def weight_of_next(self) -> float:
        """The weight of the next batch as a number; without momentum it reads the counter."""
        if self.momentum is not None:
            return self.momentum
        return 0.0 if self.counter is None else 1.0 / (int(self.counter) + 1)


@torch.no_grad()
def update(running: Running, stats: Moments) -> None:
    """Move running statistics towards those of a batch, (B, G) each, averaged over its blocks."""
    move(running, _average(stats.mean), _average(stats.unbiased_var))


@torch.no_grad()
def update_ragged(running: Running, parts: list[tuple[int, Moments]]) -> None:
    """As ``update``, for blocks of different sizes: a block weighs as many samples as it has.

    Each part is a number of samples per block and the statistics of such blocks, (B, G) each.
    """
    samples = sum(n * len(stats.mean) for n, stats in parts)
    means = [stats.mean.sum(0) * (n / samples) for n, stats in parts]
    variances = [stats.unbiased_var.sum(0) * (n / samples) for n, stats in parts]
    move(running, reduce(torch.add, means), reduce(torch.add, variances))


def _average(stat: Tensor) -> Tensor:
    return stat[0] if sizes(stat)[0] == 1 else stat.mean(0)  # (B, G) -> (G,)


def move(running: Running, mean: Tensor, var: Tensor) -> None:
    """Move running statistics towards the mean and the unbiased variance of a batch, (G,) each."""
    momentum: float | Tensor | None = running.momentum
    if running.counter is not None:
        running.counter.add_(1)
        if momentum is None:  # as a tensor: reading the counter would stop compile and CUDA graphs
            momentum = running.counter.to(mean.dtype).reciprocal()
    if momentum is None:  # as nn.BatchNorm2d: without a counter there is no cumulative average
        momentum = 0.0
    for kept, batch in (running.mean, mean), (running.var, var):
        batch = _constant(batch)
        (size,), (G,) = sizes(kept), sizes(batch)
        if size != G:
            batch = batch.repeat_interleave(size // G)  # (G,) -> (C,)
        moved = kept.to(batch.dtype) * (1 - momentum) + batch * momentum
        kept.copy_(moved)


def _constant(batch: Tensor) -> Tensor:
    """A statistic without its history, for buffers that outlive all transforms."""
    if torch.compiler.is_compiling():
        return batch.detach()
    if torch._is_functional_tensor(batch):  # torch.func.functionalize: buffers are not wrapped
        functional: Any = torch
        functional._sync(batch)
        batch = functional._from_functional_tensor(batch)
    return batch.detach()  # torch.jit.trace does not see no_grad

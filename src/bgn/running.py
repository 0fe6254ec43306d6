"""Running statistics: what a training batch does to them."""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from bgn.checks import sizes
from bgn.moments import Moments

TOLERANCE = 1e-3  # for variances that were stored with few digits


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


def are_trained(
    mean: Tensor | None, var: Tensor | None, count: Tensor | None, momentum: float | None
) -> bool:
    """Whether running statistics are those of training: not of a new layer, nor of a trial run.

    A variance begins at 1, and after k batches with momentum m it is at least (1 - m)^k. For fewer
    than 1 / m batches that is much, so statistics that are no smaller are those of a trial run. A
    layer that does not count, or has lost its counter, is trained if its statistics have moved.

    >>> mean, var = torch.full((2,), 0.1), torch.tensor([0.95, 1.2])
    >>> [are_trained(mean, var, torch.tensor(n), 0.1) for n in (0, 1, 9, 10)]
    [True, False, False, True]
    >>> are_trained(mean, torch.tensor([0.3, 1.2]), torch.tensor(5), 0.1)  # few, but exact
    True
    >>> are_trained(torch.zeros(2), torch.ones(2), None, 0.1)
    False
    """
    if mean is None or var is None or not (bool(mean.any()) or bool((var != 1).any())):
        return False
    batches = 0 if count is None else int(count)
    if momentum is None or not 0 < batches * momentum < 1:
        return True
    least = (1 - momentum) ** batches * (1 - TOLERANCE)
    return bool((var < least).any())


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

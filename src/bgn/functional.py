"""The normalisers as functions: check the arguments, call the backend, keep the running statistics.

mu_g, var_g = mean and biased variance over the N samples and the S features of group g
y = (x - mu_g) / sqrt(var_g + eps) * weight[c] + bias[c]
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bgn import checks
from bgn.kernels import backend as backend  # the layers use it too
from bgn.kernels import definition
from bgn.kernels.cpu import PLAIN
from bgn.partition import Partition, channel_groups, slices
from bgn.running import Running

__all__ = ["batch_group_norm", "general_batch_group_norm", "group_norm", "positional_norm"]


def batch_group_norm(
    input: Tensor,
    num_groups: int,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    counter: Tensor | None = None,
) -> Tensor:
    """Batch Group Normalization: statistics over the batch and over each of G slices of the C*H*W features.

    In training the statistics are the batch's own, and running_mean and running_var, of shape (G,), are updated in place
    where they are given: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance. Otherwise
    the running statistics are used. ``num_groups == C`` is batch normalisation. ``counter``, an integer tensor, counts the
    batches; with it, ``momentum=None`` makes the running statistics averages over all of them.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> y = batch_group_norm(x, num_groups=1, training=True)
    >>> bool(y.mean().abs() < 1e-6), round(y.var(correction=0).item(), 3)
    (True, 1.0)
    """
    part = partition(slices, input, num_groups)
    running, given = _statistics(running_mean, running_var, training, momentum, counter)
    return batch_wide(input, part, weight, bias, eps, running, given)


def general_batch_group_norm(
    input: Tensor,
    num_groups: int = 32,
    batch_blocks: int = 1,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    counter: Tensor | None = None,
) -> Tensor:
    """General Batch Group Normalization: statistics over blocks of N / batch_blocks samples and groups of channels.

    A group has at least ``max(C // num_groups, 1)`` channels, so there are num_groups of them where that divides C, and C
    where it exceeds C. Running statistics are averages over the blocks.
    """
    checks.positive_int("batch_blocks", batch_blocks)
    part = partition(channel_groups, input, num_groups, batch_blocks if training else 1)
    running, given = _statistics(running_mean, running_var, training, momentum, counter)
    return batch_wide(input, part, weight, bias, eps, running, given)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group normalisation for any number of groups up to C*H*W: statistics per sample and slice of the features.

    Where num_groups divides C this is ``torch.nn.functional.group_norm``; elsewhere the *merged view*: the C*H*W
    features cut into num_groups slices, as in :func:`batch_group_norm`. A statistic of a single element leaves the bias
    alone, with a warning.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> torch.allclose(group_norm(x, 2), torch.nn.functional.group_norm(x, 2), atol=1e-6)
    True
    """
    part = partition(slices, input, num_groups, None)
    _check(part, weight, bias, eps)
    if input.numel() == 0:
        return _affine(input, weight, bias)
    if part.smallest_count == 1:
        _warn_degenerate(
            f"group_norm with num_groups={num_groups}",
            input,
            "each" if part.units == part.G else "some",
        )
    return backend.train(input, part, weight, bias, eps)


def positional_norm(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Positional normalisation: one mean and biased variance per sample and position, across the channels.

    >>> y = positional_norm(torch.randn(2, 8, 4, 4))
    >>> bool(y.mean(dim=1).abs().max() < 1e-6)
    True
    """
    checks.feature_map(input)
    checks.eps(eps)
    checks.vector("weight", weight, input.shape[1], "channel")
    checks.vector("bias", bias, input.shape[1], "channel")
    if input.numel() == 0:
        return _affine(input, weight, bias)
    if input.shape[1] == 1:
        _warn_degenerate("positional_norm", input, "each")
    return backend.positional(input, weight, bias, eps)


_partitions: dict[Any, Partition] = {}  # of the shapes that came so far
_REMEMBERED = 1024


def partition(
    cut: Callable[..., Partition], input: Tensor, num_groups: int, blocks: int | None = 1
) -> Partition:
    """How a shape is cut, one block per sample where blocks is None; checked once, then remembered."""
    if (
        not input.dtype.is_floating_point
        or type(num_groups) is not int
        or type(input) not in PLAIN
        or torch.compiler.is_compiling()
    ):
        return _new_partition(cut, input, num_groups, blocks)
    key = (cut, input.shape, num_groups, blocks)
    part = _partitions.get(key)
    if part is None:
        part = _new_partition(cut, input, num_groups, blocks)
        if len(_partitions) >= _REMEMBERED:
            _partitions.clear()
        _partitions[key] = part
    return part


def _new_partition(
    cut: Callable[..., Partition], input: Tensor, num_groups: int, blocks: int | None
) -> Partition:
    checks.feature_map(input)
    checks.positive_int("num_groups", num_groups)
    N, C, P = input.shape[0], input.shape[1], math.prod(input.shape[2:])
    if blocks is not None and N % blocks:
        raise ValueError(f"batch_blocks={blocks} does not divide the batch of N = {N} samples")
    part = cut(N, C, P, num_groups, N if blocks is None else blocks)
    # a G of at most C always fits: asking only beyond it spares dynamic shapes a guard
    if not part.whole_channels and part.G > part.C and part.D > 0:
        checks.groups_fit(input, part.G)
    return part


def _check(part: Partition, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    checks.eps(eps)
    checks.vector("weight", weight, part.C, "channel")
    checks.vector("bias", bias, part.C, "channel")


def _statistics(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float | None,
    counter: Tensor | None,
) -> tuple[Running | None, tuple[Tensor, Tensor] | None]:
    """The running statistics as what is to be moved (in training) or as what is given."""
    checks.momentum(momentum)
    if (running_mean is None) != (running_var is None):
        missing = "running_mean" if running_mean is None else "running_var"
        raise ValueError(
            f"{missing}=None while the other running statistic is given; expected both or neither"
        )
    if not training:
        if running_mean is None or running_var is None:
            raise ValueError(
                "training=False needs running_mean and running_var, got None; expected both"
            )
        return None, (running_mean, running_var)
    if running_mean is None or running_var is None:
        return None, None
    if momentum is None and counter is None:
        raise ValueError(
            "momentum=None, a cumulative average, needs counter, the number of batches so far; got None"
        )
    return Running(running_mean, running_var, momentum, counter), None


def batch_wide(
    input: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: tuple[Tensor, Tensor] | None,
    key: Any = None,
) -> Tensor:
    """Normalise with given statistics or with the batch's own, which move the running ones.

    A call that passes all checks is remembered under ``key``, for those that come after it.
    """
    _check(part, weight, bias, eps)
    for mean, var in (
        [(running.mean, running.var)]
        if running is not None
        else [given]
        if given is not None
        else []
    ):
        checks.vector("running_mean", mean, part.G, "group")
        checks.vector("running_var", var, part.G, "group")
    if input.numel() == 0:
        return _affine(input, weight, bias)
    if given is None and part.smallest_count == 1:
        raise ValueError(
            f"input of shape {tuple(input.shape)} with num_groups={part.G} leaves 1 value per statistic in training;"
            " expected more than 1: a larger batch, a smaller num_groups, or eval()"
        )
    if key is not None:
        backend.remember(key, input, part)
    if given is not None:
        return backend.apply(input, part, *given, weight, bias, eps)
    return backend.train(input, part, weight, bias, eps, running)


def _affine(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """What remains for a tensor without elements: nothing to normalise, and gradients of zero for everything."""
    output = input.clone()
    if weight is not None:
        output = output * definition.per_channel(weight, input)
    if bias is not None:
        output = output + definition.per_channel(bias, input)
    return output.to(input.dtype)


def _warn_degenerate(what: str, input: Tensor, which: str) -> None:
    if not torch.compiler.is_compiling():
        shape = tuple(input.shape)
        warnings.warn(
            f"{what} on input of shape {shape}: {which} of its statistics has one element and outputs the bias alone",
            stacklevel=3,
        )

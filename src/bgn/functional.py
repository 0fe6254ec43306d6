"""The normalisers as functions: check the arguments, call the backend, keep the running statistics.

mu_g, var_g = mean and biased variance over the N samples and the S features of group g
y = (x - mu_g) / sqrt(var_g + eps) * weight[c] + bias[c]
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from bgn import checks
from bgn.backends import backend, reference
from bgn.partition import Partition, channel_groups, slices

__all__ = ["batch_group_norm", "general_batch_group_norm", "group_norm", "positional_norm"]


def batch_group_norm(
    input: Tensor,
    num_groups: int,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Batch Group Normalization: statistics over the batch and over each of G slices of the C*H*W features.

    In training the statistics are the batch's own, and running_mean and running_var, of shape (G,), are updated in place
    where they are given: ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance. Otherwise
    the running statistics are used. ``num_groups == C`` is batch normalisation.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> y = batch_group_norm(x, num_groups=1, training=True)
    >>> bool(y.mean().abs() < 1e-6), round(y.var(correction=0).item(), 3)
    (True, 1.0)
    """
    checks.feature_map(input)
    checks.positive_int("num_groups", num_groups)
    part = slices(*_sizes(input), G=num_groups)
    return _batch_wide(input, part, running_mean, running_var, weight, bias, training, momentum, eps)


def general_batch_group_norm(
    input: Tensor,
    num_groups: int = 32,
    batch_blocks: int = 1,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | Tensor = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """General Batch Group Normalization: statistics over blocks of N / batch_blocks samples and groups of channels.

    A group has at least ``max(C // num_groups, 1)`` channels, so there are num_groups of them where that divides C, and C
    where it exceeds C. Running statistics are averages over the blocks.
    """
    checks.feature_map(input)
    checks.positive_int("num_groups", num_groups)
    checks.positive_int("batch_blocks", batch_blocks)
    if training and input.shape[0] % batch_blocks:
        raise ValueError(f"batch_blocks={batch_blocks} does not divide the batch of N = {input.shape[0]} samples")
    part = channel_groups(*_sizes(input), G=num_groups, B=batch_blocks if training else 1)
    return _batch_wide(input, part, running_mean, running_var, weight, bias, training, momentum, eps)


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
    checks.feature_map(input)
    checks.positive_int("num_groups", num_groups)
    N, C, P = _sizes(input)
    part = slices(N, C, P, num_groups, B=N)
    _check(input, part, weight, bias, eps)
    if input.numel() == 0:
        return _affine(input, weight, bias)
    if part.smallest_count == 1:
        _warn_degenerate(f"group_norm with num_groups={num_groups}", input, "each" if part.units == part.G else "some")
    return backend.train(input, part, weight, bias, eps)[0]


def positional_norm(input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
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


def _sizes(input: Tensor) -> tuple[int, int, int]:
    """N, C and the number of positions P."""
    return input.shape[0], input.shape[1], math.prod(input.shape[2:])


def _check(input: Tensor, part: Partition, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
    checks.eps(eps)
    checks.vector("weight", weight, part.C, "channel")
    checks.vector("bias", bias, part.C, "channel")
    # a G of at most C always fits: asking only beyond it spares dynamic shapes a guard
    if not part.whole_channels and part.G > part.C and part.D > 0:
        checks.groups_fit(input, part.G)


def _batch_wide(
    input: Tensor,
    part: Partition,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | Tensor,
    eps: float,
) -> Tensor:
    _check(input, part, weight, bias, eps)
    if not isinstance(momentum, Tensor):
        checks.momentum(momentum)
    checks.vector("running_mean", running_mean, part.G, "group")
    checks.vector("running_var", running_var, part.G, "group")
    if (running_mean is None) != (running_var is None):
        missing = "running_mean" if running_mean is None else "running_var"
        raise ValueError(f"{missing}=None while the other running statistic is given; expected both or neither")
    if input.numel() == 0:
        return _affine(input, weight, bias)

    if not training:
        if running_mean is None or running_var is None:
            raise ValueError("training=False needs running_mean and running_var, got None; expected both")
        wide = torch.promote_types(input.dtype, torch.float32)
        mean, var = running_mean.to(wide)[None], running_var.to(wide)[None]  # (G,) -> (1, G)
        return backend.apply(input, part, mean, var, weight, bias, eps)

    if part.smallest_count == 1:
        raise ValueError(
            f"input of shape {tuple(input.shape)} with num_groups={part.G} leaves 1 value per statistic in training;"
            " expected more than 1: a larger batch, a smaller num_groups, or eval()"
        )
    output, stats = backend.train(input, part, weight, bias, eps)
    if running_mean is not None and running_var is not None:
        backend.update(running_mean, running_var, stats, momentum)
    return output


def _affine(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """What remains for a tensor without elements: nothing to normalise, and gradients of zero for everything."""
    output = input.clone()
    if weight is not None:
        output = output * reference.per_channel(weight, input)
    if bias is not None:
        output = output + reference.per_channel(bias, input)
    return output.to(input.dtype)


def _warn_degenerate(what: str, input: Tensor, which: str) -> None:
    if not torch.compiler.is_compiling():
        shape = tuple(input.shape)
        warnings.warn(
            f"{what} on input of shape {shape}: {which} of its statistics has one element and outputs the bias alone",
            stacklevel=3,
        )

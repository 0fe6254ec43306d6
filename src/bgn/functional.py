"""The normalizers as functions: check the arguments, call the kernels, keep running statistics.

mu_g, var_g = mean and biased variance over the N samples and the S features of group g
y = (x - mu_g) / sqrt(var_g + eps) * weight[c] + bias[c]

Dtypes are those that ``torch.nn.functional.batch_norm`` takes: weight, bias and running statistics
of the input's dtype, or of float32 where the input is bfloat16 or float16.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from bgn import activation, checks, kernels
from bgn.activation import After
from bgn.kernels import Plan, definition
from bgn.kernels.eligible import refuse_freed
from bgn.kernels.plans import Cut
from bgn.partition import channel_groups, slices
from bgn.renorm import Reference
from bgn.running import Running, update_ragged

__all__ = [
    "batch_group_norm",
    "batch_group_norm_act",
    "general_batch_group_norm",
    "group_norm",
    "positional_norm",
]

Given = tuple[Tensor, Tensor]  # mean and variance


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
    batch_blocks: int = 1,
) -> Tensor:
    """Batch Group Normalization: statistics over the batch and each of G slices of the features.

    In training the statistics are the batch's own, and running_mean and running_var, of shape (G,),
    are updated in place where they are given: ``running = (1 - momentum) * running + momentum *
    batch``, with the unbiased variance. Otherwise the running statistics are used. ``num_groups ==
    C`` is batch normalization. ``counter``, an integer tensor, counts the batches; with it,
    ``momentum=None`` makes the running statistics averages over all of them.

    With ``batch_blocks`` above 1, statistics in training are those of blocks of consecutive
    samples, ceil(N / batch_blocks) each and fewer in the last one where that leaves a rest. Running
    statistics are averages over the blocks then, weighted by their samples.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> y = batch_group_norm(x, num_groups=1, training=True)
    >>> bool(y.mean().abs() < 1e-6), round(y.var(correction=0).item(), 3)
    (True, 1.0)
    """
    return _batch_group_norm(
        input, num_groups, running_mean, running_var, weight, bias, training, momentum, eps,
        counter, batch_blocks, None,
    )  # fmt: skip


def batch_group_norm_act(
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
    batch_blocks: int = 1,
    *,
    act: str = "relu",
    negative_slope: float = activation.SLOPE,
    residual: Tensor | None = None,
    save: str = activation.INPUT,
) -> Tensor:
    """``act(batch_group_norm(input, ...) + residual)`` in the normalizer's passes over memory.

    ``act`` is ``"relu"``, ``"leaky_relu"``, ``"silu"``, ``"hardswish"`` or ``"identity"``; for
    ``save="output"`` see :class:`bgn.BatchGroupNormAct2d`.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> y = batch_group_norm_act(x, num_groups=1, training=True, act="relu", residual=x)
    >>> torch.allclose(y, (batch_group_norm(x, 1, training=True) + x).relu(), atol=1e-6)
    True
    """
    after = After(activation.checked(act, negative_slope, save), residual)
    return _batch_group_norm(
        input, num_groups, running_mean, running_var, weight, bias, training, momentum, eps,
        counter, batch_blocks, after,
    )  # fmt: skip


def _batch_group_norm(
    input: Tensor,
    num_groups: int,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | None,
    eps: float,
    counter: Tensor | None,
    batch_blocks: int,
    after: After | None,
) -> Tensor:
    num_groups = checks.positive_int("num_groups", num_groups)
    batch_blocks = checks.positive_int("batch_blocks", batch_blocks)
    for name, value in ("running_mean", running_mean), ("running_var", running_var):
        checks.vector(name, value, num_groups, "group")
    running, given = _statistics(running_mean, running_var, training, momentum, counter)
    if given is None:
        return in_blocks(
            input, slices, num_groups, batch_blocks, weight, bias, eps, running, after=after
        )
    plan = kernels.plan(slices, input, num_groups)
    return batch_wide(input, plan, weight, bias, eps, None, given, after=after)


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
    """General Batch Group Normalization: statistics over blocks of samples and groups of channels.

    Blocks are as in :func:`batch_group_norm`. A group has at least ``max(C // num_groups, 1)``
    channels, so there are num_groups of them where that divides C, and C where it exceeds C.
    """
    num_groups = checks.positive_int("num_groups", num_groups)
    batch_blocks = checks.positive_int("batch_blocks", batch_blocks)
    plan = kernels.plan(channel_groups, input, num_groups)
    for name, value in ("running_mean", running_mean), ("running_var", running_var):
        checks.vector(name, value, plan.part.G, "group")
    running, given = _statistics(running_mean, running_var, training, momentum, counter)
    if given is None:
        cut = channel_groups
        return in_blocks(input, cut, num_groups, batch_blocks, weight, bias, eps, running)
    return batch_wide(input, plan, weight, bias, eps, None, given)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group normalization for any number of groups up to C*H*W.

    Where num_groups divides C this is ``torch.nn.functional.group_norm``; elsewhere the *merged
    view*: the C*H*W features of a sample cut into num_groups slices, as in
    :func:`batch_group_norm`. A statistic of a single element leaves the bias alone, with a warning.

    >>> x = torch.randn(2, 8, 4, 4)
    >>> torch.allclose(group_norm(x, 2), torch.nn.functional.group_norm(x, 2), atol=1e-6)
    True
    """
    num_groups = checks.positive_int("num_groups", num_groups)
    plan = kernels.plan(slices, input, num_groups, None)
    checks.eps(eps)
    if plan.empty:
        checks.affine(input, plan.part.C, weight, bias)
        return _affine(input, weight, bias)
    if plan.smallest_count == 1:
        which = "each" if plan.part.units == plan.part.G else "some"
        _warn_degenerate(f"group_norm with num_groups={num_groups}", plan, which)
    return kernels.normalize(input, plan, weight, bias, eps)


def positional_norm(
    input: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Positional normalization: one mean and variance per sample and position, across channels.

    >>> y = positional_norm(torch.randn(2, 8, 4, 4))
    >>> bool(y.mean(dim=1).abs().max() < 1e-6)
    True
    """
    plan = kernels.plan(kernels.positions, input, 1)
    checks.eps(eps)
    if plan.empty:
        checks.affine(input, plan.part.C, weight, bias)
        return _affine(input, weight, bias)
    if plan.part.C == 1:
        _warn_degenerate("positional_norm", plan, "each")
    return kernels.positional(input, plan, weight, bias, eps)


def batch_wide(
    input: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    given: Given | None,
    reference: Reference | None = None,
    after: After | None = None,
) -> Tensor:
    """Normalize with given statistics or with the batch's own, which move the running ones.

    With a reference, the output is corrected towards it (batch renormalization). ``after`` follows.
    """
    checks.eps(eps, training=given is None)
    if running is not None:
        checks.momentum(running.momentum)
    if plan.empty:
        empty = _empty_batch(input, plan, weight, bias, running, given)
        return empty if after is None else after(empty)
    if given is not None:
        return kernels.normalize_with(input, plan, *given, weight, bias, eps, after)
    if plan.smallest_count == 1:
        by_channel = plan.part.channel_means
        what = "a mean per channel" if by_channel else f"num_groups={plan.part.G}"
        fewer = "" if by_channel else " a smaller num_groups,"
        raise ValueError(
            f"input of shape {tuple(plan.shape)} with {what} leaves 1 value per statistic in"
            f" training; expected more than 1: a larger batch,{fewer} or eval()"
        )
    return kernels.normalize(input, plan, weight, bias, eps, running, reference, after)


def in_blocks(
    input: Tensor,
    cut: Cut,
    num_groups: int,
    batch_blocks: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    first_block: bool = False,
    reference: Reference | None = None,
    after: After | None = None,
) -> Tensor:
    """Normalize blocks of consecutive samples, each with its own statistics.

    The running statistics move towards the average over the blocks; with ``first_block``, towards
    the statistics of the first one.
    """
    if batch_blocks == 1:
        plan = kernels.plan(cut, input, num_groups)
        return batch_wide(input, plan, weight, bias, eps, running, None, reference, after)
    N = kernels.sizes(input)[0]
    first_block = first_block and running is not None and N > 0
    if N % batch_blocks == 0 and not first_block:
        plan = kernels.plan(cut, input, num_groups, batch_blocks)
        return batch_wide(input, plan, weight, bias, eps, running, None, reference, after)
    if after is not None:
        refuse_freed(residual=after.residual)
        checks.residual(after.residual, input)
        options = weight, bias, eps, running, first_block, reference
        return after(in_blocks(input, cut, num_groups, batch_blocks, *options))
    if not torch.compiler.is_compiling() and input.is_mkldnn:  # it cannot be sliced
        options = weight, bias, eps, running, first_block, reference
        return in_blocks(input.to_dense(), cut, num_groups, batch_blocks, *options).to_mkldnn()
    checks.feature_map(input)
    n = -(-N // batch_blocks)  # see block_sizes; N may be symbolic here
    last = N % n or n
    parts = [input] if last == n else [input[: N - last], input[N - last :]]
    plans = [
        kernels.plan(cut, part, num_groups, size)
        for part, size in zip(parts, (N // n, 1), strict=False)
    ]
    outputs = [
        batch_wide(part, plan, weight, bias, eps, None, None, reference)
        for part, plan in zip(parts, plans, strict=True)
    ]
    if running is not None:  # they move last, when nothing else can fail
        checks.momentum(running.momentum)
        with torch.no_grad():
            if first_block:
                first = input[:n]
                kernels.track(first, kernels.plan(cut, first, num_groups), running)
            else:
                checks.statistics(input, plans[0].part, running.mean, running.var, moving=True)
                refuse_freed(running_mean=running.mean, running_var=running.var)
                stats = (kernels.moments(p, plan) for p, plan in zip(parts, plans, strict=True))
                update_ragged(running, list(zip((n, last), stats, strict=False)))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _empty_batch(
    input: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running | None,
    given: Given | None,
) -> Tensor:
    """Count the batch, as nn.BatchNorm2d does; there is nothing else to do."""
    checks.affine(input, plan.part.C, weight, bias)
    if running is not None:
        checks.statistics(input, plan.part, running.mean, running.var, moving=True)
        if running.counter is not None:
            running.counter.add_(1)
    elif given is not None:
        checks.statistics(input, plan.part, *given)
    return _affine(input, weight, bias)


def _statistics(
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float | None,
    counter: Tensor | None,
) -> tuple[Running | None, Given | None]:
    """The running statistics as what is to be moved (in training) or as what is given."""
    checks.momentum(momentum)
    if (running_mean is None) != (running_var is None):
        missing = "running_mean" if running_mean is None else "running_var"
        raise ValueError(
            f"{missing}=None while the other running statistic is given; expected both or neither"
        )
    if running_mean is None or running_var is None:
        if not training:
            raise ValueError(
                "training=False needs running_mean and running_var, got None; expected both"
            )
        return None, None
    if not training:
        return None, (running_mean, running_var)
    if momentum is None and counter is None:
        raise ValueError(
            "momentum=None, a cumulative average, needs counter, the number of batches so far;"
            " got None"
        )
    return Running(running_mean, running_var, momentum, counter), None


def _affine(input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """The result for a tensor without elements, with gradients of zero for everything."""
    output = input.clone()
    if weight is not None:
        output = output * definition.per_channel(weight, input)
    if bias is not None:
        output = output + definition.per_channel(bias, input)
    return output.to(input.dtype)


def _warn_degenerate(what: str, plan: Plan, which: str) -> None:
    if not torch.compiler.is_compiling():
        warnings.warn(
            f"{what} on input of shape {tuple(plan.shape)}: {which} of its statistics has one"
            " element and outputs the bias alone",
            stacklevel=3,
        )

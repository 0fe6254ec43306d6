"""Which tensors the kernels may read, and which running statistics they may move: a whitelist."""

from __future__ import annotations

import torch
from torch import Tensor

from bgn.kernels.eligible import is_plain, is_plain_vector, plain_keys, reaches
from bgn.kernels.plans import Plan
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton.installed import DEVICES, kernels
from bgn.renorm import Reference
from bgn.running import Running

Given = tuple[Tensor, Tensor]  # mean and variance
TYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_GRID = (1 << 31) - 1


def is_eligible(x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the kernels may read x, weight and bias."""
    return (
        plan.kept
        and not plan.empty
        and x.dtype in TYPES
        and x.device.type in DEVICES
        and reaches(x, plan.numel, plain_keys(x.device.type))
        and _is_parameter(weight, plan, x)
        and _is_parameter(bias, plan, x)
        and (weight is None or bias is None or weight.dtype is bias.dtype)
        and _fits(plan)
        and kernels() is not None
    )


def is_readable_as(other: Tensor | None, x: Tensor, plan: Plan) -> bool:
    """Whether the kernels may read another tensor as they read x; None is no tensor."""
    return other is None or (
        other.dtype is x.dtype
        and other.shape == x.shape
        and other.device == x.device
        and reaches(other, plan.numel, plain_keys(x.device.type))
    )


def _fits(plan: Plan) -> bool:
    """Whether the grids are not too large; each tile has elements."""
    return plan.numel // 16 + plan.part.B < LARGEST_GRID


def _is_parameter(vector: Tensor | None, plan: Plan, x: Tensor) -> bool:
    return vector is None or is_readable(vector, plan.part.C, x)


def is_readable(vector: Tensor, size: int, x: Tensor) -> bool:
    return (
        vector.dtype in (x.dtype, torch.float32)
        and vector.device == x.device
        and is_plain_vector(vector, size, plain_keys(x.device.type))
    )


def are_readable(given: Given, x: Tensor, plan: Plan) -> bool:
    """Whether the kernels may read given statistics."""
    size = plan.part.B * plan.part.G
    return all(is_readable(t, size, x) and not t.requires_grad for t in given)


def _are_entries(mean: Tensor, var: Tensor, x: Tensor, plan: Plan) -> bool:
    """Whether there is an entry per group, or per channel where groups are whole channels."""
    part, size = plan.part, mean.numel()
    fits = size == part.G or (size == part.C and part.whole_channels)
    return fits and all(is_readable(t, size, x) and not t.requires_grad for t in (mean, var))


def are_writable(running: Running, x: Tensor, plan: Plan) -> bool:
    """Whether the kernels may move the running statistics."""
    counter, keys = running.counter, plain_keys(x.device.type)
    return (
        _are_entries(running.mean, running.var, x, plan)
        and not (running.mean.is_inference() or running.var.is_inference())
        and (running.momentum is not None or counter is not None)
        and (
            counter is None
            or (
                counter.dtype is torch.int64
                and counter.device == x.device
                and is_plain(counter, 1, keys)
                and not counter.is_inference()
            )
        )
    )


def is_comparable(reference: Reference, x: Tensor, plan: Plan, running: Running | None) -> bool:
    """Whether the kernels may read what a batch is corrected towards."""
    share, mean = reference.share, reference.mean
    if isinstance(share, Tensor) and not (
        share.device == x.device
        and share.dtype.is_floating_point
        and is_plain(share, 1, plain_keys(x.device.type))
    ):
        return False
    same = running is None or running.mean.numel() == mean.numel()
    return same and mean.dtype is torch.float32 and _are_entries(mean, reference.var, x, plan)


def fits_positional(x: Tensor, plan: Plan) -> bool:
    """Whether all channels of some positions fit a program of PN."""
    last = plan.layout is not torch.contiguous_format or plan.part.P == 1
    return launches.fits_positional(plan.part.C, last, x.dtype.itemsize)

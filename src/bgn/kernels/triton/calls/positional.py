"""PN as calls on tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn.kernels.fallback import Gradients
from bgn.kernels.plans import Plan
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton import merge, positional
from bgn.kernels.triton.calls import arguments
from bgn.kernels.triton.calls.arguments import (
    MERGE_WARPS,
    OPTIONS,
    on,
)


def positional_plan(x: Tensor, plan: Plan) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """The plan of PN, and the last arguments of its kernels."""
    part = plan.part
    last = plan.layout is not torch.contiguous_format or part.P == 1
    own = launches.positional(
        part.N, part.C, part.P, last, plan.dtype.itemsize, arguments.processors(x.device)
    )
    # with channels last all positions are those of one sample
    N, P = (1, part.N * part.P) if last else (part.N, part.P)
    strides = (1, part.C) if last else (part.P, 1)
    numbers = part.C, P, *strides, own.tiles, own.steps, N * own.tiles
    return own, numbers, {"U": own.channels, "V": own.positions, "num_warps": own.warps, **OPTIONS}


def positional_forward(
    x: Tensor, plan: Plan, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """PN."""
    own, numbers, constants = positional_plan(x, plan)
    y = torch.empty_like(x)
    with on(x.device):
        positional.forward[(own.programs,)](
            x, y, weight, bias, eps, *numbers, **constants,
            WEIGHT=weight is not None, BIAS=bias is not None,
        )  # fmt: skip
    return y


def positional_backward(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    eps: float,
    needs: tuple[bool, ...],
    affine: torch.dtype,
) -> Gradients:
    """The gradients of PN; statistics are computed again."""
    part = plan.part
    own, numbers, constants = positional_plan(x, plan)
    gx = torch.empty_like(x) if needs[0] else None
    sums, sort, parts = needs[1] or needs[2], own.programs * part.C, None
    if sums:
        parts = torch.empty(2 * sort, dtype=torch.float32, device=x.device)
    with on(x.device):
        positional.backward[(own.programs,)](
            gy, x, gx, parts, sort, weight, eps, *numbers, **constants,
            WEIGHT=weight is not None, AFFINE=sums, INPUT=needs[0],
        )  # fmt: skip
        if parts is None:
            return gx, None, None
        both = torch.empty(2, part.C, dtype=affine, device=x.device)
        merge.merge_products[(own.merge.programs,)](
            parts, None, sort, 0, None, both[0], both[1], None, None, 0, 0, 1,
            1, own.programs, 0, part.C, part.C, 1, 1, part.C, 1, 1, 1, own.merge.most, 0,
            GB=1, PB=1, CB=own.merge.results, QB=own.merge.slots,
            RAGGED=False, STRIDED=False, ONE_GROUP=False, WEIGHT=False, CORRECT=0,
            GROUPS=False, DIVIDE=False, AFFINE=True, num_warps=MERGE_WARPS, **OPTIONS,
        )  # fmt: skip
    return gx, both[0] if needs[1] else None, both[1] if needs[2] else None

"""Whole statistics in one program each, as calls on tensors: see ``launch.Fused``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bgn.activation import After
from bgn.kernels.fallback import Gradients
from bgn.kernels.plans import Plan
from bgn.kernels.triton import fused
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton.calls.arguments import (
    NOTHING,
    OPTIONS,
    Followed,
    Statistics,
    act_of,
    count_batch,
    entries_of,
    launch_of,
    new_statistics,
    on,
    reference_arguments,
    running_arguments,
)
from bgn.kernels.triton.calls.sweeps import merge_products
from bgn.kernels.triton.launch import FEATURES, RUNS, Launch
from bgn.renorm import Reference
from bgn.running import Running


def forward_fused(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    reference: Reference | None,
    after: After | None = None,
) -> tuple[Tensor, Statistics]:
    """The output, after what follows, and the statistics by one kernel."""
    part, way = plan.part, launch_of(plan, x.device)
    assert way.fused is not None
    y, stats = torch.empty_like(x), new_statistics(x, plan)
    numbers, constants = fused_arguments(plan, way)
    act, residual = (None, None) if after is None else after
    number, slope = act_of(act)
    with on(x.device):
        moved, moving = running_arguments(running)
        corrected, correcting, correct = reference_arguments(reference, plan, stats)
        E = entries_of(correct)
        per_channel = running is not None and len(running.mean) != part.G
        fused.forward[(way.fused.programs,)](
            x, y, residual, weight, bias, stats[0], stats[1], *moved, eps, *corrected,
            part.B * E, E, -(-part.C // part.G) if per_channel else 1, slope, *numbers,
            **constants, **moving, **correcting,
            WEIGHT=weight is not None, BIAS=bias is not None,
            PER_CHANNEL=per_channel,
            RESIDUAL=residual is not None, ACT=number,
        )  # fmt: skip
        count_batch(running)
    return y, Statistics(stats[0], stats[1], correct)


def fused_arguments(plan: Plan, way: Launch) -> tuple[tuple[int | float, ...], dict[str, Any]]:
    part, own = plan.part, way.fused
    assert own is not None
    cells = part.C * way.cells_per_channel // part.G
    # features of a channel lie side by side; else columns are channels
    k = part.P if way.walk == FEATURES else way.cells_per_channel
    count = float(part.block_size * cells * way.length)
    numbers = (
        part.C, part.P, part.G, part.block_size, k, cells,
        way.length // way.multiple, way.width // way.multiple, count,
    )  # fmt: skip
    constants = {
        "GB": own.groups,
        "R": own.rows,
        "V": own.along,
        "S": 1 if way.walk == RUNS else cells,
        "COLUMNS": way.walk != RUNS,
        "Q": way.multiple,
        "num_warps": own.warps,
        **OPTIONS,
    }
    return numbers, constants


def backward_fused(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    stats: Statistics,
    needs: tuple[bool, ...],
    affine: torch.dtype,
    followed: Followed = NOTHING,
) -> Gradients:
    """The gradients by one kernel, and a small one for weight and bias.

    That of a residual is written to ``followed.inner``.
    """
    part, way = plan.part, launch_of(plan, x.device)
    assert way.fused is not None
    gx = torch.empty_like(x) if needs[0] else None
    splits = part.block_size if way.walk == RUNS else 1
    sums, parts, sort = needs[1] or needs[2], None, part.B * splits * way.slots
    numbers, constants = fused_arguments(plan, way)
    E = entries_of(stats.correct)
    with on(x.device):
        if sums:
            parts = torch.empty(2 * sort, dtype=torch.float32, device=x.device)
        fused.backward[(way.fused.programs,)](
            gy, x, followed.y, followed.inner, gx, parts, sort, weight, followed.bias, stats.mean,
            stats.rstd, stats.correct, part.B * E, E, way.slots, followed.slope,
            *numbers, **constants,
            WEIGHT=weight is not None, BIAS=followed.bias is not None,
            CORRECT=stats.correct is not None, AFFINE=sums, INPUT=needs[0],
            RESIDUAL=followed.inner is not None, ACT=followed.act,
        )  # fmt: skip
    if parts is None:
        return gx, None, None
    of = launches.merge(part.C, part.B * splits * way.cells_per_channel)
    only = False, *needs[1:]
    _, gw, gb = merge_products(parts, None, plan, way, of, splits, None, stats, only, affine)
    return gx, gw, gb

"""The sweeps and the two merges between them, as calls on tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from bgn.activation import After
from bgn.kernels.fallback import Gradients
from bgn.kernels.plans import Plan
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton import merge, sweeps
from bgn.kernels.triton.calls.arguments import (
    NOTHING,
    Followed,
    Statistics,
    act_of,
    correct_kind,
    count_batch,
    entries_of,
    geometry,
    launch_of,
    new_statistics,
    on,
    reference_arguments,
    running_arguments,
    slots_of_groups,
)
from bgn.kernels.triton.launch import LANES, MOST_WARPS, VECTOR, Launch
from bgn.renorm import Reference
from bgn.running import Running


def statistics(
    x: Tensor,
    plan: Plan,
    eps: float,
    running: Running | None = None,
    reference: Reference | None = None,
    var: Tensor | None = None,
) -> Statistics:
    """The statistics of x by two kernels; running ones move. ``var`` is filled with variances."""
    part, way = plan.part, launch_of(plan, x.device)
    row = way.tiles if way.one_group else way.slots
    sort = part.B * way.splits * row
    parts = torch.empty(3 * sort, dtype=torch.float32, device=x.device)
    numbers, constants = geometry(plan, way)
    with on(x.device):
        sweeps.moments[(way.programs,)](x, parts, sort, *numbers, **constants)
        stats = new_statistics(x, plan)
        moved, moving = running_arguments(running)
        corrected, correcting, correct = reference_arguments(reference, plan, stats)
        E = entries_of(correct)
        of_running = part.G if running is None else len(running.mean)
        of_reference = part.G if reference is None else E
        per_channel = not of_running == of_reference == part.G
        entries = -(-part.C // part.G) if per_channel else 1
        numbers, constants = slots_of_groups(plan, way)
        blocks = part.B if running is not None else 1
        merge.merge_moments[(way.groups.programs * (part.B // blocks),)](
            parts, sort, stats[0], stats[1], var, part.B * E, blocks, way.splits, row,
            *moved, eps, *corrected, E, entries, *numbers,
            **constants, **moving, **correcting,
            VAR=var is not None, PER_CHANNEL=per_channel,
        )  # fmt: skip
        count_batch(running)
    return Statistics(stats[0], stats[1], correct)


def write(
    x: Tensor,
    plan: Plan,
    stats: Statistics,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float = 0.0,
    after: After | None = None,
) -> Tensor:
    """The output, after what follows."""
    part, way = plan.part, launch_of(plan, x.device)
    act, residual = (None, None) if after is None else after
    number, slope = act_of(act)
    numbers, constants = geometry(plan, way)
    y = torch.empty_like(x)
    E = entries_of(stats.correct)
    with on(x.device):
        sweeps.write[(way.programs,)](
            x, y, residual, weight, bias, stats.mean, stats.rstd, stats.correct, part.B * E, E, eps,
            slope, *numbers, **constants,
            GIVEN=stats.given, WEIGHT=weight is not None, BIAS=bias is not None,
            CORRECT=correct_kind(stats.correct, part.G),
            RESIDUAL=residual is not None, ACT=number,
        )  # fmt: skip
    return y


def merge_products(
    parts: Tensor,
    of_tiles: Tensor | None,
    plan: Plan,
    way: Launch,
    of: launches.Merge,
    splits: int,
    weight: Tensor | None,
    stats: Statistics,
    needs: tuple[bool, ...],
    affine: torch.dtype,
    divide: bool = True,
) -> Gradients:
    """Means (or sums) of groups, where x's gradient is needed, and gradients of the parameters."""
    part, groups, of_channels = plan.part, needs[0], needs[1] or needs[2]
    device = parts.device
    means = torch.empty(2, part.B, part.G, dtype=torch.float32, device=device) if groups else None
    both = torch.empty(2, part.C, dtype=affine, device=device) if of_channels else (None, None)
    numbers, constants = slots_of_groups(plan, way)
    E = entries_of(stats.correct)
    group_programs = way.groups.programs * part.B if groups else 0
    programs = group_programs + (of.programs if of_channels else 0)
    with on(device):
        merge.merge_products[(programs,)](
            parts, of_tiles, part.B * splits * way.slots, part.B * splits * way.tiles, means,
            both[0], both[1], weight, stats.correct, part.B * E, part.B * part.G, E,
            part.block_size, splits, way.tiles, way.slots, *numbers, of.most, group_programs,
            **constants, CB=of.results, QB=of.slots,
            WEIGHT=weight is not None, CORRECT=correct_kind(stats.correct, part.G),
            GROUPS=groups, DIVIDE=divide, AFFINE=of_channels,
        )  # fmt: skip
    return means, both[0] if needs[1] else None, both[1] if needs[2] else None


def products(
    gy: Tensor,
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    stats: Statistics,
    eps: float,
    needs: tuple[bool, ...],
    affine: torch.dtype,
    divide: bool = True,
    followed: Followed = NOTHING,
) -> Gradients:
    """Means of g and of g * xhat, (2, B, G), and the gradients of weight and bias.

    That of a residual is written to ``followed.inner``.
    """
    part, way = plan.part, launch_of(plan, x.device)
    sort, of_sort = (part.B * way.splits * row for row in (way.slots, way.tiles))
    parts = torch.empty(2 * sort, dtype=torch.float32, device=x.device)
    of_tiles = None
    if way.one_group:
        of_tiles = torch.empty(2 * of_sort, dtype=torch.float32, device=x.device)
    numbers, constants = geometry(plan, way)
    if followed.act:  # registers are scarce: fewer elements for each thread, but whole vectors
        vectors = way.cells * way.along * x.itemsize // VECTOR
        warps = min(2 * way.warps, MOST_WARPS, vectors // LANES)
        constants["num_warps"] = max(way.warps, warps)
    E = entries_of(stats.correct)
    with on(x.device):
        sweeps.products[(way.programs,)](
            gy, x, followed.y, followed.inner, parts, of_tiles, sort, of_sort, weight,
            followed.bias, stats.mean, stats.rstd, stats.correct, part.B * E, E, eps,
            followed.slope, *numbers, **constants,
            GIVEN=stats.given, WEIGHT=weight is not None, BIAS=followed.bias is not None,
            CORRECT=correct_kind(stats.correct, part.G),
            RESIDUAL=followed.inner is not None, ACT=followed.act,
        )  # fmt: skip
    return merge_products(
        parts, of_tiles, plan, way, way.channels, way.splits, weight, stats, needs, affine, divide
    )


def write_gradient(
    gy: Tensor,
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    stats: Statistics,
    means: Tensor | None,
    eps: float = 0.0,
    followed: Followed = NOTHING,
) -> Tensor:
    """The gradient of x; without means, the statistics do not depend on x."""
    part, way = plan.part, launch_of(plan, x.device)
    gx = torch.empty_like(x)
    numbers, constants = geometry(plan, way)
    E = entries_of(stats.correct)
    with on(x.device):
        sweeps.write_gradient[(way.programs,)](
            gy, x, gx, weight, followed.bias, stats.mean, stats.rstd, stats.correct, means,
            part.B * E, part.B * part.G, E, eps, followed.slope, *numbers, **constants,
            GIVEN=stats.given, WEIGHT=weight is not None, BIAS=followed.bias is not None,
            CORRECT=correct_kind(stats.correct, part.G), MEANS=means is not None,
            ACT=followed.act,
        )  # fmt: skip
    return gx

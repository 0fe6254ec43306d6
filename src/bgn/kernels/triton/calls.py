"""Calls of the Triton kernels on tensors, by the launch plan of their shape.

Whoever calls has asked whether the kernels may read the tensors (:mod:`bgn.kernels.triton`).
Importing this module imports triton.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import torch
from torch import Tensor

from bgn.kernels.plans import Plan
from bgn.kernels.triton import fused, merge, positional, sweeps
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton import launch_of as launch_on
from bgn.kernels.triton.launch import FEATURES, RUNS, Launch
from bgn.renorm import Reference
from bgn.running import Running

# 3.9 warns where nothing is said of fusing a product and a sum into one operation
OPTIONS = {"enable_fp_fusion": True}
MERGE_WARPS = 8
INTERPRETED = 4  # multiprocessors that the interpreter stands for


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    if device.type == "cpu":
        return INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def on(device: torch.device) -> Any:
    """Kernels go to the current device: make it x's."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    return contextlib.nullcontext()


def launch_of(plan: Plan, device: torch.device) -> Launch:
    """The launch plan of a shape on a device."""
    return launch_on(plan, processors(device))


class Statistics:
    """What forward keeps for backward: mean and rstd, (B, G), and corrections or None.

    Those of eval mode are given ones, (G,), whose second is a variance.
    """

    __slots__ = ("correct", "given", "mean", "rstd")

    def __init__(
        self, mean: Tensor, rstd: Tensor, correct: Tensor | None = None, given: bool = False
    ) -> None:
        self.mean, self.rstd, self.correct, self.given = mean, rstd, correct, given


def _correct_kind(correct: Tensor | None, G: int) -> int:
    return 0 if correct is None else 1 if correct.shape[2] == G else 2


def _entries(correct: Tensor | None) -> int:
    return 1 if correct is None else correct.shape[2]


def _geometry(plan: Plan, way: Launch) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The last arguments of every sweep: where things are."""
    part = plan.part
    per_run = -(-way.length // way.along)
    numbers = (
        part.C, part.P, part.G, _units(plan, way), part.block_size, way.cells_per_channel,
        way.length // way.multiple, way.width // way.multiple, per_run,
        way.slots, way.tiles, way.splits, way.steps, way.all_steps,
    )  # fmt: skip
    constants = {
        "U": way.cells,
        "V": way.along,
        "WALK": way.walk,
        "RAGGED": way.ragged,
        "EVEN": not way.ragged and part.C * way.cells_per_channel % part.G == 0,
        "SEGMENTED": way.segments > 1,
        "SWAPPED": way.swapped,
        "ONE_GROUP": way.one_group,
        "WIDE": way.wide,
        "Q": way.multiple,
        "num_warps": way.warps,
        **OPTIONS,
    }
    return numbers, constants


def _units(plan: Plan, way: Launch) -> int:
    """What groups are counted in: cells, or features where cells differ in length."""
    return plan.part.D if way.ragged else plan.part.C * way.cells_per_channel


def _groups(plan: Plan, way: Launch) -> tuple[tuple[int, ...], dict[str, Any]]:
    """How slots belong to groups."""
    part = plan.part
    units = _units(plan, way)
    own = max(1, way.tiles // part.G)
    numbers = part.C, part.P, part.G, units, way.cells_per_channel, own, way.groups.most
    constants = {
        "GB": way.groups.results,
        "PB": way.groups.slots,
        "RAGGED": way.ragged,
        "STRIDED": way.swapped or way.segments > 1,
        "ONE_GROUP": way.one_group,
        "num_warps": MERGE_WARPS,
        **OPTIONS,
    }
    return numbers, constants


def _running(running: Running | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Running statistics as arguments; without momentum, their counter has counted the batch."""
    if running is None:
        return (None, None, None, 0.0), {"RUNNING": False, "COUNTER": False, "CUMULATIVE": False}
    cumulative = running.momentum is None and running.counter is not None
    if cumulative:
        assert running.counter is not None
        running.counter.add_(1)
    values = running.mean, running.var, running.counter, float(running.momentum or 0.0)
    counts = running.counter is not None and not cumulative
    return values, {"RUNNING": True, "COUNTER": counts, "CUMULATIVE": cumulative}


def _reference(
    reference: Reference | None, plan: Plan, like: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any], Tensor | None]:
    """What a batch is corrected towards as arguments, and memory for the corrections."""
    if reference is None:
        return (None, None, None, 1.0, 0.0, None), {"CORRECT": False, "SHARE": False}, None
    correct = like.new_empty(2, plan.part.B, reference.entries)
    share = reference.share
    tensor = share if isinstance(share, Tensor) else None
    r_max, d_max = (reference.r_max, reference.d_max) if tensor is not None else reference.numbers()
    values = reference.mean, reference.var, correct, float(r_max), float(d_max), tensor
    return values, {"CORRECT": True, "SHARE": tensor is not None}, correct


def _new_statistics(x: Tensor, plan: Plan, sorts: int = 2) -> Tensor:
    shape = sorts, plan.part.B, plan.part.G
    return torch.empty(shape, dtype=torch.float32, device=x.device)


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
    numbers, constants = _geometry(plan, way)
    with on(x.device):
        sweeps.moments[(way.programs,)](x, parts, sort, *numbers, **constants)
        stats = _new_statistics(x, plan)
        moved, moving = _running(running)
        corrected, correcting, correct = _reference(reference, plan, stats)
        E = _entries(correct)
        of_running = part.G if running is None else len(running.mean)
        of_reference = part.G if reference is None else E
        per_channel = not of_running == of_reference == part.G
        entries = -(-part.C // part.G) if per_channel else 1
        numbers, constants = _groups(plan, way)
        blocks = part.B if running is not None else 1
        merge.merge_moments[(way.groups.programs * (part.B // blocks),)](
            parts, sort, stats[0], stats[1], var, part.B * E, blocks, way.splits, row,
            *moved, eps, *corrected, E, entries, *numbers,
            **constants, **moving, **correcting,
            VAR=var is not None, PER_CHANNEL=per_channel,
        )  # fmt: skip
    return Statistics(stats[0], stats[1], correct)


def write(
    x: Tensor,
    plan: Plan,
    stats: Statistics,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float = 0.0,
    relu: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """The output, with a residual added and a ReLU where they are asked for."""
    part, way = plan.part, launch_of(plan, x.device)
    numbers, constants = _geometry(plan, way)
    y = torch.empty_like(x)
    E = _entries(stats.correct)
    with on(x.device):
        sweeps.write[(way.programs,)](
            x, y, residual, weight, bias, stats.mean, stats.rstd, stats.correct, part.B * E, E, eps,
            *numbers, **constants,
            GIVEN=stats.given, WEIGHT=weight is not None, BIAS=bias is not None,
            CORRECT=_correct_kind(stats.correct, part.G),
            RESIDUAL=residual is not None, RELU=relu,
        )  # fmt: skip
    return y


def forward_fused(
    x: Tensor,
    plan: Plan,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    reference: Reference | None,
    relu: bool = False,
    residual: Tensor | None = None,
) -> tuple[Tensor, Statistics]:
    """The output and its statistics by one kernel."""
    part, way = plan.part, launch_of(plan, x.device)
    assert way.fused is not None
    y, stats = torch.empty_like(x), _new_statistics(x, plan)
    numbers, constants = _fused(plan, way)
    with on(x.device):
        moved, moving = _running(running)
        corrected, correcting, correct = _reference(reference, plan, stats)
        E = _entries(correct)
        per_channel = running is not None and len(running.mean) != part.G
        fused.forward[(way.fused.programs,)](
            x, y, residual, weight, bias, stats[0], stats[1], *moved, eps, *corrected,
            part.B * E, E, -(-part.C // part.G) if per_channel else 1, *numbers,
            **constants, **moving, **correcting,
            WEIGHT=weight is not None, BIAS=bias is not None,
            PER_CHANNEL=per_channel,
            RESIDUAL=residual is not None, RELU=relu,
        )  # fmt: skip
    return y, Statistics(stats[0], stats[1], correct)


def _fused(plan: Plan, way: Launch) -> tuple[tuple[int | float, ...], dict[str, Any]]:
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


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def backward_fused(
    gy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    plan: Plan,
    stats: Statistics,
    needs: tuple[bool, ...],
    affine: torch.dtype,
) -> Gradients:
    """The gradients by one kernel, and a small one for weight and bias."""
    part, way = plan.part, launch_of(plan, x.device)
    assert way.fused is not None
    gx = torch.empty_like(x) if needs[0] else None
    splits = part.block_size if way.walk == RUNS else 1
    sums, parts, sort = needs[1] or needs[2], None, part.B * splits * way.slots
    numbers, constants = _fused(plan, way)
    E = _entries(stats.correct)
    with on(x.device):
        if sums:
            parts = torch.empty(2 * sort, dtype=torch.float32, device=x.device)
        fused.backward[(way.fused.programs,)](
            gy, x, gx, parts, sort, weight, stats.mean, stats.rstd, stats.correct, E, way.slots,
            *numbers, **constants,
            WEIGHT=weight is not None, CORRECT=stats.correct is not None,
            AFFINE=sums, INPUT=needs[0],
        )  # fmt: skip
    if parts is None:
        return gx, None, None
    of = launches.merge(part.C, part.B * splits * way.cells_per_channel)
    only = False, *needs[1:]
    _, gw, gb = _merge_products(parts, None, plan, way, of, splits, None, stats, only, affine)
    return gx, gw, gb


def _merge_products(
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
    numbers, constants = _groups(plan, way)
    E = _entries(stats.correct)
    group_programs = way.groups.programs * part.B if groups else 0
    programs = group_programs + (of.programs if of_channels else 0)
    with on(device):
        merge.merge_products[(programs,)](
            parts, of_tiles, part.B * splits * way.slots, part.B * splits * way.tiles, means,
            both[0], both[1], weight, stats.correct, part.B * E, part.B * part.G, E,
            part.block_size, splits, way.tiles, way.slots, *numbers, of.most, group_programs,
            **constants, CB=of.results, QB=of.slots,
            WEIGHT=weight is not None, CORRECT=_correct_kind(stats.correct, part.G),
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
) -> Gradients:
    """Means of g and of g * xhat, (2, B, G), and the gradients of weight and bias."""
    part, way = plan.part, launch_of(plan, x.device)
    sort, of_sort = (part.B * way.splits * row for row in (way.slots, way.tiles))
    parts = torch.empty(2 * sort, dtype=torch.float32, device=x.device)
    of_tiles = None
    if way.one_group:
        of_tiles = torch.empty(2 * of_sort, dtype=torch.float32, device=x.device)
    numbers, constants = _geometry(plan, way)
    E = _entries(stats.correct)
    with on(x.device):
        sweeps.products[(way.programs,)](
            gy, x, parts, of_tiles, sort, of_sort, weight, stats.mean, stats.rstd, stats.correct,
            part.B * E, E, eps, *numbers, **constants,
            GIVEN=stats.given, WEIGHT=weight is not None,
            CORRECT=_correct_kind(stats.correct, part.G),
        )  # fmt: skip
    return _merge_products(
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
) -> Tensor:
    """The gradient of x; without means, statistics do not depend on x, which is not read."""
    part, way = plan.part, launch_of(plan, x.device)
    gx = torch.empty_like(x)
    numbers, constants = _geometry(plan, way)
    E = _entries(stats.correct)
    with on(x.device):
        sweeps.write_gradient[(way.programs,)](
            gy, x, gx, weight, stats.mean, stats.rstd, stats.correct, means,
            part.B * E, part.B * part.G, E, eps, *numbers, **constants,
            GIVEN=stats.given, WEIGHT=weight is not None,
            CORRECT=_correct_kind(stats.correct, part.G), MEANS=means is not None,
        )  # fmt: skip
    return gx


def positional_plan(x: Tensor, plan: Plan) -> tuple[Any, tuple[int, ...], dict[str, Any]]:
    """The plan of PN, and the last arguments of its kernels."""
    part = plan.part
    last = plan.layout is not torch.contiguous_format or part.P == 1
    own = launches.positional(
        part.N, part.C, part.P, last, plan.dtype.itemsize, processors(x.device)
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

"""Addresses of maps with more than 2^31 elements, which no test can hold, beside Python's integers.

The functions that say where a program looks run alone, for some programs of real launch plans.
"""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import pytest
import torch
import triton
import triton.language as tl

from bgn import kernels
from bgn.kernels.triton import fused, positional, tiles
from bgn.kernels.triton.calls import arguments
from bgn.kernels.triton.calls.fused import fused_arguments
from bgn.kernels.triton.calls.positional import positional_plan
from bgn.kernels.triton.launch import RUNS, launch_of
from bgn.partition import Partition, channel_groups, slices
from tests import kernel_calls

HUGE = [
    slices(2, 64, 50_000_000, 1),
    slices(1, 64, 50_000_000, 64),
    slices(1, 64, 50_000_000, 7),
    slices(1, 3, 1_000_000_007, 5),
    slices(2, 64, 50_000_000, 128),
    slices(2, 64, 50_000_000, 96),
    slices(3, 1, 1 << 30, 1 << 29),
    slices(1, 1_000_000, 4096, 250_000),
    slices(1, 1, 3_000_000_000, 1),
    slices(4_000_000, 1024, 1, 1024),
    slices(4_000_000, 1024, 1, 32, 4_000_000),
    slices(5_000_000, 32, 16, 512),
    slices(70_000, 512, 64, 1000, 2),
    slices(4_000_000, 64, 16, 8, 4_000_000),
    channel_groups(60_000, 100, 4096, 32, 30_000),
]


@triton.jit
def look(
    address, exists, channels, groups, pid, turn,
    C, P, G, K, n, k, L, W, per_run, slots, tiles_, splits, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, EVEN: tl.constexpr,
    SEGMENTED: tl.constexpr, SWAPPED: tl.constexpr, ONE_GROUP: tl.constexpr, WIDE: tl.constexpr,
    Q: tl.constexpr,
):  # fmt: skip
    """What the sweeps compute for a step of a program."""
    tile, t, b = tiles.place(pid, tiles_, splits)
    length_of_cell, width = tiles.extents(L, W, tile, Q, WIDE)
    slot, valid, channel, group, first, rel, length, segment = tiles.cells(
        tile, C, P, G, K, k, length_of_cell, width, tiles_,
        U, WALK, RAGGED, EVEN, SEGMENTED, SWAPPED, ONE_GROUP, WIDE,
    )  # fmt: skip
    base, offset, mask, _ = tiles.step(
        t * steps + turn, b, n, P, length_of_cell, width, per_run, first, rel, length, valid,
        segment, V, WALK, RAGGED, SEGMENTED, WIDE,
    )  # fmt: skip
    u = tl.arange(0, U)
    at = u[:, None] * V + tl.arange(0, V)[None, :]
    tl.store(address + at, base + offset)
    tl.store(exists + at, mask)
    tl.store(channels + u, channel)
    tl.store(groups + u, group + u * 0)


def element(address: int, part: Partition, last: bool) -> tuple[int, int, int]:
    """Block, channel and group of what lies at an address."""
    sample, rest = divmod(address, part.D)
    channel, position = divmod(rest, part.P)
    if last:
        position, channel = divmod(rest, part.C)
    unit = channel if part.whole_channels else channel * part.P + position
    return sample // part.block_size, channel, ((unit + 1) * part.G - 1) // part.units


def numbers(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int64)


def plan_of(part: Partition, last: bool) -> Any:
    """A plan for tensors without numbers."""
    x = torch.empty(part.N, part.C, part.P, 1, dtype=torch.float16, device="meta")
    layout = torch.channels_last if last else torch.contiguous_format
    return kernel_calls.plan(x.contiguous(memory_format=layout), part)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("part", HUGE, ids=str)
def test_programs_look_at_their_own_cells(part: Partition, last: bool) -> None:
    plan = plan_of(part, last)
    last = plan.layout is torch.channels_last
    way, draws = launch_of(plan, 132), random.Random(0)
    values, constants = arguments.geometry(plan, way)
    constants = {name: value for name, value in constants.items() if name.isupper()}
    seen = set()
    for pid in [0, way.programs - 1, *(draws.randrange(way.programs) for _ in range(6))]:
        t = pid // way.tiles % way.splits
        steps = min(way.steps, way.all_steps - t * way.steps)
        for turn in {0, steps - 1, draws.randrange(steps)}:
            address, channels, groups = (
                numbers(*s) for s in [(way.cells, way.along), (way.cells,), (way.cells,)]
            )
            exists = torch.empty(way.cells, way.along, dtype=torch.bool)
            look[(1,)](address, exists, channels, groups, pid, turn, *values, **constants)
            block = pid // way.tiles // way.splits
            own = address[exists].tolist()
            lanes = torch.arange(way.cells)[:, None].expand_as(exists)[exists].tolist()
            assert len(own) == len(set(own))
            seen |= set(own)
            for at, lane in list(zip(own, lanes, strict=True))[:: max(1, len(own) // 50)]:
                assert 0 <= at < part.N * part.D
                found = element(at, part, last)
                group = int(groups if way.one_group and groups.dim() == 0 else groups[lane])
                assert found == (block, int(channels[lane]), group), (at, lane, way)
    assert 0 in seen
    assert way.ragged or part.N * part.D - 1 in seen  # the last cell may be an empty one


@triton.jit
def look_runs(
    address, exists, groups, blocks, pid, C, P, G, n, k, own, L, W, count,
    GB: tl.constexpr, R: tl.constexpr, V: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr,
    Q: tl.constexpr,
):  # fmt: skip
    """What a fused kernel computes, as (lanes, V) or (V, R)."""
    if COLUMNS:
        b, col, base, offset, mask = fused.column_tile(pid, n, L * Q, W * Q, G, GB, R, V)
        g = (pid - b * tl.cdiv(G, GB)) * GB + tl.arange(0, V) // S
        at = tl.arange(0, V)[:, None] * R + tl.arange(0, R)[None, :]
        tl.store(groups + at, g[:, None] + at * 0)
    else:
        b, g, base, offset, mask, sample, unit, inside = fused.run_tile(
            pid, n, own, L * Q, W * Q, G, GB, R, V
        )
        at = (tl.arange(0, GB)[:, None] * R + tl.arange(0, R)[None, :])[:, :, None] * V
        at = at + tl.arange(0, V)[None, None, :]
        tl.store(groups + at, g[:, None, None] + at * 0)
    tl.store(address + at, base + offset)
    tl.store(exists + at, mask)
    tl.store(blocks, b)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("part", HUGE, ids=str)
def test_fused_programs_look_at_their_own_cells(part: Partition, last: bool) -> None:
    plan = plan_of(part, last)
    last = plan.layout is torch.channels_last
    way = launch_of(plan, 132)
    if way.fused is None:
        return
    values, constants = fused_arguments(plan, way)
    constants = {name: value for name, value in constants.items() if name.isupper()}
    programs, seen = way.fused.programs, set()
    for pid in 0, programs // 3, programs - 1:
        size = way.fused.rows * way.fused.along
        size *= way.fused.groups if way.walk == RUNS else 1
        address, groups, blocks = numbers(size), numbers(size), numbers(1)
        exists = torch.empty(size, dtype=torch.bool)
        look_runs[(1,)](address, exists, groups, blocks, pid, *values, **constants)
        own = address[exists].tolist()
        assert len(own) == len(set(own)) > 0
        seen |= set(own)
        for at, group in zip(own, groups[exists].tolist(), strict=True):
            block, _, right = element(at, part, last)
            assert (block, right) == (int(blocks), group), (at, way)
    assert {0, part.N * part.D - 1} <= seen


@triton.jit
def look_positional(
    address, exists, i, C, P, SC, SP, tiles_, steps, all_steps, U: tl.constexpr, V: tl.constexpr
):  # fmt: skip
    """What the kernels of PN compute for a tile."""
    base, offset, mask = positional.tile_of(i, C, P, SC, SP, tiles_, U, V)
    at = tl.arange(0, U)[:, None] * V + tl.arange(0, V)[None, :]
    tl.store(address + at, base + offset)
    tl.store(exists + at, mask)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("N", "C", "P"), [(1, 2, 1_500_000_000), (3_000_000_000, 1, 1), (70_000, 64, 1024)]
)
def test_programs_of_positional_norm_look_at_all_channels(
    N: int, C: int, P: int, last: bool
) -> None:
    x = torch.empty(N, C, P, 1, dtype=torch.float16, device="meta")
    layout = torch.channels_last if last else torch.contiguous_format
    plan = kernels.plan(kernels.positions, x.contiguous(memory_format=layout), 1)
    last = plan.layout is torch.channels_last
    with mock.patch.object(arguments, "processors", return_value=132):
        own, values, constants = positional_plan(x, plan)
    steps, all_steps = values[5:7]
    assert own.programs * steps >= all_steps > (own.programs - 1) * steps
    for i in 0, all_steps // 3, all_steps - 1:
        address = numbers(own.channels, own.positions)
        exists = torch.empty(own.channels, own.positions, dtype=torch.bool)
        sizes = {name: constants[name] for name in "UV"}
        look_positional[(1,)](address, exists, i, *values, **sizes)
        first = [divmod(at, C * P) for at in address[0][exists[0]].tolist()]
        assert first
        for lane, (sample, rest) in enumerate(first):
            assert 0 <= sample < N
            stride = 1 if last or P == 1 else P
            right = sample * C * P + rest + stride * torch.arange(C)
            assert torch.equal(address[:C, lane], right)
    assert int(address[exists].max()) == N * C * P - 1

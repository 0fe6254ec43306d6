"""Launch plans of the GPU core, in plain numbers: for every shape, without triton."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator

import pytest
from benchmarks.shapes import NETWORKS

import bgn
from bgn.kernels.triton import launch as launches
from bgn.kernels.triton.launch import COLUMNS, FEATURES, RUNS, Launch, launch, positional
from bgn.partition import Partition, channel_groups, slices

GPUS = (1, 108, 304)
UNET_3D = [(32, 128), (64, 64), (128, 32), (256, 16), (320, 8), (320, 4)]  # channels, side


def resnet50() -> Iterator[Partition]:
    for shape in NETWORKS["resnet50"]:
        C, P = shape.C, shape.H * shape.W
        for N in (2, 8, 32, 128):
            for G in {bgn.paper_groups(N), 1, 32, C, 2 * C, 7}:
                yield slices(N, C, P, G)
                yield slices(N, C, P, G, N)


def unet_3d() -> Iterator[Partition]:
    for C, side in UNET_3D:
        for N in (1, 2):
            for G in (1, 8, C, 2 * C):
                yield slices(N, C, side**3, G)


def extremes() -> Iterator[Partition]:
    yield slices(1, 64, 6_250_000, 1)  # 4e8 elements in one statistic
    yield slices(2, 64, 50_000_000, 1)  # more than 2^31 elements
    yield slices(1, 64, 50_000_000, 64)  # in one sample
    yield slices(1, 64, 50_000_000, 7)
    yield slices(2, 64, 1_000_000, 64_000_000)  # G = D
    yield slices(1_000_000, 64, 1, 1, 1_000_000)  # LN of a table
    yield slices(4_000_000, 512, 1, 512)  # BN of a table
    yield slices(1, 1, 1, 1)
    yield slices(1, 1, 400_000_000, 1)
    yield slices(1, 65_536, 4, 1)
    yield slices(3, 7, 11, 76)
    yield channel_groups(6, 100, 49, 32, 2)


ALL = [*resnet50(), *unet_3d(), *extremes()]
SETTINGS = [(last, size, gpu) for last in (False, True) for size in (2, 4) for gpu in GPUS]


def plans(part: Partition) -> Iterator[tuple[Launch, int, int]]:
    for last, size, gpu in SETTINGS:
        yield launch(part, last, size, gpu), size, gpu


def test_a_plan_is_a_frozen_function_of_its_arguments() -> None:
    part = slices(2, 64, 49, 1)
    way = launch(part, False, 4, 132)
    assert way == launch(part, False, 4, 132)
    assert hash(way) == hash(launch(part, False, 4, 132))
    with pytest.raises(dataclasses.FrozenInstanceError):
        way.steps = 1  # type: ignore[misc]


def is_power_of_2(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def test_every_step_of_every_tile_has_a_program() -> None:
    for part in ALL:
        for way, size, _ in plans(part):
            side = way.slots if way.walk == RUNS else way.width
            assert way.tiles == -(-side // way.cells) * way.segments
            assert (way.splits - 1) * way.steps < way.all_steps <= way.splits * way.steps
            n = part.block_size
            if way.walk == RUNS:
                assert way.all_steps == n * -(-way.length // way.along)
            else:
                rows = n if way.walk == FEATURES else n * way.length
                assert way.all_steps == -(-rows // way.along)
            if not way.ragged:  # cells make up the sample
                assert way.cells_per_channel * way.length == part.P
                assert way.slots * way.length == part.D
            assert way.programs == way.tiles * way.splits * part.B < 1 << 31
            assert is_power_of_2(way.cells)
            assert is_power_of_2(way.along)
            assert way.cells * way.along <= launches.TILE[size]
            assert 1 <= way.warps <= 16


def test_large_maps_fill_the_device() -> None:
    for part in ALL:
        for way, _, gpu in plans(part):
            if 512 * launches.SMALLEST_TILE * gpu <= part.N * part.D:
                assert way.programs >= 2 * gpu, (part, way)


def test_numbers_between_the_sweeps_are_few() -> None:
    """At most a number per 16 elements and sort, but where a statistic has hardly more elements."""
    for part in ALL:
        for way, _, gpu in plans(part):
            if way.fused is None and part.N * part.D >= 1 << 20 and way.walk != FEATURES:
                slots = part.B * way.splits * (way.tiles if way.one_group else way.slots)
                assert slots <= max(part.N * part.D // 16, 64 * gpu), (part, way)


def slots_of_groups(part: Partition) -> int:
    """The most channels that a group meets, counted."""
    found = 0
    bounds = part.bounds()
    for first, end in itertools.pairwise(bounds):
        found = max(found, (end - 1) // part.P - first // part.P + 1)
    return found


def test_bounds_of_uneven_groups_hold() -> None:
    for C, P in [(3, 7), (8, 5), (5, 12), (1, 50), (17, 2)]:
        for G in range(1, C * P + 1):
            part = slices(1, C, P, G)
            if part.whole_channels or part.D % G == 0:
                continue
            cells = part.cells()
            most = int(cells.channel.bincount().max())
            assert launches.most_cells(C, P, G) >= most
            assert launches.most_channels(P, C * P, G) >= slots_of_groups(part)
            assert launch(part, False, 4, 1).length >= int(cells.length.max())


def test_slots_of_a_group_or_channel_all_get_merged() -> None:
    for part in ALL:
        for way, _, _ in plans(part):
            for merge, results in (way.groups, part.G), (way.channels, part.C):
                assert is_power_of_2(merge.results)
                assert is_power_of_2(merge.slots)
                assert merge.results * merge.slots <= 2 * launches.MERGE
                assert merge.programs * merge.results >= results
            assert way.channels.most == part.B * way.splits * way.cells_per_channel
            if way.one_group:
                assert way.groups.most * part.G == way.splits * max(way.tiles, part.G)


def test_a_fused_tile_holds_a_whole_statistic() -> None:
    seen = set()
    for part in ALL:
        for way, _, _ in plans(part):
            own = way.fused
            if own is None:
                continue
            seen.add(way.walk)
            cells = way.slots // part.G
            if way.walk == RUNS:
                assert own.rows >= part.block_size * cells
                assert own.along >= way.length
                assert own.rows * own.along <= launches.FUSED
            else:
                assert own.rows >= part.block_size * (1 if way.walk == FEATURES else way.length)
                assert own.along == own.groups * cells
            assert own.programs == part.B * -(-part.G // own.groups)
            assert own.groups * own.programs >= part.B * part.G
    assert seen == {RUNS, COLUMNS, FEATURES}


def test_walks() -> None:
    """Which way through memory: the table of the module's docstring."""
    for part, last, walk in [
        (slices(2, 64, 49, 1), False, RUNS),
        (slices(2, 64, 49, 1), True, COLUMNS),
        (slices(2, 64, 1, 1), False, COLUMNS),
        (slices(2, 64, 64, 128), True, COLUMNS),
        (slices(2, 64, 49, 7 * 64), True, FEATURES),
        (slices(2, 64, 49, 64 * 49), False, FEATURES),
        (slices(2, 64, 49, 5), True, FEATURES),
        (slices(2, 64, 49, 5), False, RUNS),
    ]:
        assert launch(part, last, 4, 132).walk == walk, (part, last)


def test_addresses_within_a_tile_have_64_bits_where_they_must() -> None:
    assert launch(slices(2, 4, 800_000_000, 7), True, 4, 132).wide
    assert launch(slices(1, 64, 50_000_000, 1), False, 4, 132).wide  # width
    assert not launch(slices(9, 64, 30_000_000, 1), False, 4, 132).wide  # the tile's first one has
    assert not launch(slices(2, 64, 49, 1), False, 4, 132).wide


def test_rows_of_resnet50_are_read_in_vectors() -> None:
    """All maps but 7x7 and 14x14 have rows of a multiple of 16 positions; 14x14 of 4."""
    for shape in NETWORKS["resnet50"]:
        way = launch(slices(2, shape.C, shape.H * shape.W, 1), False, 4, 132)
        assert way.multiple == math.gcd(shape.H * shape.W, 16)


@pytest.mark.parametrize("last", [False, True])
def test_positional(last: bool) -> None:
    for N, C, P in [
        (2, 64, 3136),
        (8, 2048, 49),
        (1, 3, 50_000_000),
        (1_000_000, 64, 1),
        (1, 1, 1),
    ]:
        for size in (2, 4):
            for gpu in GPUS:
                own = positional(N, C, P, last, size, gpu)
                rows, columns = (1, N * P) if last else (N, P)
                assert own.channels >= C
                assert own.tiles == -(-columns // own.positions)
                assert own.programs * own.steps >= rows * own.tiles
                assert own.programs <= launches.BUSY * gpu
                if launches.fits_positional(C, last, size):
                    assert own.channels * own.positions <= launches.FUSED

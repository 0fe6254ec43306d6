"""Launch plans: how the Triton kernels cut one feature map, as a pure function of numbers.

A sample is made of *cells*: runs of its features with one channel and one group, ``per_channel`` of
them in every channel. A program walks over a *tile*, ``cells`` cells by ``along`` elements of each,
step by step, and its sums go into *slots*, one per cell. There are three walks:

RUNS      contiguous maps. The elements of a cell lie side by side, once per sample.
COLUMNS   channels_last maps, and maps without positions. Cells lie side by side, and the elements
          of a cell are ``width`` = C apart.
FEATURES  every feature is a cell: where groups would cut a channel into shorter pieces than a
          column is worth. Cells lie side by side, and samples are ``width`` = D apart.

A statistic gathers the slots of its cells from all ``splits`` programs that share them, in a fixed
order: nothing depends on which program ends first. Where every tile lies within one group
(``one_group``), a program's moments are one number per tile. Where a whole statistic fits one
program, there is a ``Fused`` plan beside the one for sweeps.

Nothing here imports triton or asks a device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from bgn.kernels.plans import Plan
from bgn.partition import Partition

RUNS, COLUMNS, FEATURES = 0, 1, 2
WALKS = ("runs", "columns", "features")
THREAD = 16  # elements of a tile per thread
TILE = {4: 2048, 2: 4096}  # elements of a tile by bytes of an element: four or eight warps
SMALLEST_TILE = 512
BUSY = 4  # programs per multiprocessor that keep its memory pipes full
MOST_WARPS = 16  # of a program
LANES = 64  # threads of a warp on AMD; 32 elsewhere
VECTOR = 16  # bytes that a thread loads at once
LINE = 128  # bytes: what a row of a tile should at least cover
ALIGNED = 16  # elements of 16 bytes, of the smallest dtype; what triton looks for
SECTOR = 32  # bytes: the least that memory moves
MERGE = 512  # slots that a merging program loads at once: with more, registers run out
FUSED = 8192  # elements of a statistic that stay in registers
FILLED = 0.85  # part of a tile that should be in use
SHORTEST = 16  # positions below which a segment of a channel is no column


def power_of_2(n: int) -> int:
    """The least power of 2 that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Merge:
    """How slots become statistics, or sums of channels: a tile of results by slots."""

    results: int
    """Results of one program; a power of 2."""
    slots: int
    """Slots that it loads at once; a power of 2."""
    most: int
    """Slots of the largest result."""
    programs: int


@dataclass(frozen=True)
class Fused:
    """One program per ``groups`` statistics of a block: everything is read once.

    RUNS: a tile of groups by rows, the cells of all samples, by positions. COLUMNS: a tile of
    columns by rows; a group has ``columns // groups`` of them.
    """

    groups: int
    rows: int
    along: int
    programs: int
    warps: int


@dataclass(frozen=True)
class Launch:
    """The launch plan of one feature map: of four sweeps and two merges."""

    walk: int
    ragged: bool
    """Whether cells differ in length; then slots of channels are padded with empty ones."""
    cells_per_channel: int
    length: int
    """Elements of a cell in one sample; the most where they differ."""
    slots: int
    """Slots of one block and split."""
    width: int
    """Elements from one row to the next; those of a sample in RUNS."""
    segments: int
    """Parts of a channel that columns are cut into."""
    multiple: int
    """A common divisor of length and width, at most ALIGNED."""
    swapped: bool
    """Whether features lie with channels side by side."""
    cells: int
    along: int
    tiles: int
    """Tiles side by side."""
    splits: int
    """Programs that share the steps of a tile."""
    steps: int
    """Steps of each of them."""
    all_steps: int
    one_group: bool
    wide: bool
    """Whether offsets within a tile, or within a sample of RUNS, need 64 bits."""
    programs: int
    warps: int
    groups: Merge
    channels: Merge
    fused: Fused | None

    @property
    def partials(self) -> int:
        """Float32 numbers of one sort between two sweeps: slots of all blocks and splits."""
        return self.splits * self.slots * (self.programs // (self.splits * self.tiles))


def launch(part: Partition, channels_last: bool, itemsize: int, processors: int) -> Launch:
    """The plan for a partition in one layout, on so many multiprocessors."""
    _N, C, P, B, G = part.N, part.C, part.P, part.B, part.G
    D, n = part.D, part.block_size
    ragged, swapped = False, False
    if part.whole_channels:
        per_channel = 1
    elif D % G == 0:
        per_channel = math.lcm(C, G) // C
    else:
        per_channel = 0  # cells differ in length
    together = channels_last or P == 1
    length = P // per_channel if per_channel else 1
    if together and per_channel and (per_channel == 1 or length >= SHORTEST):
        walk, width, segments = COLUMNS, C, per_channel
    elif together or length * per_channel == per_channel == P:
        walk, width, segments, swapped = FEATURES, D, 1, channels_last and P > 1
        per_channel, length = P, 1
    else:
        walk, width, segments = RUNS, D, 1
        if not per_channel:
            ragged, per_channel = True, most_cells(C, P, G)
            length = min(P, ceil_div(D, G))
    slots = C * per_channel
    side = slots if walk == RUNS else width  # cells that lie side by side
    rows = n if walk == FEATURES else n * length  # elements of a cell in a block
    tile = TILE[itemsize]
    while True:
        cells, along = tile_of(walk, side, length, rows, tile, itemsize)
        tiles = ceil_div(side, cells) * segments
        all_steps = n * ceil_div(length, along) if walk == RUNS else ceil_div(rows, along)
        if tiles * B * all_steps >= processors or tile <= SMALLEST_TILE:
            break
        tile //= 2
    splits = min(all_steps, max(1, ceil_div(BUSY * processors, tiles * B)))
    steps = ceil_div(all_steps, splits)
    splits = ceil_div(all_steps, steps)
    units = C * per_channel if not ragged else 0
    within = units % G == 0 and (units // G) % cells == 0 if units else False
    one_group = G == 1 or (within and segments == 1 and not swapped)
    # slots of a group: of its cells, or of the tiles within it
    if one_group:
        own = max(1, tiles // G)
    elif ragged:
        own = most_channels(P, D, G)
    else:
        own = ceil_div(units, G)
    return Launch(
        walk, ragged, per_channel, length, slots, width, segments,
        math.gcd(length, width, ALIGNED) if walk == RUNS and not ragged else 1, swapped,
        cells, along, tiles, splits, steps, all_steps, one_group,
        wide=max(cells * length, width if walk == RUNS else along * width, slots) >= 1 << 31,
        programs=tiles * splits * B,
        warps=warps_of(cells * along),
        groups=merge(G, own * splits),
        channels=merge(C, B * splits * per_channel),
        fused=fuse(part, walk, per_channel, length, ragged, swapped, itemsize),
    )  # fmt: skip


def launch_of(plan: Plan, processors: int) -> Launch:
    """The plan of a shape on a device with so many multiprocessors, made on first use."""
    found: Launch | None = plan.launches.get(processors)
    if found is None:
        last = plan.layout is not torch.contiguous_format
        found = launch(plan.part, last, plan.dtype.itemsize, processors)
        plan.launches[processors] = found
    return found


def most_cells(C: int, P: int, G: int) -> int:
    """The most groups that a channel may meet."""
    return min(P, (G - 1) // C + 2, G)


def most_channels(P: int, D: int, G: int) -> int:
    """The most channels that a group may meet."""
    return (ceil_div(D, G) - 2) // P + 2 if D > G else 1


def tile_of(
    walk: int, side: int, length: int, rows: int, tile: int, itemsize: int
) -> tuple[int, int]:
    """Cells and elements along them of a tile."""
    if walk != RUNS:
        cells = min(power_of_2(side), 2 * LINE // itemsize, tile)
        along = min(power_of_2(rows), tile // cells)
        cells = min(power_of_2(side), tile // along)  # few rows: wider
        return cells, along
    least = min(power_of_2(length), LINE // itemsize, tile)
    lengths = [least << i for i in range(tile.bit_length()) if least << i <= tile]
    lengths = [v for v in lengths if v < 2 * length] or [least]
    # the longest that fills its tiles; else the one that fills them best
    share = {v: length / (ceil_div(length, v) * v) for v in lengths}
    good = [v for v in lengths if share[v] >= FILLED]
    along = max(good) if good else max(lengths, key=lambda v: (share[v], v))
    return min(power_of_2(side), tile // along), along


def warps_of(elements: int) -> int:
    """Warps of a program with a tile of so many elements."""
    return min(MOST_WARPS, max(1, power_of_2(elements) // (32 * THREAD)))


def merge(results: int, most: int) -> Merge:
    """A plan that gathers up to ``most`` slots for each of the results."""
    slots = min(power_of_2(most), MERGE)
    own = min(power_of_2(results), max(1, MERGE // slots))
    return Merge(own, slots, most, ceil_div(results, own))


def fuse(
    part: Partition,
    walk: int,
    per_channel: int,
    length: int,
    ragged: bool,
    swapped: bool,
    itemsize: int,
) -> Fused | None:
    """The plan for statistics that fit one program each, if they do."""
    units = part.C * per_channel
    if part.D >= 1 << 31:  # columns and groups are counted in 32 bits
        return None
    if ragged or swapped or units % part.G or (walk == COLUMNS and per_channel > 1):
        return None
    own = units // part.G  # cells of a group
    if walk == RUNS:
        rows, along = power_of_2(part.block_size * own), power_of_2(length)
        if rows * along > FUSED:
            return None
        groups = min(power_of_2(part.G), max(1, SMALLEST_TILE * 4 // (rows * along)))
    else:
        if own & (own - 1):
            return None
        rows = power_of_2(part.block_size * (length if walk == COLUMNS else 1))
        least = max(own, min(power_of_2(units), SECTOR // itemsize))
        if rows * least > FUSED:
            return None
        along = max(least, min(power_of_2(units), SMALLEST_TILE * 4 // rows, 2 * LINE // itemsize))
        groups = along // own
    tiles = ceil_div(part.G, groups)
    elements = groups * rows * along if walk == RUNS else rows * along
    return Fused(groups, rows, along, part.B * tiles, warps_of(elements))


@dataclass(frozen=True)
class Positional:
    """The plan of PN: tiles of all channels by some positions."""

    channels: int
    positions: int
    tiles: int
    """Tiles of one sample."""
    steps: int
    """Tiles of one program, whose sums of channels are added up."""
    programs: int
    warps: int
    merge: Merge


NARROWEST = 8  # bytes of a row of a tile of PN; its neighbors find the rest of a sector in L2


def positional(N: int, C: int, P: int, last: bool, itemsize: int, processors: int) -> Positional:
    """The plan of PN. ``last``: channels lie side by side. A tile has at most FUSED elements.

    ``fits_positional`` says whether there is a plan.
    """
    channels = power_of_2(C)
    least = 1 if last else NARROWEST // itemsize
    if last:
        N, P = 1, N * P
    wanted = max(1 if last else LINE // itemsize, TILE[itemsize] // channels)
    positions = min(power_of_2(P), wanted)
    while channels * positions > FUSED and positions > least:
        positions //= 2
    tiles = ceil_div(P, positions)
    steps = max(1, ceil_div(N * tiles, BUSY * processors))
    programs = ceil_div(N * tiles, steps)
    return Positional(
        channels,
        positions,
        tiles,
        steps,
        programs,
        warps_of(channels * positions),
        merge(C, programs),
    )


def fits_positional(C: int, last: bool, itemsize: int) -> bool:
    """Whether all channels of the fewest positions fit a tile."""
    return power_of_2(C) * (1 if last else NARROWEST // itemsize) <= FUSED

"""Where a program of a sweep looks: cells of its tile, addresses of a step; see ``launch``.

U cells by V elements along them. ``WIDE`` maps need 64-bit offsets within a tile or a sample; the
first address of a tile always has 64 bits.
"""

import triton
import triton.language as tl

RUNS = tl.constexpr(0)
COLUMNS = tl.constexpr(1)


@triton.jit
def whole(value, WIDE: tl.constexpr):
    """A number of the type that offsets have."""
    return value.to(tl.int64) if WIDE else value


@triton.jit
def big(value, like):
    """A number that may be a Python one, in 64 bits; ``like`` is any tensor of one element."""
    return like.to(tl.int64) * 0 + value


@triton.jit
def extents(L, W, pid, Q: tl.constexpr, WIDE: tl.constexpr):
    """Length of a cell and width, from numbers of Q elements: those fit 32 bits more often."""
    length = big(L, pid) * Q if WIDE else L * Q
    width = big(W, pid) * Q if WIDE else W * Q
    return length, width


@triton.jit
def place(pid, tiles, splits):
    """Tile, split and block of a program; neighbors in memory are neighbors in time."""
    tile = pid % tiles
    rest = pid // tiles
    return tile, rest % splits, rest // splits


@triton.jit
def group_start(g, K, G):
    """The first of K units of group g."""
    return g.to(tl.int64) * K // G


@triton.jit
def group_of(unit, K, G, EVEN: tl.constexpr):
    """The group of a unit."""
    if EVEN:
        group = unit // (K // G)
    else:
        group = ((unit.to(tl.int64) + 1) * G - 1) // K
    return group


@triton.jit
def ragged_cell(cell, P, G, K, k):
    """Group, first feature and length of the cells of contiguous maps with uneven groups."""
    c = cell // k
    start = c.to(tl.int64) * P
    g = group_of(start, K, G, False) + cell % k
    first = tl.maximum(start, group_start(g, K, G))
    end = tl.minimum(start + P, group_start(g + 1, K, G))
    return g, first, tl.maximum(end - first, 0)


@triton.jit
def cells(
    tile, C, P, G, K, k, L, W, tiles,
    U: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, EVEN: tl.constexpr,
    SEGMENTED: tl.constexpr, SWAPPED: tl.constexpr, ONE_GROUP: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The cells of a tile, (U,) each.

    Returns slot, whether it exists, channel, group, first address in a sample, addresses from
    there, length, and the segment.
    """
    lane = tl.arange(0, U)
    segment = 0
    length = L
    if WALK == RUNS:
        slot = whole(tile, WIDE) * U + lane
        slots = big(C, tile) * k if WIDE else C * k  # K, but for uneven groups
        valid = slot < slots
        channel = slot // k
        first = tile.to(tl.int64) * U * L
        rel = whole(lane, WIDE) * L
        unit = slot
    elif WALK == COLUMNS:
        side = tiles
        column = tile
        if SEGMENTED:
            side = tiles // k
            segment = tile // side
            column = tile - segment * side
        col = column * U + lane
        valid = col < W
        slot = segment * W + col
        channel = col
        first = column.to(tl.int64) * U
        rel = lane
        unit = col * k + segment
    else:
        slot = whole(tile, WIDE) * U + lane
        valid = slot < W
        first = tile.to(tl.int64) * U
        rel = lane
        if SWAPPED:
            channel = slot % C
            unit = channel * P + slot // C
        else:
            channel = slot // P
            unit = slot
    if RAGGED:
        group, start, length = ragged_cell(slot, P, G, K, k)
        valid = valid & (length > 0)
        first = tl.min(tl.where(valid, start, big(K, tile)), 0)
        rel = tl.where(valid, start - first, 0)
    elif ONE_GROUP:
        group = tile // (tiles // G)
    else:
        group = group_of(unit, K, G, EVEN)
    return slot, valid, channel, group, first, rel, length, segment


@triton.jit
def step(
    s, b, n, P, L, W, per_run, first, rel, length, valid, segment,
    V: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, SEGMENTED: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """Base address, offsets (U, V), which of them exist, and how many of each cell do."""
    lane = tl.arange(0, V)
    if WALK == RUNS:
        sample = s // per_run
        begin = big(s - sample * per_run, b) * V
        base = big(b * n + sample, b) * W + first + begin
        along = whole(lane, WIDE)
        left = tl.maximum(tl.minimum(length - begin, V), 0).to(tl.int32)
        if RAGGED:
            inside = lane[None, :] < left[:, None]
        else:
            inside = (lane < left)[None, :]
    else:
        begin = big(s, b) * V
        left = tl.minimum(big(n, b) * L - begin, V).to(tl.int32)
        if SEGMENTED:
            row = begin + lane
            sample = row // L
            row = (b * n + sample) * P + segment * L + row - sample * L
            base = first
            along = row * W
        else:
            base = (b.to(tl.int64) * n * L + begin) * W + first
            along = whole(lane, WIDE) * W
        inside = (lane < left)[None, :]
    return base, rel[:, None] + along[None, :], valid[:, None] & inside, left

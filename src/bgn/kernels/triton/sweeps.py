"""The four sweeps as Triton kernels, for every walk; see ``launch`` for walks, tiles and slots.

L and W, the length of a cell and the width, are counted in Q elements: triton knows of numbers
that they are multiples of 16 or nothing, and vectors of 16 bytes need multiples of 4 or 8.

Numbers are float32 in registers and between kernels. Sums go up in a fixed tree within a tile, then
step by step: the same input gives the same bits.
"""

import triton
import triton.language as tl

from bgn.kernels.triton.follow import activate, derivative, steepness
from bgn.kernels.triton.tiles import cells, extents, place, step


@triton.jit
def chan(count, mean, M2, of_count, of_mean, of_M2):
    """The moments of two sets together (Chan, Golub and LeVeque 1979); either may be empty."""
    total = count + of_count
    share = of_count / tl.maximum(total, 1.0)
    delta = of_mean - mean
    # in this order: the square of a large mean beside an empty set is 0, not infinity times 0
    return total, mean + delta * share, M2 + of_M2 + delta * (count * share) * delta


@triton.jit
def written(slot, valid, slots, RAGGED: tl.constexpr):
    """Which slots a program writes: no others, which belong to other programs."""
    if RAGGED:
        inside = slot < slots  # empty ones too: their numbers are 0
    else:
        inside = valid
    return inside


@triton.jit
def moments(
    x, parts, sort, C, P, G, K, n, k, L, W, per_run, slots, tiles, splits, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, EVEN: tl.constexpr,
    SEGMENTED: tl.constexpr, SWAPPED: tl.constexpr, ONE_GROUP: tl.constexpr, WIDE: tl.constexpr,
    Q: tl.constexpr,
):  # fmt: skip
    """x -> parts: count, mean and M2, ``sort`` numbers each: (B, splits, slots or tiles)."""
    tile, t, b = place(tl.program_id(0), tiles, splits)
    length_of_cell, width = extents(L, W, tile, Q, WIDE)
    slot, valid, _channel, _group, first, rel, length, segment = cells(
        tile, C, P, G, K, k, length_of_cell, width, tiles,
        U, WALK, RAGGED, EVEN, SEGMENTED, SWAPPED, ONE_GROUP, WIDE,
    )  # fmt: skip
    if ONE_GROUP:
        exist = tl.sum(valid.to(tl.int32), 0)
        count = 0.0
        mean = 0.0
        M2 = 0.0
    else:
        count = tl.zeros([U], tl.float32)
        mean = tl.zeros([U], tl.float32)
        M2 = tl.zeros([U], tl.float32)
    for s in range(t * steps, tl.minimum((t + 1) * steps, all_steps)):
        base, offset, mask, left = step(
            s, b, n, P, length_of_cell, width, per_run, first, rel, length, valid, segment,
            V, WALK, RAGGED, SEGMENTED, WIDE,
        )  # fmt: skip
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
        if ONE_GROUP:
            own = (left * exist).to(tl.float32)
            center = tl.sum(tl.sum(v, 1), 0) / own
            d = tl.where(mask, v - center, 0.0)
            scatter = tl.sum(tl.sum(d * d, 1), 0)
        else:
            own = tl.where(valid, left, 0).to(tl.float32)
            center = tl.sum(v, 1) / tl.maximum(own, 1.0)
            d = tl.where(mask, v - center[:, None], 0.0)
            scatter = tl.sum(d * d, 1)
        count, mean, M2 = chan(count, mean, M2, own, center, scatter)
    row = b.to(tl.int64) * splits + t
    if ONE_GROUP:
        at = parts + row * tiles + tile
        tl.store(at, count)
        tl.store(at + sort, mean)
        tl.store(at + sort + sort, M2)
    else:
        at = parts + row * slots + slot
        inside = written(slot, valid, slots, RAGGED)
        tl.store(at, count, mask=inside)
        tl.store(at + sort, mean, mask=inside)
        tl.store(at + sort + sort, M2, mask=inside)


@triton.jit
def statistics(
    mean, rstd, b, group, valid, G, eps, GIVEN: tl.constexpr, ONE_GROUP: tl.constexpr
):  # fmt: skip
    """Mean and 1 / standard deviation of the cells; of all blocks alike where they are GIVEN."""
    if GIVEN:
        at = group
    else:
        at = b.to(tl.int64) * G + group
    if ONE_GROUP:
        m = tl.load(mean + at).to(tl.float32)
        r = tl.load(rstd + at).to(tl.float32)
    else:
        m = tl.load(mean + at, mask=valid, other=0.0).to(tl.float32)
        r = tl.load(rstd + at, mask=valid, other=1.0).to(tl.float32)
    if GIVEN:  # a variance
        r = 1.0 / tl.sqrt_rn(r + eps)
    return m, r


@triton.jit
def correction(correct, BE, b, E, channel, group, valid, PER_CHANNEL: tl.constexpr):
    """r and d of batch renormalization, from (2, B, E)."""
    if PER_CHANNEL:
        entry = channel
    else:
        entry = channel * 0 + group
    at = correct + b.to(tl.int64) * E + entry
    r = tl.load(at, mask=valid, other=1.0)
    return r, tl.load(at + BE, mask=valid, other=0.0)


@triton.jit
def coefficients(
    weight, bias, r, correct, BE, b, E, channel, group, valid,
    U: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, CORRECT: tl.constexpr,
):  # fmt: skip
    """Scale and shift of the cells: the output is (x - mean) * scale + shift."""
    scale = tl.zeros([U], tl.float32) + r
    shift = tl.zeros([U], tl.float32)
    if CORRECT:
        factor, shift = correction(correct, BE, b, E, channel, group, valid, CORRECT == 2)
        scale = scale * factor
    if WEIGHT:
        w = tl.load(weight + channel, mask=valid, other=0.0).to(tl.float32)
        scale = scale * w
        shift = shift * w
    if BIAS:
        shift = shift + tl.load(bias + channel, mask=valid, other=0.0).to(tl.float32)
    return scale, shift


@triton.jit
def write(
    x, y, residual, weight, bias, mean, rstd, correct, BE, E, eps, slope,
    C, P, G, K, n, k, L, W, per_run, slots, tiles, splits, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, EVEN: tl.constexpr,
    SEGMENTED: tl.constexpr, SWAPPED: tl.constexpr, ONE_GROUP: tl.constexpr, WIDE: tl.constexpr,
    Q: tl.constexpr, GIVEN: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    CORRECT: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """x -> y = act(((x - mean) * rstd * r + d) * weight + bias + residual); see ``follow``.

    CORRECT: 0 for none, 1 for r and d per group, 2 per channel. Begins where ``moments`` ended.
    """
    tile, t, b = place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, splits)
    length_of_cell, width = extents(L, W, tile, Q, WIDE)
    _slot, valid, channel, group, first, rel, length, segment = cells(
        tile, C, P, G, K, k, length_of_cell, width, tiles,
        U, WALK, RAGGED, EVEN, SEGMENTED, SWAPPED, ONE_GROUP, WIDE,
    )  # fmt: skip
    m, r = statistics(mean, rstd, b, group, valid, G, eps, GIVEN, ONE_GROUP)
    m = tl.zeros([U], tl.float32) + m
    scale, shift = coefficients(
        weight, bias, r, correct, BE, b, E, channel, group, valid, U, WEIGHT, BIAS, CORRECT
    )
    last = tl.minimum((t + 1) * steps, all_steps) - 1
    for i in range(0, last + 1 - t * steps):
        base, offset, mask, _left = step(
            last - i, b, n, P, length_of_cell, width, per_run, first, rel, length, valid, segment,
            V, WALK, RAGGED, SEGMENTED, WIDE,
        )  # fmt: skip
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
        v = (v - m[:, None]) * scale[:, None] + shift[:, None]
        if RESIDUAL:
            v += tl.load(residual + base + offset, mask=mask, other=0.0).to(tl.float32)
        v = activate(v, slope, ACT)
        tl.store(y + base + offset, v.to(y.dtype.element_ty), mask=mask)


@triton.jit
def products(
    gy, x, y, inner, parts, of_tiles, sort, of_sort, weight, bias, mean, rstd, correct, BE, E, eps,
    slope,
    C, P, G, K, n, k, L, W, per_run, slots, tiles, splits, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, EVEN: tl.constexpr,
    SEGMENTED: tl.constexpr, SWAPPED: tl.constexpr, ONE_GROUP: tl.constexpr, WIDE: tl.constexpr,
    Q: tl.constexpr, GIVEN: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    CORRECT: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """gy and x -> parts: sums of gy and of gy * xhat of each cell, (2, B, splits, slots).

    ONE_GROUP: also of r * weight * gy and r * weight * gy * xhat of each tile. With ACT, gy is
    that of the activation's output; what goes into it is kept in ``inner`` where there was a
    RESIDUAL, whose gradient it is. Then the argument's sign is that of the output y.
    """
    tile, t, b = place(tl.program_id(0), tiles, splits)
    length_of_cell, width = extents(L, W, tile, Q, WIDE)
    slot, valid, channel, group, first, rel, length, segment = cells(
        tile, C, P, G, K, k, length_of_cell, width, tiles,
        U, WALK, RAGGED, EVEN, SEGMENTED, SWAPPED, ONE_GROUP, WIDE,
    )  # fmt: skip
    m, r = statistics(mean, rstd, b, group, valid, G, eps, GIVEN, ONE_GROUP)
    m = tl.zeros([U], tl.float32) + m
    if ACT and not RESIDUAL:
        scale, shift = coefficients(
            weight, bias, r, correct, BE, b, E, channel, group, valid, U, WEIGHT, BIAS, CORRECT
        )
    of_gy = tl.zeros([U, V], tl.float32)  # summed over threads at the end
    of_product = tl.zeros([U, V], tl.float32)
    for s in range(t * steps, tl.minimum((t + 1) * steps, all_steps)):
        base, offset, mask, _left = step(
            s, b, n, P, length_of_cell, width, per_run, first, rel, length, valid, segment,
            V, WALK, RAGGED, SEGMENTED, WIDE,
        )  # fmt: skip
        g = tl.load(gy + base + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32) - m[:, None]
        if ACT:
            if RESIDUAL:
                u = tl.load(y + base + offset, mask=mask, other=0.0).to(tl.float32)
            else:
                u = steepness(v * scale[:, None] + shift[:, None], ACT)
            g = derivative(g, u, slope, mask, ACT)
            if RESIDUAL:
                tl.store(inner + base + offset, g.to(inner.dtype.element_ty), mask=mask)
        of_gy += g
        of_product += g * tl.where(mask, v, 0.0)
    plain = tl.sum(of_gy, 1)
    with_x = tl.sum(of_product, 1) * r
    row = b.to(tl.int64) * splits + t
    at = parts + row * slots + slot
    inside = written(slot, valid, slots, RAGGED)
    tl.store(at, plain, mask=inside)
    tl.store(at + sort, with_x, mask=inside)
    if ONE_GROUP:
        rho = tl.full([U], 1.0, tl.float32)
        if WEIGHT:
            rho = tl.load(weight + channel, mask=valid, other=0.0).to(tl.float32)
        if CORRECT:
            factor, _ = correction(correct, BE, b, E, channel, group, valid, CORRECT == 2)
            rho = rho * factor
        of = of_tiles + row * tiles + tile
        tl.store(of, tl.sum(tl.where(valid, rho * plain, 0.0), 0))
        tl.store(of + of_sort, tl.sum(tl.where(valid, rho * with_x, 0.0), 0))


@triton.jit
def write_gradient(
    gy, x, gx, weight, bias, mean, rstd, correct, means, BE, BG, E, eps, slope,
    C, P, G, K, n, k, L, W, per_run, slots, tiles, splits, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WALK: tl.constexpr, RAGGED: tl.constexpr, EVEN: tl.constexpr,
    SEGMENTED: tl.constexpr, SWAPPED: tl.constexpr, ONE_GROUP: tl.constexpr, WIDE: tl.constexpr,
    Q: tl.constexpr, GIVEN: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
    CORRECT: tl.constexpr, MEANS: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """gx = rstd * (g - means[0] - xhat * means[1]) with g = r * weight * gy; means are (2, B, G).

    With ACT, gy is that of the activation's output. Without MEANS the statistics do not depend on
    x; without ACT, too, x is not read.
    """
    tile, t, b = place(tl.num_programs(0) - 1 - tl.program_id(0), tiles, splits)
    length_of_cell, width = extents(L, W, tile, Q, WIDE)
    _slot, valid, channel, group, first, rel, length, segment = cells(
        tile, C, P, G, K, k, length_of_cell, width, tiles,
        U, WALK, RAGGED, EVEN, SEGMENTED, SWAPPED, ONE_GROUP, WIDE,
    )  # fmt: skip
    m, r = statistics(mean, rstd, b, group, valid, G, eps, GIVEN, ONE_GROUP)
    first_mean = tl.zeros([U], tl.float32)
    second_mean = tl.zeros([U], tl.float32)
    m = tl.zeros([U], tl.float32) + m
    scale, shift = coefficients(
        weight, bias, r, correct, BE, b, E, channel, group, valid, U, WEIGHT, BIAS, CORRECT
    )
    if MEANS:
        at = means + b.to(tl.int64) * G + group + tl.zeros([U], tl.int32)
        first_mean = tl.load(at, mask=valid, other=0.0) * r
        second_mean = tl.load(at + BG, mask=valid, other=0.0) * r * r
    last = tl.minimum((t + 1) * steps, all_steps) - 1
    for i in range(0, last + 1 - t * steps):
        base, offset, mask, _left = step(
            last - i, b, n, P, length_of_cell, width, per_run, first, rel, length, valid, segment,
            V, WALK, RAGGED, SEGMENTED, WIDE,
        )  # fmt: skip
        g = tl.load(gy + base + offset, mask=mask, other=0.0).to(tl.float32)
        if MEANS or ACT:
            v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32) - m[:, None]
        if ACT:
            u = steepness(v * scale[:, None] + shift[:, None], ACT)
            g = derivative(g, u, slope, mask, ACT)
        g = g * scale[:, None]
        if MEANS:
            g = g - first_mean[:, None] - v * second_mean[:, None]
        tl.store(gx + base + offset, g.to(gx.dtype.element_ty), mask=mask)

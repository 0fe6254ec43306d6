"""What happens between the sweeps: slots become statistics, and sums of groups and of channels.

A few numbers per group, in a fixed order. Running statistics and batch renormalization's
corrections are written here, on the device.
"""

import triton
import triton.language as tl

from bgn.kernels.triton.sweeps import chan
from bgn.kernels.triton.tiles import big, group_of, group_start


@triton.jit
def first_unit(g, P, G, K, RAGGED: tl.constexpr):
    """Where the slots of groups begin: a unit, or a channel where cells differ in length."""
    first = group_start(g, K, G)
    if RAGGED:
        first = first // P
    return first


@triton.jit
def slot_of(
    g, q, C, P, G, K, k, own,
    RAGGED: tl.constexpr, STRIDED: tl.constexpr, ONE_GROUP: tl.constexpr,
):  # fmt: skip
    """Slot and channel of the q-th part of group g, and whether it exists."""
    if ONE_GROUP:  # slots of tiles, ``own`` in every group
        slot = g * own + q
        channel = q * 0
        exists = q < own
    else:
        channel = first_unit(g, P, G, K, RAGGED) + q
        if RAGGED:
            slot = channel * k + g - group_of(channel * P, K, G, False)
            exists = channel <= (group_start(g + 1, K, G) - 1) // P
        else:
            slot = channel
            exists = slot < first_unit(g + 1, P, G, K, RAGGED)
            channel = slot // k
            if STRIDED:
                slot = (slot - channel * k) * C + channel
    return slot, channel, exists


@triton.jit
def merge_moments(
    parts, sort, mean, rstd, var, BE, blocks, splits, row,
    running_mean, running_var, counter, momentum, eps,
    reference_mean, reference_var, correct, r_max, d_max, share, E, entries,
    C, P, G, K, k, own, most,
    GB: tl.constexpr, PB: tl.constexpr,
    RAGGED: tl.constexpr, STRIDED: tl.constexpr, ONE_GROUP: tl.constexpr,
    VAR: tl.constexpr, RUNNING: tl.constexpr, COUNTER: tl.constexpr, CUMULATIVE: tl.constexpr,
    CORRECT: tl.constexpr, SHARE: tl.constexpr, PER_CHANNEL: tl.constexpr,
):  # fmt: skip
    """parts -> mean and rstd, (B, G); running statistics; corrections, (2, B, E).

    A program has GB groups in ``blocks`` blocks: all of them where running statistics move.
    ``row``: slots of one block and split. ``entries``: of one group, where an entry of running
    statistics or of corrections belongs to a channel, else 1.
    """
    pid = tl.program_id(0)
    tiles = tl.cdiv(G, GB)
    first = pid // tiles * blocks
    g = (pid % tiles) * GB + tl.arange(0, GB)
    inside = g < G
    sum_mean = tl.zeros([GB], tl.float32)
    sum_var = tl.zeros([GB], tl.float32)
    for b in range(first, first + blocks):
        count = tl.zeros([GB], tl.float32)
        center = tl.zeros([GB], tl.float32)
        M2 = tl.zeros([GB], tl.float32)
        for e in range(0, most, PB):
            part = e + tl.arange(0, PB)
            q = part // splits
            t = part - q * splits
            slot, _channel, exists = slot_of(
                g[:, None], q[None, :], C, P, G, K, k, own, RAGGED, STRIDED, ONE_GROUP
            )
            mask = exists & inside[:, None] & (part < most)[None, :]
            at = parts + (big(b, pid) * splits + t)[None, :] * row + slot
            own_count = tl.load(at, mask=mask, other=0.0)
            own_mean = tl.load(at + sort, mask=mask, other=0.0)
            own_M2 = tl.load(at + sort + sort, mask=mask, other=0.0)
            total = tl.sum(own_count, 1)
            safe = tl.maximum(total, 1.0)
            # around a value near the mean, so that the sum keeps its digits
            pivot = tl.sum(tl.where(own_count > 0, own_mean, 0.0), 1) / tl.maximum(
                tl.sum((own_count > 0).to(tl.float32), 1), 1.0
            )
            d = tl.where(own_count > 0, own_mean - pivot[:, None], 0.0)
            shift = tl.sum(own_count * d, 1) / safe
            d = tl.where(own_count > 0, d - shift[:, None], 0.0)
            scatter = tl.sum(own_M2 + own_count * d * d, 1)
            count, center, M2 = chan(count, center, M2, total, pivot + shift, scatter)
        variance = M2 / tl.maximum(count, 1.0)
        r = 1.0 / tl.sqrt_rn(variance + eps)
        to = big(b, pid) * G + g
        tl.store(mean + to, center, mask=inside)
        tl.store(rstd + to, r, mask=inside)
        if VAR:
            tl.store(var + to, variance, mask=inside)
        if RUNNING:
            sum_mean += center
            sum_var += M2 / (count - 1.0)
        if CORRECT:
            passed = 1.0
            if SHARE:
                passed = tl.load(share).to(tl.float32)
            most_r = tl.where(r_max == float("inf"), r_max, 1.0 + (r_max - 1.0) * passed)
            most_d = tl.where(d_max == float("inf"), d_max, d_max * passed)
            for j in range(0, entries):
                entry, here = entry_of(g, j, C, G, inside, PER_CHANNEL)
                rm = tl.load(reference_mean + entry, mask=here, other=0.0).to(tl.float32)
                rv = tl.load(reference_var + entry, mask=here, other=1.0).to(tl.float32)
                inverse = 1.0 / tl.sqrt_rn(rv + eps)
                own_r = clip(tl.sqrt_rn(variance + eps) * inverse, 1.0 / most_r, most_r)
                own_d = clip((center - rm) * inverse, -most_d, most_d)
                at = correct + big(b, pid) * E + entry
                tl.store(at, own_r, mask=here)
                tl.store(at + BE, own_d, mask=here)
    if RUNNING:
        tl.debug_barrier()  # a reference was read by all before it moves
        if CUMULATIVE:
            momentum = 1.0 / (tl.load(counter) + 1).to(tl.float32)
        move(running_mean, sum_mean / blocks, momentum, g, C, G, entries, inside, PER_CHANNEL)
        move(running_var, sum_var / blocks, momentum, g, C, G, entries, inside, PER_CHANNEL)
        if COUNTER:
            if pid == 0:  # nobody else reads it
                tl.store(counter, tl.load(counter) + 1)


@triton.jit
def entry_of(g, j, C, G, inside, PER_CHANNEL: tl.constexpr):
    """The j-th entry of groups: the group itself, or a channel; and whether it exists."""
    if PER_CHANNEL:
        entry = group_start(g, C, G) + j
        exists = inside & (entry < group_start(g + 1, C, G))
    else:
        entry = g.to(tl.int64)
        exists = inside
    return entry, exists


@triton.jit
def move(running, batch, momentum, g, C, G, entries, inside, PER_CHANNEL: tl.constexpr):
    """running = (1 - momentum) * running + momentum * batch."""
    for j in range(0, entries):
        entry, here = entry_of(g, j, C, G, inside, PER_CHANNEL)
        kept = tl.load(running + entry, mask=here, other=0.0).to(tl.float32)
        moved = kept * (1.0 - momentum) + batch * momentum
        tl.store(running + entry, moved.to(running.dtype.element_ty), mask=here)


@triton.jit
def clip(value, least, most):
    """Clamp like torch.clamp: NaN stays."""
    value = tl.where(value < least, least, value)
    return tl.where(value > most, most, value)


@triton.jit
def sum_groups(
    pid, parts, of_tiles, sort, of_sort, means, weight, correct, BG, E, n, splits, tiles, slots,
    C, P, G, K, k, own, most, GB: tl.constexpr, PB: tl.constexpr, RAGGED: tl.constexpr,
    STRIDED: tl.constexpr, ONE_GROUP: tl.constexpr, WEIGHT: tl.constexpr, CORRECT: tl.constexpr,
    DIVIDE: tl.constexpr,
):  # fmt: skip
    """GB groups of a block: means of g and of g * xhat."""
    per_block = tl.cdiv(G, GB)
    b = pid // per_block
    g = (pid - b * per_block) * GB + tl.arange(0, GB)
    inside = g < G
    plain = tl.zeros([GB], tl.float32)
    with_x = tl.zeros([GB], tl.float32)
    for e in range(0, most, PB):
        part = e + tl.arange(0, PB)
        q = part // splits
        row = b.to(tl.int64) * splits + part - q * splits
        slot, channel, exists = slot_of(
            g[:, None], q[None, :], C, P, G, K, k, own, RAGGED, STRIDED, ONE_GROUP
        )
        mask = exists & inside[:, None] & (part < most)[None, :]
        if ONE_GROUP:
            at = of_tiles + row[None, :] * tiles + slot
            of_gy = tl.load(at, mask=mask, other=0.0)
            of_product = tl.load(at + of_sort, mask=mask, other=0.0)
        else:
            at = parts + row[None, :] * slots + slot
            of_gy = tl.load(at, mask=mask, other=0.0)
            of_product = tl.load(at + sort, mask=mask, other=0.0)
            rho = tl.full([GB, PB], 1.0, tl.float32)
            if WEIGHT:
                rho = tl.load(weight + channel, mask=mask, other=0.0).to(tl.float32)
            if CORRECT:
                entry = channel
                if CORRECT == 1:
                    entry = g[:, None] + channel * 0
                factor = tl.load(correct + b.to(tl.int64) * E + entry, mask=mask, other=0.0)
                rho = rho * factor
            of_gy = tl.where(mask, of_gy * rho, 0.0)
            of_product = tl.where(mask, of_product * rho, 0.0)
        plain += tl.sum(of_gy, 1)
        with_x += tl.sum(of_product, 1)
    if DIVIDE:
        size = group_start(g + 1, K, G) - group_start(g, K, G)
        if not RAGGED:  # units of several features
            size = size * (big(P, pid) * C // K)
        count = (size * n).to(tl.float32)
        plain = plain / count
        with_x = with_x / count
    to = means + b.to(tl.int64) * G + g
    tl.store(to, plain, mask=inside)
    tl.store(to + BG, with_x, mask=inside)


@triton.jit
def sum_channels(
    pid, parts, sort, gw, gb, correct, BE, E, splits, slots, C, P, G, K, k, most,
    CB: tl.constexpr, QB: tl.constexpr, RAGGED: tl.constexpr, STRIDED: tl.constexpr,
    CORRECT: tl.constexpr,
):  # fmt: skip
    """CB channels: gradients of weight and bias, over all blocks."""
    c = pid * CB + tl.arange(0, CB)
    inside = c < C
    plain = tl.zeros([CB], tl.float32)
    with_x = tl.zeros([CB], tl.float32)
    for e in range(0, most, QB):  # (B * splits, cells of the channel)
        part = e + tl.arange(0, QB)
        row = part // k
        cell = part - row * k
        slot = c[:, None].to(tl.int64) * k + cell[None, :]
        if STRIDED:
            slot = cell[None, :].to(tl.int64) * C + c[:, None]
        mask = inside[:, None] & (part < most)[None, :]
        at = parts + row[None, :].to(tl.int64) * slots + slot
        of_gy = tl.load(at, mask=mask, other=0.0)
        of_product = tl.load(at + sort, mask=mask, other=0.0)
        if CORRECT:
            block = row // splits
            if CORRECT == 2:
                entry = c[:, None] + row[None, :] * 0
            elif RAGGED:
                start = c[:, None].to(tl.int64) * P
                entry = group_of(start, K, G, False) + cell[None, :]
                mask = mask & (group_start(entry, K, G) < start + P)  # not what pads
            else:
                entry = group_of(c[:, None].to(tl.int64) * k + cell[None, :], K, G, False)
            of_block = correct + block[None, :].to(tl.int64) * E + entry
            r = tl.load(of_block, mask=mask, other=1.0)
            d = tl.load(of_block + BE, mask=mask, other=0.0)
            of_product = of_product * r + of_gy * d
        plain += tl.sum(of_gy, 1)
        with_x += tl.sum(of_product, 1)
    tl.store(gb + c, plain.to(gb.dtype.element_ty), mask=inside)
    tl.store(gw + c, with_x.to(gw.dtype.element_ty), mask=inside)


@triton.jit
def merge_products(
    parts, of_tiles, sort, of_sort, means, gw, gb, weight, correct, BE, BG, E,
    n, splits, tiles, slots,
    C, P, G, K, k, own, most, channel_most, group_programs,
    GB: tl.constexpr, PB: tl.constexpr, CB: tl.constexpr, QB: tl.constexpr,
    RAGGED: tl.constexpr, STRIDED: tl.constexpr, ONE_GROUP: tl.constexpr,
    WEIGHT: tl.constexpr, CORRECT: tl.constexpr, GROUPS: tl.constexpr, DIVIDE: tl.constexpr,
    AFFINE: tl.constexpr,
):  # fmt: skip
    """parts -> means, (2, B, G) of g and g * xhat, with g = r * weight * gy; gw and gb, (C,).

    The first ``group_programs`` programs have GB groups of a block each, the others CB channels.
    Without DIVIDE means are sums.
    """
    pid = tl.program_id(0)
    if pid < group_programs:
        if GROUPS:
            sum_groups(
                pid, parts, of_tiles, sort, of_sort, means, weight, correct, BG, E, n, splits,
                tiles, slots, C, P, G, K, k, own, most,
                GB, PB, RAGGED, STRIDED, ONE_GROUP, WEIGHT, CORRECT, DIVIDE,
            )  # fmt: skip
    else:
        if AFFINE:
            sum_channels(
                pid - group_programs, parts, sort, gw, gb, correct, BE, E, splits, slots,
                C, P, G, K, k, channel_most, CB, QB, RAGGED, STRIDED, CORRECT,
            )  # fmt: skip

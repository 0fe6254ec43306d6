"""A whole statistic in one program: x is read once forward, x and the gradient once backward.

The tile stays in registers. Runs: groups by rows by positions, where the rows of a group are its
cells in all samples of the block. Columns: columns by rows, where ``S`` adjacent columns are a
group. See ``launch.Fused``. L and W are counted in Q elements, as in ``sweeps``.
"""

import triton
import triton.language as tl

from bgn.kernels.triton.follow import activate, derivative, steepness
from bgn.kernels.triton.merge import clip, move
from bgn.kernels.triton.tiles import big


@triton.jit
def run_tile(pid, n, own, L, W, G, GB: tl.constexpr, R: tl.constexpr, V: tl.constexpr):
    """Block, groups, base address, offsets (GB, R, V), mask, and samples and units of the rows."""
    per_block = tl.cdiv(G, GB)
    b = pid // per_block
    g = (pid - b * per_block) * GB + tl.arange(0, GB)
    row = tl.arange(0, R)
    sample = row // own
    unit = g[:, None] * own + (row - sample * own)[None, :]  # (GB, R)
    lane = tl.arange(0, V)
    base = big(b * n, b) * W + big((pid - b * per_block) * GB, b) * own * L
    rel = (tl.arange(0, GB) * own)[:, None] + (row - sample * own)[None, :]
    offset = (sample.to(tl.int64) * W)[None, :] + rel * L
    inside = (g < G)[:, None] & (row < n * own)[None, :]
    mask = inside[:, :, None] & (lane < L)[None, None, :]
    return b, g, base, offset[:, :, None] + lane[None, None, :], mask, sample, unit, inside


@triton.jit
def column_tile(pid, n, L, W, G, GB: tl.constexpr, R: tl.constexpr, V: tl.constexpr):
    """Block, columns, base address, offsets (V, R) and mask."""
    per_block = tl.cdiv(G, GB)
    b = pid // per_block
    col = (pid - b * per_block) * V + tl.arange(0, V)
    row = tl.arange(0, R)
    base = big(b * n, b) * L * W + (pid - b * per_block) * V
    offset = tl.arange(0, V)[:, None] + (row.to(tl.int64) * W)[None, :]
    mask = (col < W)[:, None] & (row < n * L)[None, :]
    return b, col, base, offset, mask


@triton.jit
def column_statistics(v, mask, count, GB: tl.constexpr, S: tl.constexpr, V: tl.constexpr):
    """Mean and M2 of groups, (GB,), from a tile (V, R)."""
    mean = of_groups(tl.sum(v, 1), GB, S) / count
    d = tl.where(mask, v - spread(mean, GB, S, V)[:, None], 0.0)
    return mean, of_groups(tl.sum(d * d, 1), GB, S)


@triton.jit
def of_groups(sums, GB: tl.constexpr, S: tl.constexpr):
    """(V,) -> (GB,): the sums of the columns of each group."""
    if S > 1:
        sums = tl.sum(tl.reshape(sums, [GB, S]), 1)
    return sums


@triton.jit
def spread(stat, GB: tl.constexpr, S: tl.constexpr, V: tl.constexpr):
    """(GB,) -> (V,): every column has its group's."""
    if S > 1:
        stat = tl.reshape(tl.broadcast_to(stat[:, None], [GB, S]), [V])
    return stat


@triton.jit
def corrections(
    correct, reference_mean, reference_var, r_max, d_max, share, BE, E, b, g, center, variance, eps,
    inside, SHARE: tl.constexpr,
):  # fmt: skip
    """r and d of groups, kept for the backward pass."""
    passed = 1.0
    if SHARE:
        passed = tl.load(share).to(tl.float32)
    most_r = tl.where(r_max == float("inf"), r_max, 1.0 + (r_max - 1.0) * passed)
    most_d = tl.where(d_max == float("inf"), d_max, d_max * passed)
    rm = tl.load(reference_mean + g, mask=inside, other=0.0).to(tl.float32)
    rv = tl.load(reference_var + g, mask=inside, other=1.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt_rn(rv + eps)
    r = clip(tl.sqrt_rn(variance + eps) * inverse, 1.0 / most_r, most_r)
    d = clip((center - rm) * inverse, -most_d, most_d)
    at = correct + big(b, b) * E + g
    tl.store(at, r, mask=inside)
    tl.store(at + BE, d, mask=inside)
    return r, d


@triton.jit
def coefficients(
    weight, bias, correct, BE, E, b, g, channel, here, inside,
    GB: tl.constexpr, R: tl.constexpr, V: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, CORRECT: tl.constexpr,
):  # fmt: skip
    """Scale and shift of columns, or of groups by rows: the output is xhat * scale + shift."""
    if COLUMNS:
        scale = tl.full([V], 1.0, tl.float32)
        shift = tl.zeros([V], tl.float32)
    else:
        scale = tl.full([GB, R], 1.0, tl.float32)
        shift = tl.zeros([GB, R], tl.float32)
    if WEIGHT:
        scale = tl.load(weight + channel, mask=here, other=0.0).to(tl.float32)
    if CORRECT:
        at = correct + big(b, b) * E + g
        factor = tl.load(at, mask=inside, other=0.0)
        d = tl.load(at + BE, mask=inside, other=0.0)
        if COLUMNS:
            shift = scale * spread(d, GB, S, V)
            scale = scale * spread(factor, GB, S, V)
        else:
            shift = scale * d[:, None]
            scale = scale * factor[:, None]
    if BIAS:
        shift = shift + tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
    return scale, shift


@triton.jit
def forward(
    x, y, residual, weight, bias, mean, rstd, running_mean, running_var, counter, momentum, eps,
    reference_mean, reference_var, correct, r_max, d_max, share, BE, E, entries, slope,
    C, P, G, n, k, own, L, W, count,
    GB: tl.constexpr, R: tl.constexpr, V: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr,
    Q: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, RUNNING: tl.constexpr,
    COUNTER: tl.constexpr, CUMULATIVE: tl.constexpr, PER_CHANNEL: tl.constexpr,
    CORRECT: tl.constexpr, SHARE: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """x -> y, and mean and rstd (B, G). Running statistics move where there is one block."""
    pid = tl.program_id(0)
    length, width = L * Q, W * Q
    if COLUMNS:
        b, col, base, offset, mask = column_tile(pid, n, length, width, G, GB, R, V)
        g = (pid - b * tl.cdiv(G, GB)) * GB + tl.arange(0, GB)
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
        center, M2 = column_statistics(v, mask, count, GB, S, V)
        channel = col // k  # k: columns of a channel
        here = col < width
    else:
        b, g, base, offset, mask, _, unit, here = run_tile(pid, n, own, length, width, G, GB, R, V)
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
        center = tl.sum(tl.sum(v, 2), 1) / count
        d = tl.where(mask, v - center[:, None, None], 0.0)
        M2 = tl.sum(tl.sum(d * d, 2), 1)
        channel = unit // k
    inside = g < G
    variance = M2 / count
    r = 1.0 / tl.sqrt_rn(variance + eps)
    to = big(b, b) * G + g
    tl.store(mean + to, center, mask=inside)
    tl.store(rstd + to, r, mask=inside)
    z_shift = tl.zeros([GB], tl.float32)
    if CORRECT:
        factor, z_shift = corrections(
            correct, reference_mean, reference_var, r_max, d_max, share, BE, E, b, g, center,
            variance, eps, inside, SHARE,
        )  # fmt: skip
        r = r * factor
    if RUNNING:
        tl.debug_barrier()  # a reference was read by all before it moves
        if CUMULATIVE:
            momentum = 1.0 / (tl.load(counter) + 1).to(tl.float32)
        move(running_mean, center, momentum, g, C, G, entries, inside, PER_CHANNEL)
        move(running_var, M2 / (count - 1.0), momentum, g, C, G, entries, inside, PER_CHANNEL)
        if COUNTER:
            if pid == 0:  # nobody else reads it
                tl.store(counter, tl.load(counter) + 1)
    if COLUMNS:
        m = spread(center, GB, S, V)
        scale = spread(r, GB, S, V)
        shift = spread(z_shift, GB, S, V)
    else:
        m = center[:, None]
        scale = tl.broadcast_to(r[:, None], [GB, R])
        shift = tl.broadcast_to(z_shift[:, None], [GB, R])
    if WEIGHT:
        w = tl.load(weight + channel, mask=here, other=0.0).to(tl.float32)
        scale = scale * w
        shift = shift * w
    if BIAS:
        shift = shift + tl.load(bias + channel, mask=here, other=0.0).to(tl.float32)
    if COLUMNS:
        v = (v - m[:, None]) * scale[:, None] + shift[:, None]
    else:
        v = (v - m[:, :, None]) * scale[:, :, None] + shift[:, :, None]
    if RESIDUAL:
        v += tl.load(residual + base + offset, mask=mask, other=0.0).to(tl.float32)
    v = activate(v, slope, ACT)
    tl.store(y + base + offset, v.to(y.dtype.element_ty), mask=mask)


@triton.jit
def backward(
    gy, x, y, inner, gx, parts, sort, weight, bias, mean, rstd, correct, BE, E, slots, slope,
    C, P, G, n, k, own, L, W, count,
    GB: tl.constexpr, R: tl.constexpr, V: tl.constexpr, S: tl.constexpr, COLUMNS: tl.constexpr,
    Q: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr, CORRECT: tl.constexpr,
    AFFINE: tl.constexpr, INPUT: tl.constexpr, RESIDUAL: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """gy and x -> gx, and with AFFINE sums of gy and gy * xhat of each cell.

    Runs: (2, B, n, slots), of each sample. Columns: (2, B, 1, slots). RESIDUAL and ACT: as in
    ``sweeps.products``.
    """
    pid = tl.program_id(0)
    length, width = L * Q, W * Q
    if COLUMNS:
        b, col, base, offset, mask = column_tile(pid, n, length, width, G, GB, R, V)
        g = (pid - b * tl.cdiv(G, GB)) * GB + tl.arange(0, GB)
        channel = col // k
        here = col < width
    else:
        b, g, base, offset, mask, sample, unit, here = run_tile(
            pid, n, own, length, width, G, GB, R, V
        )
        channel = unit // k
    inside = g < G
    to = big(b, b) * G + g
    m = tl.load(mean + to, mask=inside, other=0.0)
    r = tl.load(rstd + to, mask=inside, other=0.0)
    if ACT == 0:
        upstream = tl.load(gy + base + offset, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
    if COLUMNS:
        v = tl.where(mask, (v - spread(m, GB, S, V)[:, None]) * spread(r, GB, S, V)[:, None], 0.0)
    else:
        v = tl.where(mask, (v - m[:, None, None]) * r[:, None, None], 0.0)
    if ACT:
        if RESIDUAL:
            u = tl.load(y + base + offset, mask=mask, other=0.0).to(tl.float32)
        else:
            scale, shift = coefficients(
                weight, bias, correct, BE, E, b, g, channel, here, inside,
                GB, R, V, S, COLUMNS, WEIGHT, BIAS, CORRECT,
            )  # fmt: skip
            if COLUMNS:
                u = steepness(v * scale[:, None] + shift[:, None], ACT)
            else:
                u = steepness(v * scale[:, :, None] + shift[:, :, None], ACT)
        # behind what is computed from x alone: registers are scarce
        upstream = tl.load(gy + base + offset, mask=mask, other=0.0).to(tl.float32)
        upstream = derivative(upstream, u, slope, mask, ACT)
        if RESIDUAL:
            tl.store(inner + base + offset, upstream.to(inner.dtype.element_ty), mask=mask)
    if COLUMNS:
        plain = tl.sum(upstream, 1)
        with_x = tl.sum(upstream * v, 1)
    else:
        plain = tl.sum(upstream, 2)
        with_x = tl.sum(upstream * v, 2)
    if AFFINE:
        if COLUMNS:
            at = parts + big(b, b) * slots + col
        else:
            at = parts + big(b * n, b) * slots + sample.to(tl.int64)[None, :] * slots + unit
        tl.store(at, plain, mask=here)
        tl.store(at + sort, with_x, mask=here)
    if INPUT:
        rho, _ = coefficients(
            weight, bias, correct, BE, E, b, g, channel, here, inside,
            GB, R, V, S, COLUMNS, WEIGHT, False, CORRECT,
        )  # fmt: skip
        plain = plain * rho
        with_x = with_x * rho
        if COLUMNS:
            plain = of_groups(plain, GB, S)
            with_x = of_groups(with_x, GB, S)
            r_of = spread(r, GB, S, V)[:, None]
            first = spread(plain / count, GB, S, V)[:, None]
            second = spread(with_x / count, GB, S, V)[:, None]
            found = r_of * (upstream * rho[:, None] - first - v * second)
        else:
            first = (tl.sum(plain, 1) / count)[:, None, None]
            second = (tl.sum(with_x, 1) / count)[:, None, None]
            found = r[:, None, None] * (upstream * rho[:, :, None] - first - v * second)
        tl.store(gx + base + offset, found.to(gx.dtype.element_ty), mask=mask)

"""PN in one program per tile: all channels of some positions, in registers.

The channels are ``SC`` apart in memory and the positions ``SP``: 1 is the one that lies side by
side. With channels last, all positions of all samples are those of one sample.
"""

import triton
import triton.language as tl

from bgn.kernels.triton.tiles import big


@triton.jit
def tile_of(i, C, P, SC, SP, tiles, U: tl.constexpr, V: tl.constexpr):
    """Base address, offsets (U, V) and mask of the i-th tile; ``tiles`` are of one sample."""
    sample = i // tiles
    begin = big(i - sample * tiles, i) * V
    c = tl.arange(0, U)
    lane = tl.arange(0, V)
    left = tl.minimum(big(P, i) - begin, V).to(tl.int32)
    base = big(sample, i) * C * P + begin * SP
    offset = c.to(tl.int64)[:, None] * SC + lane[None, :] * SP
    return base, offset, (c < C)[:, None] & (lane < left)[None, :]


@triton.jit
def forward(
    x, y, weight, bias, eps, C, P, SC, SP, tiles, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WEIGHT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """x -> y = xhat * weight + bias."""
    pid = tl.program_id(0)
    c = tl.arange(0, U)
    if WEIGHT:
        w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    if BIAS:
        shift = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    for s in range(0, tl.minimum(steps, all_steps - pid * steps)):
        base, offset, mask = tile_of(pid * steps + s, C, P, SC, SP, tiles, U, V)
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.where(mask, v - (tl.sum(v, 0) / C)[None, :], 0.0)
        v = v * (1.0 / tl.sqrt_rn(tl.sum(v * v, 0) / C + eps))[None, :]
        if WEIGHT:
            v = v * w[:, None]
        if BIAS:
            v = v + shift[:, None]
        tl.store(y + base + offset, v.to(y.dtype.element_ty), mask=mask)


@triton.jit
def backward(
    gy, x, gx, parts, sort, weight, eps, C, P, SC, SP, tiles, steps, all_steps,
    U: tl.constexpr, V: tl.constexpr, WEIGHT: tl.constexpr, AFFINE: tl.constexpr,
    INPUT: tl.constexpr,
):  # fmt: skip
    """gy and x -> gx, and with AFFINE sums of gy and gy * xhat, (2, programs, C)."""
    pid = tl.program_id(0)
    c = tl.arange(0, U)
    w = tl.full([U], 1.0, tl.float32)
    if WEIGHT:
        w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    plain = tl.zeros([U], tl.float32)
    with_x = tl.zeros([U], tl.float32)
    for s in range(0, tl.minimum(steps, all_steps - pid * steps)):
        base, offset, mask = tile_of(pid * steps + s, C, P, SC, SP, tiles, U, V)
        g = tl.load(gy + base + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.load(x + base + offset, mask=mask, other=0.0).to(tl.float32)
        v = tl.where(mask, v - (tl.sum(v, 0) / C)[None, :], 0.0)
        r = 1.0 / tl.sqrt_rn(tl.sum(v * v, 0) / C + eps)
        v = v * r[None, :]
        if AFFINE:
            plain += tl.sum(g, 1)
            with_x += tl.sum(g * v, 1)
        if INPUT:
            g = g * w[:, None]
            first = tl.sum(g, 0) / C
            second = tl.sum(g * v, 0) / C
            g = r[None, :] * (g - first[None, :] - v * second[None, :])
            tl.store(gx + base + offset, g.to(gx.dtype.element_ty), mask=mask)
    if AFFINE:
        at = parts + big(pid, pid) * C + c
        tl.store(at, plain, mask=c < C)
        tl.store(at + sort, with_x, mask=c < C)

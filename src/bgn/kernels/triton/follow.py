"""What may follow a normalizer, in registers: an activation, and its derivative."""

import triton
import triton.language as tl

NONE, RELU, LEAKY, SILU, HARDSWISH = range(5)  # ACT of the kernels; NONE for identity


@triton.jit
def sigmoid(u):
    return 1.0 / (1.0 + tl.exp(-u))


@triton.jit
def activate(u, slope, ACT: tl.constexpr):
    """act(u); NaN stays."""
    if ACT == 1:
        u = tl.where(u < 0, 0.0, u)
    elif ACT == 2:
        u = tl.where(u > 0, u, u * slope)
    elif ACT == 3:
        u = u * sigmoid(u)
    elif ACT == 4:
        u = u * (tl.minimum(tl.maximum(u + 3.0, 0.0), 6.0) / 6.0)
    return u


@triton.jit
def steepness(u, ACT: tl.constexpr):
    """act'(u) of a smooth activation; of one whose derivative depends on the sign, u itself."""
    if ACT == 3:
        s = sigmoid(u)
        u = s + u * s * (1.0 - s)
    elif ACT == 4:
        ramp = tl.where(u >= 3.0, 1.0, u / 3.0 + 0.5)
        u = tl.where(u <= -3.0, 0.0, ramp)
    return u


@triton.jit
def derivative(g, steep, slope, mask, ACT: tl.constexpr):
    """g * act'(u) from ``steepness(u)``, as torch has it at the corners; 0 outside of the mask."""
    if ACT == 1:
        g = tl.where(steep <= 0, 0.0, g)
    elif ACT == 2:
        g = tl.where(steep > 0, g, g * slope)
    elif ACT != 0:
        g = g * steep
    return tl.where(mask, g, 0.0)

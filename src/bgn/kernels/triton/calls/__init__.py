"""Calls of the Triton kernels on tensors, by the launch plan of their shape.

Whoever calls has asked whether the kernels may read the tensors
(:mod:`bgn.kernels.triton.eligible`). Importing this imports triton.
"""

from bgn.kernels.triton.calls.arguments import (
    NOTHING,
    Followed,
    Statistics,
    act_of,
    launch_of,
    processors,
)
from bgn.kernels.triton.calls.fused import backward_fused, forward_fused
from bgn.kernels.triton.calls.positional import positional_backward, positional_forward
from bgn.kernels.triton.calls.sweeps import products, statistics, write, write_gradient

__all__ = [
    "NOTHING",
    "Followed",
    "Statistics",
    "act_of",
    "backward_fused",
    "forward_fused",
    "launch_of",
    "positional_backward",
    "positional_forward",
    "processors",
    "products",
    "statistics",
    "write",
    "write_gradient",
]

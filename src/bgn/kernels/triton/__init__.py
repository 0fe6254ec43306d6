"""The GPU core: the four sweeps in Triton, for CUDA and ROCm.

:mod:`~bgn.kernels.triton.launch` decides how a shape is cut into programs, in plain numbers.
``sweeps``, ``merge``, ``fused`` and ``positional`` are the kernels, ``follow`` has activations, and
:mod:`~bgn.kernels.triton.calls` calls them. :mod:`~bgn.kernels.triton.eligible` asks whether they
may read the tensors, :mod:`~bgn.kernels.triton.node` is what autograd sees, and
:mod:`~bgn.kernels.triton.single` has the sweeps on their own. Triton is imported when the first
tensor for it comes. If it cannot be imported or cannot compile, that is said once, and other
backends run (:mod:`~bgn.kernels.triton.installed`).

No kernel waits for the device, adds floats atomically, or allocates in another way than torch's, so
results have the same bits every time, and calls can be recorded in CUDA graphs.

``TRITON_INTERPRET=1``, set before Python starts, runs the kernels on the CPU, for tests.
"""

from bgn.kernels.triton.eligible import TYPES, are_readable, is_eligible, is_readable_as
from bgn.kernels.triton.installed import (
    DEVICES,
    available,
    interpreted,
    kernels,
    version,
    why_not,
)
from bgn.kernels.triton.launch import launch_of
from bgn.kernels.triton.node import backward, forward, run
from bgn.kernels.triton.single import moments, products, write, write_gradient

__all__ = [
    "DEVICES",
    "TYPES",
    "are_readable",
    "available",
    "backward",
    "forward",
    "interpreted",
    "is_eligible",
    "is_readable_as",
    "kernels",
    "launch_of",
    "moments",
    "products",
    "run",
    "version",
    "why_not",
    "write",
    "write_gradient",
]

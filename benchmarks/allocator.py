"""How malloc of the GNU C library treats large blocks, which decides what a large output costs.

By default it gives freed blocks of some megabytes back to the system, depending on what lies beside
them in memory. The next output then begins with page faults, which can take longer than the
kernel that writes it. Whom they hit is chance, so times are measured with memory that is reused, as
in the steady state of a training loop. Peaks of memory are measured with the opposite: every large
tensor gets pages of its own, which are given back at once. Otherwise a peak would also depend on
how malloc cuts up what was freed, by tens of megabytes.
"""

from __future__ import annotations

import os
import sys

_LARGEST = str(1 << 40)
REUSE = {"MALLOC_MMAP_THRESHOLD_": _LARGEST, "MALLOC_TRIM_THRESHOLD_": _LARGEST}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def reuse_memory() -> None:
    """Start this program again with memory that is reused; no effect with another malloc."""
    if any(name in os.environ for name in REUSE):  # started again already, or the user's own choice
        return
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **REUSE})

"""What there is to compute with."""

from __future__ import annotations

import os


def count() -> int:
    """That this process may use, which are fewer than the machine has under taskset or a batch system."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

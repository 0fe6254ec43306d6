"""Cores that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def count(root: Path = Path("/")) -> int:
    """Number of cores, within the limits of taskset, a batch system or a container.

    A container's quota is time per period: one and a half cores count as two. ``root`` is where
    ``proc`` and ``sys`` are.
    """
    if hasattr(os, "sched_getaffinity"):  # not on every system
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, min([cores, *(math.ceil(quota) for quota in _quotas(root))]))


def threads(processes: int) -> int:
    """Threads for each of several processes: OMP_NUM_THREADS if set, else an equal share."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return max(1, count() // processes)


def _quotas(root: Path) -> Iterator[float]:
    """Cores that the control groups of this process grant: its own and those above it."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":  # version 2
            bases, names = ["sys/fs/cgroup"], ["cpu.max"]
        elif "cpu" in controllers.split(","):  # version 1
            bases = ["sys/fs/cgroup/cpu", f"sys/fs/cgroup/{controllers}"]
            names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        # within a container, the path may be that of the host: then only the last one exists
        own = PurePosixPath(group.lstrip("/"))
        for base in bases:
            for folder in (own, *own.parents):
                try:
                    words = [(root / base / folder / name).read_text() for name in names]
                    quota, period = map(int, " ".join(words).split())
                except (OSError, ValueError):  # not there, or "max": no limit
                    continue
                if quota > 0 and period > 0:  # -1: no limit
                    yield quota / period

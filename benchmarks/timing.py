"""Times of several functions in one run, interleaved, so that noise of the machine hits all of them alike.

Every turn begins with a call that is not timed: what another function left in the caches and in the allocator is not this one's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


def interleaved(
    steps: dict[str, Callable[[], Any]], seconds: float, least: int = 4
) -> dict[str, dict[str, float]]:
    """Minimum and median seconds per call, from rounds in which every function has its turn, for about so long in all."""
    names = list(steps)
    calls = {}
    for name in names:  # warm up, and repeat what is too short for the clock
        steps[name]()
        begin = time.perf_counter()
        steps[name]()
        calls[name] = max(1, min(200, int(2e-4 / max(time.perf_counter() - begin, 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < least or time.perf_counter() < end:
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            step, n = steps[name], calls[name]
            step()
            begin = time.perf_counter()
            for _ in range(n):
                step()
            times[name].append((time.perf_counter() - begin) / n)
        rounds += 1
    return {
        name: {"min": round(min(t), 9), "median": round(statistics.median(t), 9), "rounds": len(t)}
        for name, t in times.items()
    }

"""Times of several functions in one run, interleaved, so that noise hits all of them alike.

Every round gives each function one turn, in an order that is drawn anew: nobody always follows the
same rival. A turn begins with a call that is not timed, because caches and allocator are as the
rival before left them.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

SHORTEST = 2e-4  # seconds of a turn; a function that takes less is called several times


def samples(
    steps: Mapping[str, Callable[[], Any]],
    seconds: float,
    least: int = 7,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each function, one number per round.

    Rounds go on for about ``seconds`` in all; there are at least ``least``. ``clock`` tells the
    time of a call: with ``time.process_time`` that of this process alone, over all its threads.
    """
    calls = {}
    for name, step in steps.items():
        step()
        begin = time.perf_counter()
        step()
        elapsed = max(time.perf_counter() - begin, 1e-7)
        calls[name] = max(1, min(200, int(SHORTEST / elapsed)))
    order, draws = list(steps), random.Random(seed)
    times: dict[str, list[float]] = {name: [] for name in steps}
    collects = gc.isenabled()
    gc.disable()  # a collection would hit whoever is running
    try:
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < least or time.perf_counter() < end:
            draws.shuffle(order)
            for name in order:
                step, n = steps[name], calls[name]
                step()
                begin = clock()
                for _ in range(n):
                    step()
                times[name].append((clock() - begin) / n)
            rounds += 1
    finally:
        if collects:
            gc.enable()
    return times


def summary(times: Mapping[str, list[float]]) -> dict[str, dict[str, float]]:
    """Minimum, median and number of the rounds of each function."""
    return {
        name: {"min": min(t), "median": statistics.median(t), "rounds": len(t)}
        for name, t in times.items()
    }


def interleaved(
    steps: Mapping[str, Callable[[], Any]],
    seconds: float,
    least: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, float]]:
    """The summary of :func:`samples`."""
    return summary(samples(steps, seconds, least, clock=clock))

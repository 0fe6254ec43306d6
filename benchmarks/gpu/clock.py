"""How a call is timed: between CUDA events with a cold L2 cache, or on the CPU to try a command."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

FLUSHED = 512 << 20  # bytes that are written before each call: more than any L2 cache
Steps = Mapping[str, Callable[[], Any]]
Times = dict[str, list[float]]


class Clock(Protocol):
    """Seconds of calls."""

    def times(self, steps: Steps, rounds: int) -> Times:
        """Seconds of every call of each function; they take turns in random order."""


class Events:
    """CUDA events on the current stream."""

    def __init__(self) -> None:
        self.flushed = torch.empty(FLUSHED // 4, dtype=torch.int32, device="cuda")

    def times(self, steps: Steps, rounds: int) -> Times:
        """As ``Clock`` says. The host runs ahead: it waits for the device once per round."""
        for step in steps.values():
            for _ in range(3):
                step()
        event: Any = torch.cuda.Event
        order, draws = list(steps), random.Random(0)
        found: Times = {name: [] for name in steps}
        for _ in range(rounds):
            draws.shuffle(order)
            events: dict[str, Any] = {}
            for name in order:
                self.flushed.zero_()
                begin, end = (event(enable_timing=True) for _ in range(2))
                begin.record()
                steps[name]()
                end.record()
                events[name] = begin, end
            torch.cuda.synchronize()
            for name, (begin, end) in events.items():
                found[name].append(begin.elapsed_time(end) / 1e3)
        return found


class Host:
    """The CPU's clock."""

    def times(self, steps: Steps, rounds: int) -> Times:
        """As ``Clock`` says."""
        found: Times = {name: [] for name in steps}
        for _ in range(rounds):
            for name, step in steps.items():
                begin = time.perf_counter()
                step()
                found[name].append(time.perf_counter() - begin)
        return found


def clock_of(device: str) -> Clock:
    """The clock of a kind of device."""
    return Events() if device == "cuda" else Host()

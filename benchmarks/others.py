"""How much of the CPU other processes took while something was measured.

The load average is too slow to tell: it lags by a minute. It matters because the noise is not fair.
A layer that splits a small map among threads waits whole time slices for a thread that has no core;
one that runs on a single thread does not. With one core taken, nn.BatchNorm2d was seen at 48 ms in
place of 0.06 ms on 2x16x8x8, and BGN at 0.07 ms: a ratio that says nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
MOST = 0.25  # cores; ticks of 10 ms are counted, which is wrong by up to 0.2 in a short row


def _busy() -> float | None:
    """Seconds that all cores together were busy, or taken by other guests of the host."""
    try:
        fields = [int(text) for text in STAT.read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    except (OSError, ValueError):
        return None
    busy = user + nice + system + irq + softirq + steal
    return float(busy / os.sysconf("SC_CLK_TCK"))


class Others:
    """Counts from its making on."""

    def __init__(self) -> None:
        self.busy, self.own, self.begin = _busy(), time.process_time(), time.monotonic()

    def cores(self) -> float | None:
        """Cores that others kept busy since, on average; None where the system does not tell."""
        now = _busy()
        if now is None or self.busy is None:
            return None
        elapsed = max(time.monotonic() - self.begin, 1e-9)
        return max(0.0, (now - self.busy - (time.process_time() - self.own)) / elapsed)


def is_disturbed(cores: float | None) -> bool:
    """Whether others took so much that times mean little."""
    return cores is not None and cores > MOST

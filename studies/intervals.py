"""Differences between rows, paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from scipy.stats import t


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float | None]:
    """Mean difference over the seeds of both, and half of its 95 % interval (Student's t).

    >>> mean, half = paired({0: 61.0, 1: 62.0, 2: 63.0}, {0: 60.0, 1: 60.0, 2: 60.0})
    >>> mean, round(half, 2)
    (2.0, 2.48)
    >>> paired({0: 61.0}, {0: 60.0, 1: 60.0})
    (1.0, None)
    """
    seeds = sorted(one.keys() & other.keys())
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(one)} and {sorted(other)}")
    gaps = [one[seed] - other[seed] for seed in seeds]
    if len(gaps) < 2:
        return gaps[0], None
    half = float(t.ppf(0.975, len(gaps) - 1)) * statistics.stdev(gaps) / len(gaps) ** 0.5
    return statistics.mean(gaps), half


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """The same for a table.

    >>> difference({0: 61.0, 1: 62.0, 2: 63.0}, {0: 60.0, 1: 60.0, 2: 60.0})
    '+2.0 ± 2.5'
    """
    mean, half = paired(one, other)
    return f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}")

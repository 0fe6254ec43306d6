"""Differences between rows, paired by seed, and how sure they are."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

CONFIDENCE = 0.95


def paired(one: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, float | None]:
    """Mean difference over the seeds of both, and half of its 95 % interval (Student's t).

    The half is None for a single seed, which says nothing about spread.

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
    half = quantile(len(gaps) - 1) * statistics.stdev(gaps) / len(gaps) ** 0.5
    return statistics.mean(gaps), half


def quantile(freedom: int) -> float:
    """Student's t that a two-sided 95 % interval reaches to.

    >>> round(quantile(1), 1), round(quantile(2), 2), round(quantile(1000), 2)
    (12.7, 4.3, 1.96)
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))

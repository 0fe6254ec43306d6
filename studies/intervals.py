"""Differences between rows, paired by seed."""

from __future__ import annotations

from collections.abc import Mapping

from bgn_lab.report.intervals import paired

__all__ = ["difference", "paired"]


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> str:
    """Mean difference and half of its 95 % interval, for a table.

    >>> difference({0: 61.0, 1: 62.0, 2: 63.0}, {0: 60.0, 1: 60.0, 2: 60.0})
    '+2.0 ± 2.5'
    """
    mean, half = paired(one, other)
    return f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}")

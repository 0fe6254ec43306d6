"""Averages over seeds, and differences between rows, paired by seed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from bgn_lab.report.intervals import paired

__all__ = ["compared", "difference", "paired", "spread"]

Scores = Mapping[int, float]
"""Test scores in %, by seed."""
LEADS = "leads", "trails", "level"


def difference(one: Scores, other: Scores) -> str:
    """Mean difference and half of its 95 % interval, for a table.

    >>> difference({0: 61.0, 1: 62.0, 2: 63.0}, {0: 60.0, 1: 60.0, 2: 60.0})
    '+2.0 ± 2.5'
    """
    mean, half = paired(one, other)
    return f"{mean:+.1f}" + ("" if half is None else f" ± {half:.1f}")


def compared(
    one: Scores, other: Scores, words: tuple[str, str, str] = LEADS, least: float = 1.0
) -> str:
    """The difference in words: for more, for less, and for neither.

    A difference counts from ``least`` points on, if its interval excludes zero.

    >>> compared({0: 52.0, 1: 53.0, 2: 52.5}, {0: 50.0, 1: 51.0, 2: 50.0})
    'leads, +2.2 ± 0.7'
    >>> compared({0: 52.0, 1: 50.0}, {0: 50.0, 1: 51.0}), compared({0: 52.0}, {0: 50.0})
    ('level, +0.5 ± 19.1', 'one seed, +2.0')

    A run that diverged has no score:

    >>> compared({}, {0: 50.0})
    ''
    """
    if not one.keys() & other.keys():
        return ""
    mean, half = paired(one, other)
    more, less, neither = words
    if half is None:
        word = "one seed"
    elif abs(mean) >= least and abs(mean) > half:
        word = more if mean > 0 else less
    else:
        word = neither
    return f"{word}, {difference(one, other)}"


def spread(values: Scores) -> str:
    """Mean over seeds, with the standard deviation where there are several.

    >>> spread({0: 60.0, 1: 62.0}), spread({0: 60.0}), spread({})
    ('61.0 ± 1.4', '60.0', '')
    """
    numbers = list(values.values())
    if not numbers:
        return ""
    mean = f"{statistics.mean(numbers):.1f}"
    return f"{mean} ± {statistics.stdev(numbers):.1f}" if len(numbers) > 1 else mean

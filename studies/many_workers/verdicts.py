"""What counts as what, as studies/many_workers/README.md has it."""

from __future__ import annotations

from collections.abc import Sequence

from studies.intervals import Scores, paired

COLLAPSE, WITHIN, ABOVE, REFUTED, ALIKE = 3.0, 1.5, 2.0, 1.0, 2.0


def excludes_zero(one: Scores, other: Scores) -> bool:
    """Whether the interval of a difference does; a single seed has none."""
    mean, half = paired(one, other)
    return half is not None and abs(mean) > half


def collapses(small: Scores, large: Scores) -> bool:
    """Whether BN at few images is far behind BN at many.

    >>> collapses({0: 50.0, 1: 51.0, 2: 50.0}, {0: 55.0, 1: 56.5, 2: 55.5})
    True
    >>> collapses({0: 50.0, 1: 51.0, 2: 50.0}, {0: 52.0, 1: 53.5, 2: 52.5})
    False
    """
    return paired(small, large)[0] <= -COLLAPSE and excludes_zero(small, large)


def holds(row: Scores, bn_small: Scores, bn_large: Scores) -> bool:
    """Whether a row at few images does as well as BN at many, and better than BN at few.

    >>> bn, large = {0: 50.0, 1: 51.0, 2: 50.0}, {0: 55.0, 1: 56.5, 2: 55.5}
    >>> holds({0: 54.5, 1: 55.5, 2: 54.0}, bn, large), holds({0: 53.5, 1: 54.5, 2: 53.0}, bn, large)
    (True, False)
    """
    if not row.keys() & bn_small.keys() & bn_large.keys():
        return False
    near = paired(row, bn_large)[0] >= -WITHIN
    return near and paired(row, bn_small)[0] >= ABOVE and excludes_zero(row, bn_small)


def refuted(rows: Sequence[Scores], bn: Scores) -> bool:
    """Whether no row of BGN can be ahead of BN by a point, as far as the seeds tell.

    >>> bn = {0: 50.0, 1: 51.0, 2: 50.0}
    >>> refuted([{0: 50.2, 1: 50.9, 2: 50.1}], bn), refuted([{0: 50.0, 1: 53.0, 2: 50.0}], bn)
    (True, False)
    """
    ends = []
    for row in (row for row in rows if row.keys() & bn.keys()):
        mean, half = paired(row, bn)
        if half is None:
            return False
        ends.append(mean + half)
    return bool(ends) and max(ends) < REFUTED

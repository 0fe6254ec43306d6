"""What counts as what, as studies/segmentation/README.md has it."""

from __future__ import annotations

from collections.abc import Mapping

from studies.intervals import difference, paired

Scores = Mapping[int, float]
"""Mean IoU on test images in %, by seed."""

LEAD, HELPS = 1.0, 1.0


def compared(one: Scores, other: Scores) -> str:
    """The difference in words.

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
    said = difference(one, other)
    if half is None:
        return f"one seed, {said}"
    if abs(mean) >= LEAD and abs(mean) > half:
        return f"{'leads' if mean > 0 else 'trails'}, {said}"
    return f"level, {said}"


def recalibration(trained: Scores, exact: Scores) -> str:
    """What exact statistics change, with the same weights.

    >>> recalibration({0: 50.0, 1: 51.0, 2: 52.0}, {0: 52.0, 1: 53.1, 2: 54.0})
    'helps, +2.0 ± 0.1'
    >>> recalibration({0: 50.0}, {0: 48.0}), recalibration({0: 50.0}, {})
    ('one seed, -2.0', '')
    """
    if not trained.keys() & exact.keys():
        return ""
    mean, half = paired(exact, trained)
    said = difference(exact, trained)
    if half is None:
        return f"one seed, {said}"
    if abs(mean) >= HELPS and abs(mean) > half:
        return f"{'helps' if mean > 0 else 'hurts'}, {said}"
    return f"no difference seen, {said}"

"""What a step sends between devices: gradients, and statistics where they are synchronized.

Bytes are those that one device sends, which are as many as it receives. All numbers have 4 bytes,
in mixed precision too: gradients have the type of the parameters, and statistics are gathered in at
least float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

BYTES = 4
FIRST_BUCKET, BUCKET = (
    2**20,
    25 * 2**20,
)  # bytes that DistributedDataParallel sends at a time, by default


@dataclass(frozen=True)
class Link:
    """A connection between devices: latency in seconds per collective, and bytes per second.

    A collective takes the latency however small it is. A value of None costs nothing.
    """

    latency: float | None = None
    bandwidth: float | None = None

    @property
    def known(self) -> bool:
        """Whether traffic takes time in the plan."""
        return self.latency is not None or self.bandwidth is not None


@dataclass(frozen=True)
class Traffic:
    """What one device sends in one step."""

    bytes: float = 0.0
    collectives: int = 0

    def seconds(self, link: Link) -> float:
        """collectives * latency + bytes / bandwidth, as if nothing else went on meanwhile.

        >>> round(Traffic(1e9, 100).seconds(Link(20e-6, 10e9)), 6)
        0.102
        """
        sent = self.bytes / link.bandwidth if link.bandwidth else 0.0
        return self.collectives * (link.latency or 0.0) + sent


def gradients(parameters: int, P: int) -> Traffic:
    """Traffic of the gradients with DistributedDataParallel.

    It is a ring all-reduce in buckets: 2 (P - 1) / P * 4 bytes * parameters.

    >>> gradients(25_557_032, 8)
    Traffic(bytes=178899224.0, collectives=5)
    >>> gradients(25_557_032, 1)
    Traffic(bytes=0.0, collectives=0)
    """
    if P == 1:
        return Traffic()
    size = BYTES * parameters
    return Traffic(2 * (P - 1) / P * size, 1 + math.ceil(max(size - FIRST_BUCKET, 0) / BUCKET))


def statistics(groups: Sequence[int], P: int, turns: int = 1) -> Traffic:
    """Traffic of ``bgn.convert_sync`` for layers of G groups each.

    A device runs ``turns`` workers one after the other. Forward, each layer has an all-gather of
    count, mean and M2, 3 G numbers: (P - 1) * 3 G * 4 bytes. Backward, it has an all-reduce of two
    sums, 2 G numbers: 2 (P - 1) / P * 2 G * 4 bytes.

    >>> statistics([64] * 53, 8)
    Traffic(bytes=332416.0, collectives=106)
    """
    if P == 1:
        return Traffic()
    G = sum(groups)
    return Traffic(
        turns * BYTES * ((P - 1) * 3 * G + 2 * (P - 1) / P * 2 * G), turns * 2 * len(groups)
    )

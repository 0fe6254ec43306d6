"""How many groups: the paper's schedule from batch size to G."""

from __future__ import annotations

from bgn import checks

# images per worker -> G, for ResNet-50 on ImageNet; the ends were searched for, the values between interpolated
PAPER_SCHEDULE = {2: 1, 4: 2, 8: 16, 16: 64, 32: 128, 64: 256, 128: 512}


def paper_groups(batch_size: int) -> int:
    """The paper's number of groups for a batch size (the images that one process normalises together).

    Between the printed batch sizes, that of the next smaller one: fewer groups make larger, less noisy statistics, and
    the paper does so itself (G = 256 at batch 96). Below 2: 1 group. Above 128: 512, the most that the paper tried.

    The schedule was found with ResNet-50 on ImageNet. It is a starting point elsewhere, not a law.

    >>> [paper_groups(n) for n in (1, 2, 6, 8, 96, 1024)]
    [1, 1, 2, 16, 256, 512]
    """
    checks.positive_int("batch_size", batch_size)
    return max((G for size, G in PAPER_SCHEDULE.items() if size <= batch_size), default=1)

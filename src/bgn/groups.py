"""How many groups a layer gets: by a number or a word, the paper's schedule, what fits a layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from bgn import checks

Groups = int | str | Callable[[Any], int | None] | None

# Images per worker -> G, for ResNet-50 on ImageNet. The paper searched for the values at both ends
# and interpolated the others.
PAPER_SCHEDULE = {2: 1, 4: 2, 8: 16, 16: 64, 32: 128, 64: 256, 128: 512}

AUTO = "auto"
PAPER = "paper"
CHANNELS = "channels"  # as many groups as channels, which is batch normalization
ENOUGH = 16  # values per statistic: merging more cost accuracy (docs/studies/small-data.md)
FEW_IMAGES = 8  # below, a channel's statistics are too noisy to learn ImageNet with
MOST_OF_FEW = 16  # groups for so few images


def paper_groups(batch_size: int) -> int:
    """The paper's number of groups for a batch size (images that one process normalizes together).

    A batch size between two printed ones gets the number of the smaller one: fewer groups make
    larger, less noisy statistics, and the paper does so itself (G = 256 at batch size 96). Batch
    size 1 gets 1 group. Batch sizes above 128 get 512, the most that the paper tried.

    The schedule was found with ResNet-50 on ImageNet. For other networks and data it is a starting
    point.

    >>> [paper_groups(n) for n in (1, 2, 6, 8, 96, 1024)]
    [1, 1, 2, 16, 256, 512]
    """
    batch_size = checks.positive_int("batch_size", batch_size)
    return max((G for size, G in PAPER_SCHEDULE.items() if size <= batch_size), default=1)


def nearest_groups(num_features: int, num_groups: int) -> int:
    """The G nearest to num_groups, by ratio, that divides num_features or is a multiple of it.

    A batch normalization converts to these G without a change of its output in eval mode.

    >>> nearest_groups(64, 8), nearest_groups(24, 16), nearest_groups(24, 100)
    (8, 12, 96)
    """
    C = checks.positive_int("num_features", num_features)
    wanted = checks.positive_int("num_groups", num_groups)
    multiple = wanted // C * C
    good = [multiple, multiple + C, *_divisors(C)]
    return min((G for G in good if G), key=lambda G: (max(G / wanted, wanted / G), G))


def channel_pairs(num_features: int, most: int) -> int:
    """The largest G up to ``most`` whose groups are whole channels, and at least two of them.

    >>> [channel_pairs(C, 32) for C in (1, 8, 36, 64, 100, 256)]
    [1, 4, 18, 32, 25, 32]
    """
    return max(d for d in _divisors(num_features) if d == 1 or d <= min(most, num_features // 2))


def enough_groups(num_features: int, values: int, least: int, most: int | None = None) -> int:
    """The largest G that divides num_features and leaves ``least`` values per statistic, or 1.

    It is at most ``most``.

    ``values`` is the number of values of one channel in a batch, N*H*W. Layers with large maps get
    one group per channel, as in batch normalization; layers with small maps merge just enough
    channels.

    >>> [enough_groups(64, 2 * size * size, 64) for size in (56, 8, 4, 2, 1)]
    [64, 64, 32, 8, 2]
    """
    num_features = checks.positive_int("num_features", num_features)
    limit = num_features * checks.positive_int("values", values) // least
    limit = limit if most is None else min(limit, most)
    return max((d for d in _divisors(num_features) if d <= limit), default=1)


def auto_groups(num_features: int, images: int, positions: int) -> int:
    """The G that ``num_groups="auto"`` gives a layer for N images of H*W positions each.

    From 8 images on it is the most that leaves 16 values per statistic: one per channel, as in
    batch normalization, but where maps are small. 2 to 7 images get at most 16 groups: batch
    normalization falls with so few images of ImageNet, however large the maps are.

    A single image gets one group: all its values are its own, however many they are, and what is
    learned with them does not fit the running statistics of many images. One group suffers least;
    GroupNorm, which has no running statistics, does not suffer at all.

    >>> [auto_groups(512, 8, size * size) for size in (56, 7, 1)]
    [512, 512, 256]
    >>> [auto_groups(C, 2, 7 * 7) for C in (512, 24, 8)], auto_groups(512, 1, 7 * 7)
    ([16, 12, 8], 1)
    """
    images = checks.positive_int("images", images)
    if images == 1:
        return 1
    most = None if images >= FEW_IMAGES else MOST_OF_FEW
    return enough_groups(num_features, images * positions, ENOUGH, most)


def warn_of_one_image(images: int) -> None:
    """Recommend GroupNorm for batches of one image."""
    if images == 1:
        warnings.warn(
            "num_groups='auto' for batches of one image is 1 group;"
            " GroupNorm does better there: bgn.norm_layer('gn')",
            stacklevel=3,
        )


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]

"""How many groups: the paper's schedule from batch size to G, and what fits a layer."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from bgn import checks

Groups = int | str | Callable[[Any], int | None] | None

# images per worker -> G, for ResNet-50 on ImageNet; the ends were searched for, the values between interpolated
PAPER_SCHEDULE = {2: 1, 4: 2, 8: 16, 16: 64, 32: 128, 64: 256, 128: 512}

AUTO = "auto"
ENOUGH = 16  # values per statistic: merging further cost accuracy (docs/which-g.md)


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


def nearest_groups(num_features: int, num_groups: int) -> int:
    """The G nearest to num_groups, by ratio, that divides num_features or is a multiple of it.

    These are the G to which a batch normalisation converts without a change of its output at test time.

    >>> nearest_groups(64, 8), nearest_groups(24, 16), nearest_groups(24, 100)
    (8, 12, 96)
    """
    checks.positive_int("num_features", num_features)
    checks.positive_int("num_groups", num_groups)
    below = num_groups // num_features * num_features
    good = [
        below,
        below + num_features,
        *(d for d in range(1, num_features + 1) if num_features % d == 0),
    ]
    return min((G for G in good if G), key=lambda G: (max(G / num_groups, num_groups / G), G))


def enough_groups(num_features: int, values: int, least: int) -> int:
    """The most groups of whole channels whose statistics have at least so many values each; 1 where even that is too many.

    ``values`` is what a channel has in a batch, N*H*W. So it is batch normalisation where maps are large, and merges just enough
    channels where they are small.

    >>> [enough_groups(64, 2 * size * size, 64) for size in (56, 8, 4, 2, 1)]
    [64, 64, 32, 8, 2]
    """
    checks.positive_int("num_features", num_features)
    checks.positive_int("values", values)
    most = num_features * values // least
    return max(
        (d for d in range(1, num_features + 1) if num_features % d == 0 and d <= most), default=1
    )


def auto_groups(num_features: int, images: int, positions: int) -> int:
    """What ``num_groups="auto"`` is for a layer that normalises N images of H*W positions together.

    One group for a single image: however many values it has, they are all its own, and what is learned with them
    fits the running statistics of many images badly. One group suffers least; GroupNorm, which has none, does not suffer.

    >>> auto_groups(64, 2, 56 * 56), auto_groups(512, 2, 7 * 7), auto_groups(512, 2, 2 * 2), auto_groups(512, 1, 7 * 7)
    (64, 512, 256, 1)
    """
    checks.positive_int("images", images)
    return 1 if images == 1 else enough_groups(num_features, images * positions, ENOUGH)


def warn_of_one_image(images: int) -> None:
    """Say that there is something better, where there is."""
    if images == 1:
        warnings.warn(
            "num_groups='auto' for batches of one image is 1 group; GroupNorm does better there: bgn.norm_layer('gn')",
            stacklevel=3,
        )


def resolve(num_groups: Groups, batch_size: int | None) -> Callable[[nn.Module], int | None]:
    """What ``num_groups=`` means for a layer: a fixed number, the paper's for the batch size, or the caller's function."""
    if batch_size is not None:
        checks.positive_int("batch_size", batch_size)
    if num_groups is None and batch_size is not None:
        num_groups = "paper"
    if callable(num_groups):
        return _checked(num_groups)
    if num_groups is None:
        raise ValueError("num_groups=None and batch_size=None; expected one of them")
    if isinstance(num_groups, str):
        if num_groups != "paper":
            raise ValueError(
                f"num_groups={num_groups!r}; expected an int, 'paper', 'auto' or a function of the layer"
            )
        if batch_size is None:
            raise ValueError(
                "num_groups='paper' needs batch_size, the images that one process normalises together"
            )
        fixed = paper_groups(batch_size)
    else:
        checks.positive_int("num_groups", num_groups)
        fixed = num_groups
    return lambda _: fixed


def _checked(function: Callable[[Any], int | None]) -> Callable[[nn.Module], int | None]:
    def call(layer: nn.Module) -> int | None:
        result = function(layer)
        if result is not None:
            checks.positive_int(f"num_groups(layer) for {layer}", result)
        return result

    return call

"""What to convert a model to: what did best in our studies, by training and batch size.

This is the only place that says so in code; docs/which-g.md sums up the studies.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import distributed, nn

from bgn import checks
from bgn.groups import CHANNELS, PAPER
from bgn.surgery.kinds import is_trained, some_normalizers
from bgn.surgery.standardize import is_lazy_layer
from bgn.surgery.standardize import plan as plan_weights


@dataclass(frozen=True)
class Recommendation:
    """Arguments of :func:`convert`, and the reason for them."""

    num_groups: int | str
    renorm: bool = False
    standardize: bool = False
    model: str = ""
    """What the model was taken for: trained or new."""
    why: str = ""

    def __str__(self) -> str:
        words = [f"num_groups={self.num_groups!r}".replace("'", '"')]
        words += [f"{name}=True" for name in ("renorm", "standardize") if getattr(self, name)]
        return f"{', '.join(words)}, for {self.model}: {self.why}"


MANY = 256
"""Images from which on groups may be smaller than a channel."""

# By the least number of images that one process normalizes together. Differences are points of test
# accuracy, with 95 % intervals.
TRAINED = {
    1: Recommendation(
        CHANNELS,
        renorm=True,
        why="training begins with the function it has; at 2 images 6.7 ± 1.6 points ahead of BN",
    ),
    8: Recommendation(CHANNELS, why="BN as it was, for only smaller batches were studied"),
}
NEW = {
    1: Recommendation(
        1,
        standardize=True,
        why="one image's statistics are best shared by all features; GroupNorm does better, though:"
        ' bgn.convert(model, "gn", standardize=True)',
    ),
    2: Recommendation(
        8, standardize=True, why="with eight workers of 2 images 2.1 ± 2.0 points ahead of BN"
    ),
    8: Recommendation(CHANNELS, why="without partners BN did best from 8 to 128 images"),
    MANY: Recommendation(512, why="slices of channels were ahead of BN from 256 images on"),
}


def recommend(model: nn.Module, batch_size: int) -> Recommendation:
    """What :func:`convert` does by default to this model, and why.

    It depends on the images that one process normalizes together, and on whether the model was
    trained, so load a checkpoint first. A few batches to try a new model out do not count.

    >>> print(recommend(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), batch_size=2))
    num_groups=8, standardize=True, for a new model: with eight workers of 2 images 2.1 ± 2.0 ...
    """
    return of_layers(model, some_normalizers(model, "convert").values(), batch_size)


def of_layers(model: nn.Module, layers: Iterable[nn.Module], batch_size: int) -> Recommendation:
    """The same for some of the model's normalizers."""
    batch_size = checks.positive_int("batch_size", batch_size)
    known = [layer for layer in layers if not (_has_no_values(layer))]
    if any(map(is_trained, known)):
        found = replace(_row(TRAINED, batch_size), model="a trained model")
        if found.renorm and any(map(_has_no_statistics, known)):
            why = "BN as it was, for some layers have no running statistics to renormalize with"
            return replace(found, renorm=False, why=why)
        return found
    if any(map(_was_learned, [own for own in known if not hasattr(own, "running_mean")])):
        why = "it has no running statistics to keep, and no study is of that"
        return Recommendation(PAPER, model="a trained model", why=why)
    found = replace(_row(NEW, batch_size), model="a new model")
    if found.standardize and (reason := _cannot_standardize(model, known)):
        G, best = (found.num_groups, "one group") if batch_size == 1 else (CHANNELS, "BN")
        why = f"without standardized weights {best} did best, and they are refused here: {reason}"
        return replace(found, num_groups=G, standardize=False, why=why)
    return found


def say(found: Recommendation) -> None:
    """Tell the user, once for all processes, what ``convert`` has chosen."""
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_rank()):
        print(f"bgn.convert: {found}", file=sys.stderr, flush=True)


def _row(table: dict[int, Recommendation], batch_size: int) -> Recommendation:
    return table[max(least for least in table if least <= batch_size)]


def _has_no_values(layer: nn.Module) -> bool:
    """Whether a layer is lazy or on the meta device; ``convert`` refuses it by name."""
    return is_lazy_layer(layer) or any(
        tensor.is_meta for tensor in (*layer.parameters(), *layer.buffers())
    )


def _has_no_statistics(layer: Any) -> bool:
    """Whether a normalizer that could have running statistics has none."""
    return getattr(layer, "running_mean", 0) is None


def _was_learned(layer: Any) -> bool:
    """Whether weight and bias are no longer the zeros and ones of a new layer."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    changed = weight is not None and bool(((weight != 1) & (weight != 0)).any())
    return changed or (bias is not None and bool(bias.any()))


def _cannot_standardize(model: nn.Module, layers: list[nn.Module]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convert plans again, and warns then
        try:
            plan_weights(model, layers)
        except (TypeError, ValueError) as error:
            return " ".join(str(error).removeprefix("nothing was standardized, because of").split())
    return ""

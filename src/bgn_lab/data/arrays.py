"""Images in an .npz file, in either of two layouts.

- ``x_train`` (M, H, W, C) or (M, H, W) uint8, ``y_train``, ``x_test``, ``y_test``, and
  ``class_names`` if there are any;
- a sheet of JPEGs per class: see :mod:`bgn_lab.data.sheets`.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bgn_lab.data import images, npz, sheets
from bgn_lab.data.names import printable
from bgn_lab.data.sources import Data, Parts, needed_root, split

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

NEEDED = ("x_train", "y_train", "x_test", "y_test")
SAMPLE = 10_000  # images, about, from which mean and standard deviation are taken


def data(recipe: Recipe) -> Data:
    """The recipe's data. Training crops move by an eighth of the width."""
    root = needed_root(recipe, "an .npz file")
    parts, classes, mean, std = _loaded(root, images.stamp(root))
    return split(recipe, parts, classes, mean, std, pad=parts["train"][0].shape[-1] // 8)


@lru_cache(maxsize=2)  # runs of one process share the images
def _loaded(
    root: Path, _: object
) -> tuple[Parts, tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    parts, classes = load(root)
    x = parts["train"][0]
    some = x[:: max(1, len(x) // SAMPLE)].double() / 255
    std, mean = torch.std_mean(some, (0, 2, 3), correction=0)
    return parts, classes, tuple(mean.tolist()), tuple(std.clamp_min(1e-3).tolist())


def load(root: Path) -> tuple[Parts, tuple[str, ...]]:
    """Images (M, C, H, W) and labels of the parts "train" and "test", and the classes."""
    if {*sheets.NEEDED} <= {*npz.names(root)}:
        return sheets.load(root)
    arrays = npz.read(root, NEEDED, ("class_names",))
    classes = npz.strings(arrays.get("class_names", []))
    train, test = (_images(root, name, arrays[name]) for name in ("x_train", "x_test"))
    if train.shape[1:] != test.shape[1:]:
        raise ValueError(
            f"{printable(root)}: training images are (C, H, W) = {tuple(train.shape[1:])}, "
            f"test images {tuple(test.shape[1:])}"
        )
    rows = {"y_train": arrays["y_train"], "y_test": arrays["y_test"]}
    counts = {"y_train": len(train), "y_test": len(test)}
    labels = npz.labels(root, rows, counts, len(classes) or None)
    count = 1 + max(int(y.max()) for y in labels.values())
    return (
        {"train": (train, labels["y_train"]), "test": (test, labels["y_test"])},
        classes or tuple(str(k) for k in range(count)),
    )


def _images(root: Path, name: str, x: Any) -> Tensor:
    """(M, C, H, W)."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise ValueError(
            f"{printable(root)}: {name} is {x.dtype} {x.shape}; "
            "expected uint8 (M, H, W, C) or (M, H, W)"
        )
    if not x.size:
        raise ValueError(f"{printable(root)}: {name} is empty, {x.shape}")
    return torch.from_numpy(x.reshape(*x.shape[:3], -1)).permute(0, 3, 1, 2).contiguous()

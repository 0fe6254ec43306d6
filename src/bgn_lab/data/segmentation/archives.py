"""Images and labels of an .npz file: packed JPEGs and PNGs, or arrays.

Packed: image i is the JPEG ``jpeg[offsets[i]:offsets[i + 1]]``, its mask the gray PNG
``mask_png[mask_offsets[i]:mask_offsets[i + 1]]``, in the part ``split_names[split[i]]`` (train,
val, test), with ``class_names``. Arrays: ``x_train`` (M, H, W) or (M, H, W, C) of bytes and
``y_train`` (M, H, W), ``x_test``, ``y_test``, perhaps ``x_val``, ``y_val`` and ``class_names``;
volumes have one dimension more, (M, D, H, W) or (M, D, H, W, C).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgn_lab.data import npz
from bgn_lab.data.names import printable
from bgn_lab.data.segmentation import reading
from bgn_lab.data.segmentation.reading import Labels, Pair
from bgn_lab.data.segmentation.windows import IGNORED

PACKED = ("jpeg", "offsets", "mask_png", "mask_offsets", "split", "split_names", "class_names")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
Images = list[tuple[Tensor, Tensor]]


def read(path: Path, size: int | None, damaged: str) -> tuple[Labels, dict[str, Images]]:
    """The classes, and images with labels by part."""
    names = npz.names(path)
    if "x_train" in names:
        return _arrays(path, size)
    if "mask_png" not in names:
        have = printable(", ".join(names)) or "nothing"
        raise ValueError(
            f"{printable(path)} has no masks; expected {', '.join(PACKED)}, or {', '.join(ARRAYS)};"
            f" found {have}"
        )
    return _packed(path, size, damaged)


def _packed(path: Path, size: int | None, damaged: str) -> tuple[Labels, dict[str, Images]]:
    arrays = npz.read(path, PACKED, ("file_names",))
    files = npz.slices(path, arrays, "jpeg", "offsets")
    masks = npz.slices(path, arrays, "mask_png", "mask_offsets", len(files))
    parts = npz.strings(arrays["split_names"])
    split = npz.integers(path, "split", arrays["split"], len(files), 0, len(parts) - 1)
    labels = _named(path, arrays["class_names"])
    names = npz.strings(arrays["file_names"]) if "file_names" in arrays else ()
    found: dict[str, Images] = {}
    for k, part in enumerate(parts):
        places = np.flatnonzero(split == k).tolist()
        pairs = [
            Pair(
                files[i].tobytes(),
                masks[i].tobytes(),
                names[i] if len(names) == len(files) else f"image {i} of {path}",
            )
            for i in places
        ]
        if pairs:
            found[part] = reading.read(pairs, labels, size, damaged)
    return labels, _with_test(found, path)


def _arrays(path: Path, size: int | None) -> tuple[Labels, dict[str, Images]]:
    arrays = npz.read(path, ARRAYS, ("x_val", "y_val", "class_names"))
    if size is not None:
        raise ValueError(
            f"image_size={size} is for image files; the arrays of {printable(path)} are used as"
            " they are"
        )
    own = arrays.get("class_names")
    labels = reading.counted() if own is None else _named(path, own)
    found = {}
    for part in ("train", "val", "test"):
        if f"x_{part}" in arrays:
            x, y = arrays[f"x_{part}"], arrays.get(f"y_{part}")
            found[part] = _pairs(path, part, x, y, labels)
    return labels, found


def _named(path: Path, array: Any) -> Labels:
    names = npz.strings(array)
    if len(names) > IGNORED:
        raise ValueError(
            f"{printable(path)} has {len(names):,} class_names; expected at most {IGNORED}"
        )
    return reading.named(names)


def _pairs(path: Path, part: str, x: Any, y: Any, labels: Labels) -> Images:
    where = f"{printable(path)}: x_{part}"
    if y is None or y.dtype.kind not in "iub" or y.ndim not in (3, 4):
        have = "missing" if y is None else f"{y.dtype} {y.shape}"
        raise ValueError(
            f"{printable(path)}: y_{part} is {have}; expected integers (M, H, W), or (M, D, H, W)"
        )
    if x.dtype != np.uint8 or x.ndim not in (y.ndim, y.ndim + 1) or x.shape[: y.ndim] != y.shape:
        raise ValueError(
            f"{where} is {x.dtype} {x.shape}; expected uint8 {y.shape}, or with channels behind"
        )
    if y.size and not 0 <= int(y.min()) <= int(y.max()) <= 255:
        raise ValueError(
            f"{printable(path)}: y_{part} has values from {y.min()} to {y.max()}; expected 0 to 255"
        )
    if x.ndim == y.ndim:
        x = x[..., None]
    pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(x, -1, 1)))
    values = torch.from_numpy(np.ascontiguousarray(y).astype(np.uint8))
    return [(a, labels.table[b.long()]) for a, b in zip(pixels, values, strict=True)]


def _with_test(found: dict[str, Images], path: Path) -> dict[str, Images]:
    if "train" not in found:
        raise ValueError(f"{printable(path)} has no images of the part 'train'")
    if "test" not in found and "val" in found:
        found["test"] = found.pop("val")
    return found

"""Images in an .npz file: x_train (M, H, W, C) or (M, H, W) uint8, y_train, x_test, y_test, and class_names if there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_NEEDED = ("x_train", "y_train", "x_test", "y_test")


def load(root: Path) -> tuple[dict[str, tuple[Tensor, Tensor]], tuple[str, ...]]:
    """Images (M, C, H, W) and labels of the parts "train" and "test", and the names of the classes."""
    arrays = _read(root)
    parts = {
        part: _part(root, part, arrays[f"x_{part}"], arrays[f"y_{part}"])
        for part in ("train", "test")
    }
    if (shapes := [tuple(x.shape[1:]) for x, _ in parts.values()])[0] != shapes[1]:
        raise ValueError(
            f"root={root}: training images are (C, H, W) = {shapes[0]}, test images {shapes[1]}"
        )
    count = 1 + max(int(y.max()) for _, y in parts.values())
    classes = tuple(np.ravel(arrays.get("class_names", [])).astype(str).tolist())
    if classes and len(classes) < count:
        raise ValueError(f"root={root}: {len(classes)} class_names, but labels up to {count - 1}")
    return parts, classes or tuple(str(k) for k in range(count))


def _read(root: Path) -> dict[str, Any]:
    if not root.is_file():
        raise FileNotFoundError(f"root={root} is not there; expected an .npz file")
    try:
        with root.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = archive.files
            arrays = {name: archive[name] for name in (*_NEEDED, "class_names") if name in found}
    except (
        Exception
    ) as error:  # zipfile, zlib and numpy have many ways to say that a file is damaged
        raise ValueError(f"root={root} cannot be read as an .npz file: {error}") from None
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise ValueError(
            f"root={root} has no {', '.join(missing)}; expected {', '.join(_NEEDED)}, found {', '.join(found)}"
        )
    return arrays


def _part(root: Path, part: str, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    if (
        x.dtype != np.uint8
        or x.ndim not in (3, 4)
        or y.shape != (len(x),)
        or not np.issubdtype(y.dtype, np.integer)
    ):
        raise ValueError(
            f"root={root}: x_{part} is {x.dtype} {x.shape}, y_{part} is {y.dtype} {y.shape}; "
            "expected uint8 (M, H, W, C) or (M, H, W), and M integers"
        )
    if not x.size:
        raise ValueError(f"root={root}: x_{part} is empty, {x.shape}")
    if y.min() < 0:
        raise ValueError(f"root={root}: y_{part} has the label {y.min()}; expected 0, 1, 2, ...")
    images = torch.from_numpy(x.reshape(*x.shape[:3], -1)).permute(0, 3, 1, 2).contiguous()
    return images, torch.from_numpy(y.astype(np.int64))

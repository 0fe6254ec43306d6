"""JPEGs in an .npz file.

Image i is ``jpeg[offsets[i]:offsets[i + 1]]``, of the class ``wnids[labels[i]]``, in the part
``split_names[split[i]]``. Or, divided into domains, of the class ``class_names[labels[i]]`` in
``domain_names[domain[i]]``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgn_lab.data import images, npz
from bgn_lab.data.names import printable

NAMES = "class_names"  # for people, if there are any; as many as wnids
CLASSES = {"split": "wnids", "domain": NAMES}  # by what the images are divided into


def read(path: Path, by: str = "split") -> dict[str, Any]:
    """The arrays, if they fit together; "files" are the images, "path" is the archive."""
    key = CLASSES[by]
    needed = ("jpeg", "offsets", "labels", by, f"{by}_names", key)
    arrays = npz.read(path, needed, () if key == NAMES else (NAMES,))
    arrays["path"] = path
    arrays["files"] = files = npz.slices(path, arrays, "jpeg", "offsets")
    for name in (key, f"{by}_names"):
        arrays[name] = np.array(npz.strings(arrays[name]), dtype=str)
    classes = arrays[key].tolist()
    if len({*classes}) != len(classes):
        raise ValueError(f"{printable(path)} has two {key} of the same name; expected different")
    arrays[NAMES] = np.array(npz.strings(arrays.get(NAMES, classes)), dtype=str)
    if len(arrays[NAMES]) != len(classes):
        raise ValueError(
            f"{printable(path)} has {len(arrays[NAMES])} {NAMES} for {len(classes)} {key}; "
            "expected as many"
        )
    if odd := [name for name in classes if Path(name).name != name or name.startswith(".")]:
        raise ValueError(
            f"{printable(path)} has the {key.rstrip('s')} {odd[0]!r}; expected the name of a folder"
        )
    for name, most in (("labels", len(classes)), (by, len(arrays[f"{by}_names"]))):
        arrays[name] = npz.integers(path, name, arrays[name], len(files), 0, most - 1)
    return arrays


def raw(arrays: dict[str, Any], i: int) -> bytes:
    """The file of image i."""
    content: bytes = arrays["files"][i].tobytes()
    if not content.startswith(b"\xff\xd8"):
        raise ValueError(f"image {i} is no JPEG: it begins with {content[:2].hex()}, expected ffd8")
    return content


def decode(
    arrays: dict[str, Any],
    inside: Any,
    resize: Callable[[Any, int], Tensor],
    size: int,
    damaged: str,
) -> tuple[Tensor, Tensor]:
    """Images (M, 3, size, size) at these places, and their labels; damaged ones are left out.

    Without a readable image of a class that has some, there is an error.
    """
    places = inside.tolist()
    x, kept = images.stack(
        [lambda i=i: raw(arrays, i) for i in places],  # type: ignore[misc]
        lambda k: f"image {places[k]} of {arrays['path']}",
        resize,
        size,
        damaged,
    )
    y = torch.from_numpy(arrays["labels"][inside])
    images.refuse_lost_classes(y, kept, arrays[NAMES].tolist(), arrays["path"])
    return x, y[kept]


def places(arrays: dict[str, Any], by: str, name: str) -> Any:
    """The places of the images of a part or a domain; none where there is no such."""
    names = arrays[f"{by}_names"].tolist()
    return np.flatnonzero(arrays[by] == names.index(name)) if name in names else np.empty(0, int)

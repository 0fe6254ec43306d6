"""JPEGs in an .npz file: image i is jpeg[offsets[i]:offsets[i + 1]], of the class wnids[labels[i]], in the part
split_names[split[i]]."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

NEEDED = ("jpeg", "offsets", "labels", "split", "split_names", "wnids")
NAMES = "class_names"  # for people, if there are any; as many as wnids


def read(path: Path) -> dict[str, Any]:
    """The arrays, if they fit together."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = archive.files
            arrays = {name: archive[name] for name in (*NEEDED, NAMES) if name in found}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # zipfile, zlib and numpy have many ways to say that a file is damaged
        raise ValueError(f"{path} cannot be read as an .npz file: {error}") from None
    if missing := [name for name in NEEDED if name not in arrays]:
        raise ValueError(f"{path} has no {', '.join(missing)}; expected {', '.join(NEEDED)}, found {', '.join(found)}")
    jpeg, offsets, labels, split = (arrays[name] for name in NEEDED[:4])
    if not len(offsets) - 1 == len(labels) == len(split):
        raise ValueError(
            f"{path} has {len(labels)} labels, {len(split)} entries of split and {len(offsets)} offsets; "
            "expected as many of each, but one more offset"
        )
    if jpeg.dtype != np.uint8 or offsets[0] < 0 or offsets[-1] > len(jpeg) or (np.diff(offsets) < 2).any():
        raise ValueError(f"{path} has offsets that do not rise from 0 to the {len(jpeg)} entries of jpeg, which is {jpeg.dtype}")
    if not 0 <= labels.min(initial=0) <= labels.max(initial=0) < len(arrays["wnids"]) == len({*arrays["wnids"].tolist()}):
        raise ValueError(
            f"{path} has labels up to {labels.max(initial=0)} for {len(arrays['wnids'])} wnids; "
            "expected a different one for each label"
        )
    if len(arrays.get(NAMES, arrays["wnids"])) != len(arrays["wnids"]):
        raise ValueError(f"{path} has {len(arrays[NAMES])} class_names for {len(arrays['wnids'])} wnids; expected as many")
    if odd := [name for name in arrays["wnids"].tolist() if Path(name).name != name or name.startswith(".")]:
        raise ValueError(f"{path} has the wnid {odd[0]!r}; expected the name of a folder")
    return arrays


def raw(arrays: dict[str, Any], i: int) -> bytes:
    """The file of image i."""
    content: bytes = arrays["jpeg"][arrays["offsets"][i] : arrays["offsets"][i + 1]].tobytes()
    if not content.startswith(b"\xff\xd8"):
        raise ValueError(f"image {i} is no JPEG: it begins with {content[:2].hex()}, expected ffd8")
    return content


def part(arrays: dict[str, Any], name: str, size: int) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Images (M, 3, size, size), labels from 0 on, and the classes of a part; no images where there is no such part."""
    names = arrays["split_names"].tolist()
    inside = np.flatnonzero(arrays["split"] == names.index(name)) if name in names else np.empty(0, int)
    classes, labels = np.unique(arrays["labels"][inside], return_inverse=True)
    images = [square(BytesIO(raw(arrays, i)), size) for i in inside.tolist()]
    x = torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)
    return x, torch.from_numpy(labels.astype(np.int64)), tuple(str(arrays.get(NAMES, arrays["wnids"])[k]) for k in classes)


def square(file: Any, size: int) -> Tensor:
    """The largest square in the middle of an image, as (3, size, size)."""
    from PIL import Image

    with Image.open(file) as image:
        W, H = image.size
        side = min(W, H)
        box = ((W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2)
        pixels = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0).tobytes()
    return torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)

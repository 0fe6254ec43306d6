"""JPEGs in an .npz file: image i is jpeg[offsets[i]:offsets[i + 1]], of the class wnids[labels[i]], in the part
split_names[split[i]]. Or, divided into domains, of the class class_names[labels[i]] in domain_names[domain[i]]."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

NAMES = "class_names"  # for people, if there are any; as many as wnids
CLASSES = {"split": "wnids", "domain": NAMES}  # by what the images are divided into


def read(path: Path, by: str = "split") -> dict[str, Any]:
    """The arrays, if they fit together."""
    key = CLASSES[by]
    needed = ("jpeg", "offsets", "labels", by, f"{by}_names", key)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = archive.files
            arrays = {name: archive[name] for name in {*needed, NAMES} if name in found}
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from None
    except (
        Exception
    ) as error:  # zipfile, zlib and numpy have many ways to say that a file is damaged
        raise ValueError(f"{path} cannot be read as an .npz file: {error}") from None
    if missing := [name for name in needed if name not in arrays]:
        raise ValueError(
            f"{path} has no {', '.join(missing)}; expected {', '.join(needed)}, found {', '.join(found)}"
        )
    jpeg, offsets, labels, division = (arrays[name] for name in needed[:4])
    if not len(offsets) - 1 == len(labels) == len(division):
        raise ValueError(
            f"{path} has {len(labels)} labels, {len(division)} entries of {by} and {len(offsets)} offsets; "
            "expected as many of each, but one more offset"
        )
    if (
        jpeg.dtype != np.uint8
        or offsets[0] < 0
        or offsets[-1] > len(jpeg)
        or (np.diff(offsets) < 2).any()
    ):
        raise ValueError(
            f"{path} has offsets that do not rise from 0 to the {len(jpeg)} entries of jpeg, which is {jpeg.dtype}"
        )
    classes = arrays[key].tolist()
    if not 0 <= labels.min(initial=0) <= labels.max(initial=0) < len(classes) == len({*classes}):
        raise ValueError(
            f"{path} has labels up to {labels.max(initial=0)} for {len(classes)} {key}; expected a different one for each label"
        )
    if len(arrays.get(NAMES, classes)) != len(classes):
        raise ValueError(
            f"{path} has {len(arrays[NAMES])} class_names for {len(classes)} {key}; expected as many"
        )
    if odd := [name for name in classes if Path(name).name != name or name.startswith(".")]:
        raise ValueError(
            f"{path} has the {key.rstrip('s')} {odd[0]!r}; expected the name of a folder"
        )
    return arrays


def raw(arrays: dict[str, Any], i: int) -> bytes:
    """The file of image i."""
    content: bytes = arrays["jpeg"][arrays["offsets"][i] : arrays["offsets"][i + 1]].tobytes()
    if not content.startswith(b"\xff\xd8"):
        raise ValueError(f"image {i} is no JPEG: it begins with {content[:2].hex()}, expected ffd8")
    return content


def part(arrays: dict[str, Any], name: str, size: int) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Squares (M, 3, size, size) of a part's images, labels from 0 on, and classes; no images where there is no such part."""
    inside = _inside(arrays, "split", name)
    classes, labels = np.unique(arrays["labels"][inside], return_inverse=True)
    x = _stacked([square(BytesIO(raw(arrays, i)), size) for i in inside.tolist()], size)
    return (
        x,
        torch.from_numpy(labels.astype(np.int64)),
        tuple(str(arrays.get(NAMES, arrays["wnids"])[k]) for k in classes),
    )


def domain(arrays: dict[str, Any], name: str, size: int) -> tuple[Tensor, Tensor]:
    """Whole images (M, 3, size, size) of a domain, and labels."""
    inside = _inside(arrays, "domain", name)
    x = _stacked([whole(BytesIO(raw(arrays, i)), size) for i in inside.tolist()], size)
    return x, torch.from_numpy(arrays["labels"][inside].astype(np.int64))


def _inside(arrays: dict[str, Any], by: str, name: str) -> Any:
    names = arrays[f"{by}_names"].tolist()
    return np.flatnonzero(arrays[by] == names.index(name)) if name in names else np.empty(0, int)


def _stacked(images: list[Tensor], size: int) -> Tensor:
    return torch.stack(images) if images else torch.empty(0, 3, size, size, dtype=torch.uint8)


def square(file: Any, size: int) -> Tensor:
    """The largest square in the middle of an image, as (3, size, size)."""
    from PIL import Image

    with Image.open(file) as image:
        W, H = image.size
        side = min(W, H)
        box = ((W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2)
        return _pixels(
            image.convert("RGB").resize(
                (size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0
            )
        )


def whole(file: Any, size: int) -> Tensor:
    """The image, stretched where it is no square, as (3, size, size)."""
    from PIL import Image

    with Image.open(file) as image:
        own = image.convert("RGB")
        return _pixels(
            own
            if own.size == (size, size)
            else own.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
        )


def _pixels(image: Any) -> Tensor:
    W, H = image.size
    return (
        torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        .view(H, W, 3)
        .permute(2, 0, 1)
    )

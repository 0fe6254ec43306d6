"""Small images in an .npz file, a sheet per class.

JPEG number c, the bytes ``train_offsets[c]`` to ``train_offsets[c + 1]`` of ``train_sheets``, shows
the training images of class ``wnids[c]``: squares in rows of 20, all rows full. ``test_sheets`` and
``test_offsets`` likewise. ``class_names`` take the place of ``wnids`` where there are any.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bgn_lab.data import images, npz
from bgn_lab.data.names import printable
from bgn_lab.data.sources import Parts
from bgn_lab.system.memory import available_memory, gigabytes

PARTS = ("train", "test")
NEEDED = (*(f"{part}_{what}" for part in PARTS for what in ("sheets", "offsets")), "wnids")
PER_ROW = 20
COPIES = 3  # of the pixels in memory at a time: decoded, cut, and split into parts


def load(root: Path) -> tuple[Parts, tuple[str, ...]]:
    """Images (M, 3, H, W) and labels of the parts "train" and "test", and the classes."""
    arrays = npz.read(root, NEEDED, ("class_names",))
    classes = npz.strings(arrays.get("class_names", arrays["wnids"]))
    if len(classes) < 2 or len(classes) != arrays["wnids"].size:
        raise ValueError(
            f"{printable(root)}: {len(classes)} names for {arrays['wnids'].size} wnids; "
            "expected as many, two or more"
        )
    files = {
        part: npz.slices(root, arrays, f"{part}_sheets", f"{part}_offsets", len(classes))
        for part in PARTS
    }
    sizes = {
        part: [_size(_name(root, part, classes[c]), raw) for c, raw in enumerate(own)]
        for part, own in files.items()
    }
    widths = {W for own in sizes.values() for W, _ in own}
    if len(widths) > 1:
        raise ValueError(
            f"{printable(root)} has sheets {min(widths)} to {max(widths)} pixels wide; "
            "expected one width"
        )
    needed = COPIES * sum(3 * W * H for own in sizes.values() for W, H in own)
    available = available_memory()
    if available is not None and needed > available:
        raise ValueError(
            f"{printable(root)}: its images need {gigabytes(needed)} of memory, "
            f"{gigabytes(available)} are available"
        )
    parts = {}
    for part, own in files.items():
        x = [_cut(_name(root, part, classes[c]), raw) for c, raw in enumerate(own)]
        counts = torch.tensor([len(some) for some in x])
        parts[part] = torch.cat(x), torch.arange(len(x)).repeat_interleave(counts)
    return parts, classes


def _name(root: Path, part: str, name: str) -> str:
    return f"the {part} sheet of {name} in {root}"


def _size(name: str, raw: bytes) -> tuple[int, int]:
    """Width and height, as the file declares them."""
    W, H = _decoded(name, raw, lambda image: image.size)
    side = W // PER_ROW
    if W % PER_ROW or not side or H % side:
        raise ValueError(
            f"{printable(name)} is {W} x {H} pixels; expected full rows of {PER_ROW} squares"
        )
    return W, H


def _cut(name: str, raw: bytes) -> Tensor:
    """The images (M, 3, side, side) of a sheet."""
    sheet: Tensor = _decoded(name, raw, lambda image: images.pixels(images.rgb(image)))
    side = sheet.shape[2] // PER_ROW
    rows = sheet.view(3, -1, side, PER_ROW, side)  # (C, rows, H, per row, W)
    return rows.permute(1, 3, 0, 2, 4).reshape(-1, 3, side, side)


def _decoded(name: str, raw: bytes, read: Any) -> Any:
    try:
        with images.open_image(BytesIO(raw), ["JPEG"]) as image:
            return read(image)
    except Exception as error:  # whole classes are in one file: none can be skipped
        raise ValueError(
            f"{printable(name)} cannot be read as an image ({images.reason(error)})"
        ) from None

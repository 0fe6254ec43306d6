"""Class folders to image files and their labels."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from bgn_lab.data import layouts
from bgn_lab.data.folder import Files
from bgn_lab.data.listing import Seen, few, look


def scan(
    folder: Path, classes: tuple[str, ...] | None = None, damaged: str = "skip"
) -> tuple[tuple[str, ...], Files]:
    """The images in class folders; labels are the alphabetical ranks of the folders' names.

    Files of zero bytes and links to nothing are refused here, before hours of training, unless damaged files are skipped.
    """
    seen = look(folder)
    layouts.refuse(seen, layouts.PART)
    if classes is not None:
        _same(seen, classes)
    layouts.note(seen)
    parts = [look(folder / name, sizes=damaged == "refuse") for name in seen.folders]
    empty = sum(not part.images for part in parts)
    for part in parts:
        if part.folders or not part.images:
            layouts.refuse(
                part,
                layouts.CLASS,
                f" ({empty:,} of {len(parts):,} class folders have no images)" if empty > 1 else "",
            )
    _readable(folder, parts)
    labels = torch.arange(len(parts)).repeat_interleave(
        torch.tensor([len(part.images) for part in parts])
    )
    return seen.folders, Files(
        tuple(os.path.join(part.path, name) for part in parts for name in part.images), labels
    )


def _same(seen: Seen, classes: tuple[str, ...]) -> None:
    """Refuse other classes than those of the training images."""
    missing, extra = (
        sorted({*some} - {*others})
        for some, others in ((classes, seen.folders), (seen.folders, classes))
    )
    odd = [
        f"{len(names):,} {how} ({few(names)})"
        for how, names in (("missing", missing), ("extra", extra))
        if names
    ]
    if odd:
        alike = {layouts.plain(name) for name in missing} & {layouts.plain(name) for name in extra}
        remedy = ". Some differ only in case or spaces: rename those" if alike else ""
        raise ValueError(
            f"{seen.path} has other classes than the training images: {', '.join(odd)}; "
            f"expected folders of the same names in both{remedy}"
        )


def _readable(folder: Path, parts: list[Seen]) -> None:
    broken = [
        f"{part.path / name} is {reason}"
        for part in parts
        for name, reason in sorted(part.broken.items())
    ]
    if broken:
        raise ValueError(
            f"{len(broken):,} of {sum(len(part.images) for part in parts):,} images in {folder} cannot be read: {few(broken)}; "
            "copy them anew, or --damaged skip goes on without such files"
        )

"""Class folders to image files and their labels."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from bgn_lab.data import images
from bgn_lab.data.folders import layouts
from bgn_lab.data.folders.decode import Files
from bgn_lab.data.folders.listing import Seen, few, look
from bgn_lab.data.names import printable


def scan(
    folder: Path, classes: tuple[str, ...] | None = None, damaged: str = "refuse"
) -> tuple[tuple[str, ...], Files]:
    """The images in class folders; labels are the ranks of the folders' names.

    ``classes`` are the folders that there must be. Files of zero bytes and links to nothing are
    refused here, before hours of training, unless damaged files are skipped. Then every class must
    have an image that can be read: one of each is decoded.
    """
    seen = look(folder)
    layouts.refuse(seen, layouts.PART)
    if classes is not None:
        _refuse_other_classes(seen, classes)
    layouts.note(seen)
    parts = [look(folder / name, sizes=True) for name in seen.folders]
    empty = sum(not part.images for part in parts)
    for part in parts:
        if part.folders or not part.images:
            layouts.refuse(
                part,
                layouts.CLASS,
                f" ({empty:,} of {len(parts):,} class folders have no images)" if empty > 1 else "",
            )
    if damaged == "refuse":
        _refuse_broken(folder, parts)
    else:
        _refuse_unreadable_classes(parts)
    counts = torch.tensor([len(part.images) for part in parts])
    return seen.folders, Files(
        tuple(os.path.join(part.path, name) for part in parts for name in part.images),
        torch.arange(len(parts)).repeat_interleave(counts),
        torch.tensor([size for part in parts for size in part.sizes]),
    )


def _refuse_other_classes(seen: Seen, classes: tuple[str, ...]) -> None:
    """Refuse other classes than those of the training images."""
    missing = [name for name in classes if name not in {*seen.folders}]
    extra = [name for name in seen.folders if name not in {*classes}]
    odd = [
        f"{len(names):,} {how} ({few(names)})"
        for how, names in (("missing", missing), ("extra", extra))
        if names
    ]
    if odd:
        alike = {layouts.plain(name) for name in missing} & {layouts.plain(name) for name in extra}
        remedy = ". Some differ only in case or spaces: rename those" if alike else ""
        raise ValueError(
            f"{printable(seen.path)} has other classes than the training images: "
            f"{', '.join(odd)}; expected folders of the same names in both{remedy}"
        )


def _refuse_broken(folder: Path, parts: list[Seen]) -> None:
    broken = [
        f"{part.path / name} is {reason}"
        for part in parts
        for name, reason in sorted(part.broken.items())
    ]
    if broken:
        raise ValueError(
            f"{len(broken):,} of {sum(len(part.images) for part in parts):,} images in "
            f"{printable(folder)} cannot be read: {few(broken)}; copy them again, or "
            f"{images.SKIP}"
        )


def _refuse_unreadable_classes(parts: list[Seen]) -> None:
    """Refuse classes of nothing but damaged images; up to the first whole image are decoded."""
    for part in parts:
        names = [name for name in part.images if name not in part.broken]
        if not any(images.is_readable(os.path.join(part.path, name)) for name in names):
            raise ValueError(
                f"none of the {len(part.images):,} images in {printable(part.path)} can be read "
                f"({few(part.images)}); expected at least one for the class "
                f"'{printable(part.path.name)}', with --damaged skip too"
            )

"""Image files and their masks as tensors, with errors that say what is wrong with a mask."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bgn_lab.data import images
from bgn_lab.data.names import printable
from bgn_lab.data.segmentation.windows import IGNORED, nearest, resized
from bgn_lab.system.memory import available_memory, gigabytes
from bgn_lab.system.reading import OBJECTS, read_bytes

EXACT = ("PNG", "BMP", "GIF", "TIFF", "PPM")  # formats that keep every value
MASK = "expected a gray or palette image whose values are the numbers of classes, 0, 1, 2, ..."
VOID = ("void", "unlabeled", "unlabelled", "ignore", "ignored")
File = str | bytes


class Pair(NamedTuple):
    """Files of an image and its mask, and a name for errors."""

    image: File
    mask: File
    name: str


class Labels(NamedTuple):
    """What the values of masks mean."""

    classes: tuple[str, ...]
    """Names; empty where they are to be counted."""
    table: Tensor
    """(256,): for every value of a mask the class, or IGNORED."""


def named(names: Sequence[str]) -> Labels:
    """Labels whose values are places in a list of names. Names such as void mean no class.

    >>> found = named(["sky", "void", "car"])
    >>> found.classes, found.table[:4].tolist()
    (('sky', 'car'), [0, 255, 1, 255])
    """
    table = torch.full((256,), IGNORED, dtype=torch.uint8)
    kept = [i for i, name in enumerate(names) if name.strip().casefold() not in VOID]
    table[torch.tensor(kept, dtype=torch.long)] = torch.arange(len(kept), dtype=torch.uint8)
    return Labels(tuple(names[i] for i in kept), table)


def counted() -> Labels:
    """Labels whose values are the classes, however many there are; 255 is none."""
    return Labels((), torch.arange(256, dtype=torch.uint8))


def read(
    pairs: Sequence[Pair], labels: Labels, size: int | None, damaged: str
) -> list[tuple[Tensor, Tensor]]:
    """Images (3, H, W) and labels (H, W) of files, the shorter side ``size`` pixels long.

    An image that cannot be read is refused, or skipped with a warning.
    """
    found: list[tuple[Tensor, Tensor]] = []
    for pair in pairs:
        try:
            x, y = image(pair.image), mask(pair.mask, labels)
        except _BadMask as error:
            raise ValueError(f"the mask of {printable(pair.name)} {error}") from None
        except Exception as error:
            what = f"{printable(pair.name)} cannot be read ({images.reason(error)})"
            if damaged == "refuse":
                raise ValueError(f"{what}; {images.SKIP}") from None
            warnings.warn(f"{what}: skipped", stacklevel=2)
            continue
        if x.shape[1:] != y.shape:
            raise ValueError(
                f"{printable(pair.name)} has {y.shape[1]}x{y.shape[0]} pixels in its mask and"
                f" {x.shape[2]}x{x.shape[1]} in its image; expected as many"
            )
        found.append(scaled(x, y, size))
        if len(found) == 1:
            _refuse_total(found[0][0], len(pairs))
    if not found:
        raise ValueError("none of the images can be read; expected at least one")
    return found


def image(file: File) -> Tensor:
    """(3, H, W)."""
    with images.open_image(_opened(file)) as found:
        return images.pixels(images.rgb(found))


def mask(file: File, labels: Labels) -> Tensor:
    """(H, W): classes, or IGNORED."""
    with images.open_image(_opened(file)) as found:
        if found.format not in EXACT:
            raise _BadMask(
                f"is a {found.format}, which changes values when it is saved; expected a PNG"
            )
        values = _values(found)
    made = labels.table[values.long()]
    _refuse_beyond(values, labels)
    return made


def _refuse_beyond(values: Tensor, labels: Labels) -> None:
    """Refuse values that have no name, but for the one after the last, which is often void."""
    named = (labels.table < IGNORED).nonzero().flatten()
    has_gaps = len(named) < int(named[-1]) + 1  # then other values are known to mean no class
    known = values[values < IGNORED]
    highest = int(known.max()) if len(known) else 0
    if labels.classes and not has_gaps and highest > len(named):
        raise _BadMask(
            f"has the value {highest}, and there are {len(named)} classes; {MASK} up to"
            f" {len(named) - 1}, or {IGNORED} for no class"
        )


class _BadMask(Exception):
    """What is wrong with a mask, after its name."""


def _opened(file: File) -> Any:
    return BytesIO(file) if isinstance(file, bytes) else file


def _values(found: Any) -> Tensor:
    """Numbers in a mask (H, W), without the colors that a palette gives them."""
    W, H = found.size
    if found.mode == "1":
        found = found.convert("L")
        values = torch.frombuffer(bytearray(found.tobytes()), dtype=torch.uint8).view(H, W)
        return (values > 0).to(torch.uint8)
    if found.mode.startswith("I"):
        found = found.convert("I")
        wide = torch.frombuffer(bytearray(found.tobytes()), dtype=torch.int32).view(H, W)
        if int(wide.max()) > IGNORED or int(wide.min()) < 0:
            raise _BadMask(f"has values up to {int(wide.max())}; {MASK} below {IGNORED}")
        return wide.to(torch.uint8)
    if found.mode in ("RGB", "RGBA"):
        three = images.pixels(found.convert("RGB"))
        if not (bool((three[0] == three[1]).all()) and bool((three[0] == three[2]).all())):
            raise _BadMask(
                f"is a picture in colors; {MASK}. Replace each color by the number of its class"
            )
        return three[0]
    if found.mode not in ("L", "P"):
        raise _BadMask(f"is an image of mode {found.mode}; {MASK}")
    return torch.frombuffer(bytearray(found.tobytes()), dtype=torch.uint8).view(H, W)


def scaled(x: Tensor, y: Tensor, size: int | None) -> tuple[Tensor, Tensor]:
    """An image and its labels with a shorter side of so many pixels."""
    shorter = min(y.shape)
    if size is None or size == shorter:
        return x, y
    shape = [max(1, round(own * size / shorter)) for own in y.shape]
    return resized(x, shape), nearest(y, shape)


def count_classes(ys: Iterable[Tensor], where: object) -> tuple[str, ...]:
    """Names of classes by number, from the labels that occur."""
    seen = torch.zeros(256, dtype=torch.long)
    for y in ys:
        seen += y.flatten().bincount(minlength=256)
    values = (seen[:IGNORED] > 0).nonzero().flatten().tolist()
    if len(values) < 2:
        binary = int(seen[IGNORED]) > 0 and values == [0]
        remedy = f". {IGNORED} means no class: write 1 for what it stands for" if binary else ""
        shown = ", ".join(map(str, [*values, *([IGNORED] if int(seen[IGNORED]) else [])]))
        raise ValueError(
            f"the masks in {printable(where)} have the values {shown or 'none'}; expected two or"
            f" more classes{remedy}"
        )
    if values[-1] - len(values) > 32:
        raise ValueError(
            f"the masks in {printable(where)} have {len(values)} different values up to"
            f" {values[-1]}; {MASK}, with few gaps. Name the classes in classes.txt, a line each,"
            " if these are what is meant"
        )
    return tuple(f"class {k}" for k in range(values[-1] + 1))


def _refuse_total(first: Tensor, count: int) -> None:
    """Refuse more than fits into memory, judged by the first image."""
    needed, available = count * first.numel() * 4 / 3, available_memory()
    if available is not None and needed > available:
        shorter = min(first.shape[1:])
        fits = int(shorter * (available / needed) ** 0.5) // 8 * 8
        raise ValueError(
            f"{count:,} images of {first.shape[2]}x{first.shape[1]} need about {gigabytes(needed)}"
            f" of memory; {gigabytes(available)} are available: --image-size {fits} would fit"
        )


def class_file(root: Path) -> Labels | None:
    """Names in classes.txt or codes.txt, a line each."""
    for name in ("classes.txt", "codes.txt"):
        path = root / name
        if path.is_file():
            lines = [
                printable(line.strip())
                for line in read_bytes(path, OBJECTS).decode(errors="replace").splitlines()
                if line.strip()
            ]
            if len({*lines}) != len(lines) or not 2 <= len(lines) <= IGNORED:
                raise ValueError(
                    f"{printable(path)} has {len(lines)} lines, {len({*lines})} different;"
                    " expected the name of a class in each, all different"
                )
            return named(lines)
    return None

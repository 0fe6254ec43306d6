"""Single images: opened by a fixed list of decoders, turned into RGB, resized, and stacked."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bgn_lab.data.names import printable
from bgn_lab.system.memory import available_memory, gigabytes

# Pillow would also open formats that start other programs (EPS starts Ghostscript)
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM", "TIFF", "AVIF")
SKIP = "--damaged skip goes on without such files"


def open_image(file: Any, formats: Sequence[str] = FORMATS) -> Any:
    """An image of one of these formats, whatever the name of its file ends with."""
    from PIL import Image

    if isinstance(file, str) and not os.path.isfile(file) and os.path.exists(file):
        raise ValueError("it is not a file")  # a pipe would wait for its writer
    Image.init()
    return Image.open(file, formats=[name for name in formats if name in Image.OPEN])


def reason(error: Exception) -> str:
    """Why an image cannot be read, from what a decoder raised, which can be any exception."""
    if isinstance(error, MemoryError):  # the image may be fine
        raise error
    return printable(error) or type(error).__name__


def rgb(image: Any) -> Any:
    """An image in RGB, whatever its mode."""
    if image.mode.startswith("I"):  # 16 bits: keep the upper eight; Pillow would clip at 255
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers")
    if image.mode == "P":  # straight to RGB, Pillow warns of transparent colors
        image = image.convert("RGBA")
    return image.convert("RGB")


def pixels(image: Any) -> Tensor:
    """An RGB image as (3, H, W)."""
    W, H = image.size
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(H, W, 3).permute(2, 0, 1)


def square(image: Any, size: int) -> Tensor:
    """The largest square in the middle of an image, as (3, size, size)."""
    from PIL import Image

    W, H = image.size
    side = min(W, H)
    box = ((W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2)
    how = Image.Resampling.BILINEAR
    return pixels(rgb(image).resize((size, size), how, box=box, reducing_gap=3.0))


def whole(image: Any, size: int) -> Tensor:
    """The image, stretched where it is no square, as (3, size, size)."""
    from PIL import Image

    image = rgb(image)
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return pixels(image)


def is_readable(path: str) -> bool:
    """Whether an image file can be decoded."""
    try:
        with open_image(path) as image:
            rgb(image)
    except Exception as error:
        reason(error)
        return False
    return True


def stack(
    files: Sequence[str | Callable[[], bytes]],
    names: Callable[[int], str],
    resize: Callable[[Any, int], Tensor],
    size: int,
    damaged: str,
) -> tuple[Tensor, Tensor]:
    """All images (M, 3, size, size), and the indices of those that could be read.

    A file is a path, or a function that returns the bytes of a JPEG. Damaged ones are refused by
    name, or skipped with a warning.
    """
    x = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    kept: list[int] = []
    for i, file in enumerate(files):
        found = _decoded(file, resize, size)
        if isinstance(found, Tensor):
            x[len(kept)] = found
            kept.append(i)
            continue
        what = f"{printable(names(i))} cannot be read as an image ({found})"
        if damaged == "refuse":
            raise ValueError(f"{what}; {SKIP}")
        warnings.warn(f"{what}: skipped", stacklevel=2)
    return x[: len(kept)], torch.tensor(kept, dtype=torch.long)


def _decoded(
    file: str | Callable[[], bytes], resize: Callable[[Any, int], Tensor], size: int
) -> Tensor | str:
    """An image, or why there is none."""
    try:
        opened = (
            open_image(file) if isinstance(file, str) else open_image(BytesIO(file()), ["JPEG"])
        )
        with opened as image:
            return resize(image, size)
    except Exception as error:
        return reason(error)


def refuse_size(size: int, bytes_per_pixel: float, what: str, option: int | None = None) -> None:
    """Refuse an image size for which memory does not suffice, before anything is allocated.

    ``size`` is what is decoded; ``option`` is what the user gave for it as image_size, if another.
    """
    option = size if option is None else option
    available, needed = available_memory(), bytes_per_pixel * size * size
    if available is None or needed <= available:
        return
    fits = int(math.sqrt(available / bytes_per_pixel) * option / size)
    raise ValueError(
        f"image_size={option} needs about {gigabytes(needed)} of memory for {what}; "
        f"{gigabytes(available)} are available: --image-size {fits // 8 * 8 or 1} would fit"
    )


def refuse_lost_classes(y: Tensor, kept: Tensor, classes: Sequence[str], where: object) -> None:
    """Refuse classes whose images are all damaged."""
    for label in sorted({*y.tolist()} - {*y[kept].tolist()}):
        count = int((y == label).sum())
        raise ValueError(
            f"none of the {count:,} images of the class '{printable(classes[label])}' in "
            f"{printable(where)} can be read; expected at least one, with --damaged skip too"
        )


def stack_files(
    paths: Sequence[str],
    y: Tensor,
    resize: Callable[[Any, int], Tensor],
    size: int,
    damaged: str,
) -> tuple[Tensor, Tensor]:
    """Images (M, 3, size, size) of files, and their labels; damaged ones are left out."""
    x, kept = stack(paths, lambda i: paths[i], resize, size, damaged)
    return x, y[kept]


def refuse_total(size: int, count: int, option: int | None = None) -> None:
    """Refuse more images of a size than fit into memory; one copy is made for training."""
    refuse_size(size, 2 * 3 * count, f"all {count:,} images", option)


def stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of a file, so that a cache notices that it was replaced."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns

"""Images in class folders: decoded by processes of their own, cut to one size, in an order that does not depend on those."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bgn_lab.data.sources import Batch, generator, rebatch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
CHUNK = 32  # images that a worker decodes at a time
_UNREADABLE = (OSError, SyntaxError, ValueError)  # what Pillow raises for files that are no images, or not whole


@dataclass(frozen=True)
class Files:
    """Image files and their labels. Training crops are random (8 to 100 % of the area), others from the centre."""

    paths: tuple[Path, ...]
    y: Tensor  # (M,) int64
    size: int = 224
    augment: bool = True
    decoders: int = 2
    damaged: str = "refuse"

    def __len__(self) -> int:
        return len(self.paths)

    def part(self, index: Tensor) -> Files:
        """Some of the files."""
        return replace(self, paths=tuple(self.paths[i] for i in index.tolist()), y=self.y[index])

    def training(self, batch_size: int, seed: int, epoch: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        draws = generator(seed, epoch)
        order = torch.randperm(len(self), generator=draws)
        crops = torch.randint(2**62, (len(self),), generator=draws).tolist() if self.augment else [None] * len(self)
        return rebatch(self._decoded(order, crops), batch_size, rest=False)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        return rebatch(self._decoded(torch.arange(len(self)), [None] * len(self)), batch_size, rest=True)

    def check(self) -> None:
        """See :class:`bgn_lab.data.sources.Source`."""
        if self.damaged == "refuse":
            for _ in self.evaluation(CHUNK):
                pass

    def _decoded(self, order: Tensor, crops: list[int | None]) -> Iterator[Batch]:
        indices = order.tolist()
        tasks = [(indices[i : i + CHUNK], crops[i : i + CHUNK]) for i in range(0, len(indices), CHUNK)]
        decoders = min(self.decoders, len(tasks))
        loader: Any = DataLoader(_Decode(self.paths, self.size), batch_size=None, sampler=tasks, num_workers=decoders)  # type: ignore[arg-type]
        for (index, _), (x, failures) in zip(tasks, loader, strict=True):
            for i, reason in failures.items():
                if self.damaged == "refuse":
                    raise ValueError(
                        f"{self.paths[i]} cannot be read as an image ({reason}); --damaged skip goes on without such files"
                    )
                warnings.warn(f"{self.paths[i]} cannot be read as an image ({reason}): skipped", stacklevel=2)
            kept = [i for i in index if i not in failures]
            if kept:
                yield x, self.y[kept]


@dataclass(frozen=True)
class _Decode:
    """What a worker does: (indices, seeds of the crops) to an array of images, and why others could not be read."""

    paths: tuple[Path, ...]
    size: int

    def __getitem__(self, task: tuple[list[int], list[int | None]]) -> tuple[Tensor, dict[int, str]]:
        from PIL import Image

        images, failures = [], {}
        for i, seed in zip(*task, strict=True):
            try:
                with Image.open(self.paths[i]) as image:
                    images.append(_pixels(image, self.size, seed))
            except (*_UNREADABLE, Image.DecompressionBombError) as error:  # noqa: PERF203
                failures[i] = str(error) or type(error).__name__
        return torch.stack(images) if images else torch.empty(0), failures

    def __len__(self) -> int:
        return len(self.paths)


def _pixels(image: Any, size: int, seed: int | None) -> Tensor:
    """An image as a (3, size, size) array: a random part of it, or its centre where there is no seed."""
    from PIL import Image

    image = _colours(image)
    W, H = image.size
    box = _centre(W, H) if seed is None else _random_part(W, H, random.Random(seed))
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if seed is not None and seed % 2:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1)


def _colours(image: Any) -> Any:
    """An image in RGB, whatever it was."""
    if image.mode.startswith("I"):  # of 16 bits the upper eight; Pillow would turn all above 255 into white
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers")
    if image.mode == "P":  # straight to RGB, Pillow warns of transparent colours
        image = image.convert("RGBA")
    return image.convert("RGB")


def _centre(W: int, H: int) -> tuple[float, float, float, float]:
    """A square in the middle: 224 / 256 of the shorter side, whatever the size, as is usual for 224."""
    side = min(W, H) * 224 / 256
    return (W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2


def _random_part(W: int, H: int, draws: random.Random) -> tuple[float, float, float, float]:
    """8 to 100 % of the area, 3/4 to 4/3 in aspect; the largest such square in the middle if ten tries do not fit."""
    for _ in range(10):
        area, aspect = W * H * draws.uniform(0.08, 1), math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= W and 0 < h <= H:
            left, top = draws.randint(0, W - w), draws.randint(0, H - h)
            return left, top, left + w, top + h
    side = min(W, H)
    return (W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2


def scan(folder: Path, classes: tuple[str, ...] | None = None) -> tuple[tuple[str, ...], Files]:
    """The images below class folders; labels are the alphabetical ranks of the folders' names."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; expected one with a folder of images per class")
    names = tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")))
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "none"
        raise ValueError(f"{folder} has too few class folders: {found}; expected at least two, each with images")
    if classes is not None and names != classes:
        odd = sorted(set(names) ^ set(classes))
        raise ValueError(
            f"{folder} has other classes than the training images: {', '.join(odd[:5])}{', ...' if len(odd) > 5 else ''}"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(names):
        own = sorted(p for p in (folder / name).iterdir() if p.suffix.lower() in ENDINGS and not p.name.startswith("."))
        if not own:
            raise ValueError(f"{folder / name} has no images; expected files ending in {' '.join(ENDINGS)}")
        paths += own
        labels += [label] * len(own)
    return names, Files(tuple(paths), torch.tensor(labels))

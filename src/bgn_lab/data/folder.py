"""Images in class folders: decoded by processes of their own, cut to one size, in an order that does not depend on those."""

from __future__ import annotations

import math
import random
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bgn_lab.data.sources import Batch, generator, rebatch
from bgn_lab.system import cores, files
from bgn_lab.system.signals import SIGNALS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
CHUNK = 32  # images that a worker decodes at a time
_UNREADABLE = (
    OSError,
    SyntaxError,
    ValueError,
)  # what Pillow raises for files that are no images, or not whole


@dataclass(frozen=True)
class Files:
    """Image files and their labels. Training crops are random (8 to 100 % of the area), others from the centre."""

    paths: tuple[str, ...]  # of 1.3 million files Path would take ten seconds to make
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

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`. Images that are skipped are replaced, so that all batches are there."""
        draws = generator(seed, epoch)
        order = torch.randperm(len(self), generator=draws)
        crops = (
            torch.randint(2**62, (len(self),), generator=draws)
            if self.augment
            else torch.full((len(self),), -1)
        )
        both = torch.stack([order, crops])[:, : len(self) // batch_size * batch_size].view(
            2, -1, batch_size
        )
        if wanted is not None:
            both = both[:, torch.tensor(wanted, dtype=torch.long)]
        order, crops = both.flatten(1)
        seeds = [None if crop < 0 else crop for crop in crops.tolist()]
        return rebatch(self._decoded(order, seeds, replacing=True), batch_size, rest=False)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        return rebatch(
            self._decoded(torch.arange(len(self)), [None] * len(self), replacing=False),
            batch_size,
            rest=True,
        )

    def check(self) -> None:
        """See :class:`bgn_lab.data.sources.Source`."""
        if self.damaged == "refuse":
            for _ in self.evaluation(CHUNK):
                pass

    def _decoded(self, order: Tensor, crops: list[int | None], replacing: bool) -> Iterator[Batch]:
        indices = order.tolist()
        tasks = [
            (indices[i : i + CHUNK], crops[i : i + CHUNK]) for i in range(0, len(indices), CHUNK)
        ]
        decoders = min(self.decoders, len(tasks), cores.count())
        decode = _Decode(self.paths, self.size, replacing and self.damaged == "skip")
        loader: Any = DataLoader(
            decode, batch_size=None, sampler=tasks, num_workers=decoders, worker_init_fn=_deaf,  # type: ignore[arg-type]
        )  # fmt: skip
        for x, kept, failures in loader:
            for i, reason in failures.items():
                if self.damaged == "refuse":
                    raise ValueError(
                        f"{self.paths[i]} cannot be read as an image ({reason}); --damaged skip goes on without such files"
                    )
                warnings.warn(
                    f"{self.paths[i]} cannot be read as an image ({reason}): skipped", stacklevel=2
                )
            if kept:
                yield x, self.y[kept]


def _deaf(number: int) -> None:  # noqa: ARG001
    """A signal to all processes is for the one that trains: it decides when decoding ends. Locks are its own, too."""
    files.forget_locks()
    for which in SIGNALS:
        signal.signal(which, signal.SIG_IGN)


@dataclass(frozen=True)
class _Decode:
    """What a decoding process does: (indices, seeds of the crops) to images, the indices kept, and why others cannot be read."""

    paths: tuple[str, ...]
    size: int
    replacing: bool  # an image that cannot be read by the next one that can

    def __getitem__(
        self, task: tuple[list[int], list[int | None]]
    ) -> tuple[Tensor, list[int], dict[int, str]]:
        images: list[Tensor] = []
        kept: list[int] = []
        failures: dict[int, str] = {}
        for first, seed in zip(*task, strict=True):
            tries = ((first + k) % len(self) for k in range(len(self) if self.replacing else 1))
            i = next((i for i in tries if self._read(i, seed, images, failures)), None)
            if i is not None:
                kept.append(i)
        return torch.stack(images) if images else torch.empty(0), kept, failures

    def _read(
        self, i: int, seed: int | None, images: list[Tensor], failures: dict[int, str]
    ) -> bool:
        from PIL import Image

        try:
            with Image.open(self.paths[i]) as image:
                images.append(_pixels(image, self.size, seed))
        except (*_UNREADABLE, Image.DecompressionBombError) as error:
            failures[i] = str(error) or type(error).__name__
            return False
        return True

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
    return (
        torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        .view(size, size, 3)
        .permute(2, 0, 1)
    )


def _colours(image: Any) -> Any:
    """An image in RGB, whatever it was."""
    if image.mode.startswith(
        "I"
    ):  # of 16 bits the upper eight; Pillow would turn all above 255 into white
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
        area, aspect = (
            W * H * draws.uniform(0.08, 1),
            math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3))),
        )
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= W and 0 < h <= H:
            left, top = draws.randint(0, W - w), draws.randint(0, H - h)
            return left, top, left + w, top + h
    side = min(W, H)
    return (W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2

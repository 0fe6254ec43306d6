"""Image files, decoded by worker processes and cut to one size, in an order that a seed decides."""

from __future__ import annotations

import hashlib
import math
import os
import random
import signal
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bgn_lab.data import images
from bgn_lab.data.names import printable
from bgn_lab.data.sources import FINGERPRINT, Batch, generator, rebatch
from bgn_lab.system import cores, files
from bgn_lab.system.signals import SIGNALS

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
CHUNK = 32  # images that a worker decodes at a time
PREFETCH = 2  # chunks that are ready or under way, for each worker
PIECE, LARGEST = 1 << 20, 1 << 26  # bytes that are read at a time, and at most of one of these
SAMPLE = 64  # files whose bytes are part of the fingerprint
TOGETHER = 250  # images of an evaluation batch, about, and at least of what is held together


@dataclass(frozen=True)
class Files:
    """Image files and their labels.

    Training crops are random (8 to 100 % of the area), others are from the center. The fingerprint
    is a hash of names (with the class folder), sizes and labels of all files and of the bytes of
    64 of them, evenly spaced, up to 64 MB of each: a million files take seconds. It does not tell a
    file from another one of the same name and size that is not in the sample.
    """

    paths: tuple[str, ...]  # a Path for each of 1.3 million files would take ten seconds
    y: Tensor  # (M,) int64
    sizes: Tensor  # (M,) int64, bytes; -1 where there is no file
    size: int = 224
    augment: bool = True
    decoders: int = 2
    damaged: str = "refuse"

    def __len__(self) -> int:
        return len(self.paths)

    @cached_property
    def fingerprint(self) -> str:
        """See :class:`bgn_lab.data.sources.Source`."""
        code = hashlib.blake2b(repr((len(self), self.size)).encode())
        for tensor in (self.y, self.sizes):
            code.update(tensor.contiguous().numpy().data.cast("B") if len(self) else b"")
        for path in self.paths:
            folder, name = os.path.split(os.fsencode(path))
            code.update(os.path.basename(folder) + b"/" + name + b"\0")
        count = min(SAMPLE, len(self))
        for k in range(count):
            i = k * (len(self) - 1) // max(count - 1, 1)
            _add_bytes(code, self.paths[i])
        return code.hexdigest()[:FINGERPRINT]

    def part(self, index: Tensor) -> Files:
        """Some of the files."""
        paths = tuple(self.paths[i] for i in index.tolist())
        return replace(self, paths=paths, y=self.y[index], sizes=self.sizes[index])

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`.

        Images that are skipped are replaced by others, so that all batches are there.
        """
        draws = generator(seed, epoch)
        order = torch.randperm(len(self), generator=draws)
        crops = (
            torch.randint(2**62, (len(self),), generator=draws)
            if self.augment
            else torch.full((len(self),), -1)
        )
        both = torch.stack([order, crops])[:, : len(self) // batch_size * batch_size]
        both = both.view(2, -1, batch_size)
        if wanted is not None:
            both = both[:, torch.tensor(wanted, dtype=torch.long)]
        order, crops = both.flatten(1)
        seeds = [None if crop < 0 else crop for crop in crops.tolist()]
        return rebatch(self._decoded(order, seeds, replacing=True), batch_size, rest=False)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        everything = torch.arange(len(self))
        return rebatch(
            self._decoded(everything, [None] * len(self), replacing=False), batch_size, rest=True
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
        dataset: Any = _Decode(self.paths, self.size, replacing and self.damaged == "skip")
        loader: Any = DataLoader(
            dataset,
            batch_size=None,
            sampler=tasks,
            num_workers=decoders,
            worker_init_fn=_init_worker,
            prefetch_factor=PREFETCH if decoders else None,
        )
        for x, kept, failures in loader:
            for i, reason in failures.items():
                what = f"{printable(self.paths[i])} cannot be read as an image ({reason})"
                if self.damaged == "refuse":
                    raise ValueError(f"{what}; {images.SKIP}")
                warnings.warn(f"{what}: skipped", stacklevel=2)
            if kept:
                yield x, self.y[kept]


def refuse_size(size: int, decoders: int, batch_size: int) -> None:
    """Refuse an image size for which decoded images would not fit into memory."""
    workers = min(decoders, cores.count())
    chunks = workers * (PREFETCH + 2) or 2  # ready, and being filled and stacked
    together = max(batch_size, TOGETHER)
    # a byte per value in the chunks; in a batch two, joined from chunks, and four as float32
    values = chunks * CHUNK + (2 + 4) * together
    what = f"batches of {together} images and {workers} decoders with {CHUNK} images at a time"
    images.refuse_size(size, 3 * values, what)


def _add_bytes(code: Any, path: str) -> None:
    try:
        with open(path, "rb") as file:
            left = LARGEST  # of a larger file the beginning counts
            while left > 0 and (piece := file.read(PIECE)):
                code.update(piece)
                left -= len(piece)
    except OSError:
        code.update(b"cannot be read")


def _init_worker(number: int) -> None:  # noqa: ARG001
    """Ignore signals, which the training process answers, and leave its locks to it."""
    files.forget_locks()
    for which in SIGNALS:
        signal.signal(which, signal.SIG_IGN)


@dataclass(frozen=True)
class _Decode:
    """Task of a worker: indices and seeds of crops to images.

    Returned are the images, their indices, and the reasons why others cannot be read.
    """

    paths: tuple[str, ...]
    size: int
    replacing: bool  # replace an image that cannot be read by the next one that can

    def __getitem__(
        self, task: tuple[list[int], list[int | None]]
    ) -> tuple[Tensor, list[int], dict[int, str]]:
        found: list[Tensor] = []
        kept: list[int] = []
        failures: dict[int, str] = {}
        for first, seed in zip(*task, strict=True):
            tries = ((first + k) % len(self) for k in range(len(self) if self.replacing else 1))
            i = next((i for i in tries if self._read(i, seed, found, failures)), None)
            if i is not None:
                kept.append(i)
        return torch.stack(found) if found else torch.empty(0), kept, failures

    def _read(
        self, i: int, seed: int | None, found: list[Tensor], failures: dict[int, str]
    ) -> bool:
        try:
            with images.open_image(self.paths[i]) as image:
                found.append(cropped(image, self.size, seed))
        except Exception as error:
            failures[i] = images.reason(error)
            return False
        return True

    def __len__(self) -> int:
        return len(self.paths)


def cropped(image: Any, size: int, seed: int | None) -> Tensor:
    """A random part of an image, or its center where there is no seed, as (3, size, size)."""
    from PIL import Image

    image = images.rgb(image)
    W, H = image.size
    box = _center(W, H) if seed is None else _random_part(W, H, random.Random(seed))
    image = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
    if seed is not None and seed % 2:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return images.pixels(image)


def _center(W: int, H: int) -> tuple[float, float, float, float]:
    """A square in the middle: 224 / 256 of the shorter side, as is usual for 224."""
    side = min(W, H) * 224 / 256
    return (W - side) / 2, (H - side) / 2, (W + side) / 2, (H + side) / 2


def _random_part(W: int, H: int, draws: random.Random) -> tuple[float, float, float, float]:
    """8 to 100 % of the area, 3/4 to 4/3 in aspect; the middle square if ten tries do not fit."""
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

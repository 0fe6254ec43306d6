"""What every data set comes down to: images that can be drawn in batches, in an order that a seed decides.

Order and augmentation of an epoch depend on the seed and the epoch alone, so that a run that is resumed sees what it would have
seen.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Generator, Tensor

from bgn_lab.data import augment

Batch = tuple[Tensor, Tensor]  # (N, C, H, W) uint8, (N,) int64
CHUNK = 1024  # images that are augmented together


class Source(Protocol):
    """Images of one part (training, validation or test) of a data set."""

    @property
    def y(self) -> Tensor: ...  # (M,) int64, the labels

    def __len__(self) -> int: ...

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """Full batches of all images in random order, augmented if the source is set up so; a smaller rest is left out.

        Of those only the ``wanted`` ones, by their rising numbers, where such are given.
        """

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Batches of all images as they are, in their own order."""

    def check(self) -> None:
        """Refuse what would fail later on: images that cannot be read, where such are not skipped."""

    def part(self, index: Tensor) -> Source:
        """Some of the images."""


@dataclass(frozen=True)
class Data:
    """A data set in three parts. ``chance`` is the accuracy of guessing the most frequent class of the test images."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]  # of an image, (C, H, W)
    mean: tuple[float, ...]  # per channel, of values in [0, 1]
    std: tuple[float, ...]
    train: Source
    validation: Source
    test: Source
    chance: float


def share(source: Source, worker: int, workers: int) -> Source:
    """A worker's part of the images, as distributed samplers deal them out: every so many-th."""
    return source if workers == 1 else source.part(torch.arange(len(source))[worker::workers])


def fingerprint(source: Source) -> tuple[int, str]:
    """How many images, and a code for their labels and the names of their files."""
    code = hashlib.sha256(source.y.numpy().tobytes())
    for path in getattr(source, "paths", ()):
        code.update(os.path.basename(path).encode(errors="surrogateescape"))
    return len(source), code.hexdigest()[:12]


def generator(*numbers: int) -> Generator:
    """A source of random numbers of its own for every combination of numbers."""
    return Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    """A seed for every combination of numbers."""
    state = 0
    for number in numbers:  # a step of splitmix64 per number: near numbers give unrelated seeds
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state % 2**63


def hold_out(count: int, share: float, limit: int | None) -> tuple[Tensor, Tensor]:
    """Indices for training and for validation. The same for every seed and normaliser."""
    order = torch.randperm(count, generator=generator(0))[:limit]
    held = round(share * len(order))
    return order[held:].sort().values, order[:held].sort().values


def chance(labels: Tensor) -> float:
    """The accuracy of always guessing the most frequent class."""
    return float(labels.bincount(minlength=1).max()) / max(len(labels), 1)


def rebatch(pieces: Iterable[Batch], batch_size: int, rest: bool) -> Iterator[Batch]:
    """Batches of a fixed size from pieces of any; the rest at the end only if wanted."""
    x, y = torch.empty(0), torch.empty(0)
    for more_x, more_y in pieces:
        x, y = (torch.cat([x, more_x]), torch.cat([y, more_y])) if len(x) else (more_x, more_y)
        while len(x) >= batch_size:
            yield x[:batch_size], y[:batch_size]
            x, y = x[batch_size:], y[batch_size:]
    if rest and len(x):
        yield x, y


@dataclass(frozen=True)
class InMemory:
    """Images in memory."""

    x: Tensor  # (M, C, H, W) uint8
    y: Tensor  # (M,) int64
    pad: int = 0  # pixels by which training crops may move
    flip: bool = False
    drawn: int = 0  # images of an epoch, drawn with replacement; 0: all, each once

    def __len__(self) -> int:
        return len(self.x)

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """See :class:`Source`. All are augmented, so that the draws are the same whatever is wanted; that costs little."""
        draws = generator(seed, epoch)
        M = len(self)
        order = (
            torch.randint(M, (self.drawn,), generator=draws)
            if self.drawn
            else torch.randperm(M, generator=draws)
        )
        batches = rebatch(
            (self.augmented(piece, draws) for piece in torch.split(order, CHUNK)),
            batch_size,
            rest=False,
        )
        if wanted is None:
            return batches
        numbers = frozenset(wanted)
        return (batch for number, batch in enumerate(batches) if number in numbers)

    def part(self, index: Tensor) -> InMemory:
        """See :class:`Source`."""
        return replace(self, x=self.x[index], y=self.y[index])

    def augmented(self, index: Tensor, draws: Generator) -> Batch:
        """Some of the images as training sees them."""
        x = self.x[index]
        if self.pad:
            x = augment.crop(x, self.pad, draws)
        if self.flip:
            x = augment.flip(x, draws)
        return x, self.y[index]

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`Source`."""
        return rebatch([(self.x, self.y)], batch_size, rest=True)

    def check(self) -> None:
        """See :class:`Source`."""

"""The common form of all data sets: parts with images that are drawn in batches.

Order and augmentation of an epoch depend on the seed and the epoch alone, so that a resumed run
sees the images that it would have seen.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Generator, Tensor

from bgn_lab.data import augment

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

Batch = tuple[Tensor, Tensor]  # (N, C, H, W) uint8, (N,) int64
Parts = dict[str, tuple[Tensor, Tensor]]  # images (M, C, H, W) and labels (M,) by part
CHUNK = 1024  # images that are augmented together
FINGERPRINT = 16  # hexadecimal digits


class Source(Protocol):
    """Images of one part (training, validation or test) of a data set."""

    @property
    def y(self) -> Tensor: ...  # (M,) int64, the labels

    @property
    def fingerprint(self) -> str:
        """Hash of the images and labels in their order, wherever they are stored."""

    def __len__(self) -> int: ...

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """Full batches of all images in random order, augmented if the source is set up so.

        A smaller rest is left out. Where numbers are ``wanted``, in rising order, only those
        batches.
        """

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """Batches of all images without augmentation, in a fixed order."""

    def check(self) -> None:
        """Refuse what would fail later: images that cannot be read, where none are skipped."""

    def part(self, index: Tensor) -> Source:
        """Some of the images."""


@dataclass(frozen=True)
class Data:
    """A data set in three parts."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]  # of an image, (C, H, W); of a volume (C, D, H, W)
    mean: tuple[float, ...]  # per channel, of values in [0, 1]
    std: tuple[float, ...]
    train: Source
    validation: Source
    test: Source
    chance: float  # accuracy of always guessing the most frequent class of the test images

    def contents(self) -> tuple[object, ...]:
        """What the fingerprint is made of."""
        parts = (self.train, self.validation, self.test)
        return self.shape, self.classes, *(part.fingerprint for part in parts)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content: images and labels of every part, image size and class names.

        It does not depend on where the data lies. Images in memory are hashed pixel by pixel.
        Of image files, the names, sizes and labels of all are hashed, and the bytes of an evenly
        spaced sample: see :class:`bgn_lab.data.folders.decode.Files`.
        """
        return hashlib.sha256(json.dumps(self.contents()).encode()).hexdigest()[:FINGERPRINT]


def needed_root(recipe: Recipe, what: str) -> Path:
    """The recipe's root, for data sets that have no place of their own."""
    if recipe.root is None:
        raise ValueError(f"data={recipe.data!r} needs --root, {what}")
    return recipe.root


def split(
    recipe: Recipe,
    parts: Parts,
    classes: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    pad: int,
) -> Data:
    """Data in memory from its parts "train" and "test"; training crops move by ``pad`` pixels.

    Validation images are held out of the training images, the same ones for every seed.
    """
    if recipe.image_size is not None:
        raise ValueError(
            f"image_size={recipe.image_size} is for folders of images; those of {recipe.data} "
            "are used as they are"
        )
    x, y = parts["train"]
    train, validation = hold_out(len(x), recipe.validation, recipe.limit)
    return Data(
        recipe.data,
        classes,
        (x.shape[1], x.shape[2], x.shape[3]),
        mean,
        std,
        InMemory(x[train], y[train], pad if recipe.augment else 0, recipe.augment),
        InMemory(x[validation], y[validation]),
        InMemory(*parts["test"]),
        chance(parts["test"][1]),
    )


def share(source: Source, worker: int, workers: int) -> Source:
    """A worker's images: every ``workers``-th, as distributed samplers deal them out."""
    return source if workers == 1 else source.part(torch.arange(len(source))[worker::workers])


def fingerprint(source: Source) -> tuple[int, str]:
    """The number of images, and a hash of them and of their labels."""
    return len(source), source.fingerprint


def generator(*numbers: int) -> Generator:
    """A generator of random numbers, seeded by a combination of numbers."""
    return Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    """A seed from a combination of numbers."""
    state = 0
    for number in numbers:  # a step of splitmix64 per number: near numbers give unrelated seeds
        state = (state + number + 0x9E3779B97F4A7C15) % 2**64
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) % 2**64
        state ^= state >> 31
    return state % 2**63


def seed(number: int) -> None:
    """What ``torch.manual_seed`` does, fit for every batch: where no accelerator is, torch would
    format the stack three times, for devices that may still come."""
    if torch.accelerator.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def hold_out(count: int, share: float, limit: int | None) -> tuple[Tensor, Tensor]:
    """Indices for training and for validation. The same for every seed and normalizer."""
    order = torch.randperm(count, generator=generator(0))[:limit]
    held = round(share * len(order))
    return order[held:].sort().values, order[:held].sort().values


def chance(labels: Tensor) -> float:
    """The accuracy of always guessing the most frequent class."""
    if not len(labels):
        return 0.0
    return max(Counter(labels.tolist()).values()) / len(
        labels
    )  # bincount allocates up to the label


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

    @cached_property
    def fingerprint(self) -> str:
        """See :class:`Source`."""
        code = hashlib.blake2b(repr((self.x.dtype, tuple(self.x.shape))).encode())
        for tensor in (self.x, self.y):
            code.update(tensor.contiguous().numpy().data.cast("B") if tensor.numel() else b"")
        return code.hexdigest()[:FINGERPRINT]

    def __len__(self) -> int:
        return len(self.x)

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """See :class:`Source`.

        All images are augmented, whatever is wanted, so that the draws are the same.
        """
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
        """Some of the images, augmented."""
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

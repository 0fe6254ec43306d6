"""Images with a label for every pixel, in memory; training draws windows of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from bgn_lab.data.segmentation import windows
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.data.sources import FINGERPRINT, Batch, Data, generator

NEAR = 4  # neighboring windows are at most this part of a window away from each other's center


@dataclass(frozen=True)
class Crops:
    """How training windows are drawn."""

    size: tuple[int, ...]
    """(H, W), or (D, H, W) of volumes."""
    scale: tuple[float, float] = (1.0, 1.0)
    augment: bool = True
    neighbors: int = 1
    """Windows of one image, beside each other, that a batch has."""


@dataclass(frozen=True)
class Pairs:
    """Images and labels, of any sizes. A :class:`bgn_lab.data.sources.Source`."""

    x: tuple[Tensor, ...]
    """(C, H, W) or (C, D, H, W), bytes."""
    labels: tuple[Tensor, ...]
    """(H, W) or (D, H, W), bytes; IGNORED where no class is known."""
    classes: int
    crops: Crops
    fill: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.uint8))
    """(C,), bytes: what is outside of images."""

    def __len__(self) -> int:
        return len(self.x)

    @cached_property
    def counts(self) -> Tensor:
        """(M, K): pixels of each class in every image."""
        found = [y.flatten().bincount(minlength=IGNORED + 1)[: self.classes] for y in self.labels]
        return torch.stack(found) if found else torch.zeros(0, self.classes, dtype=torch.long)

    @property
    def y(self) -> Tensor:
        """(M,): the most frequent class of every image."""
        return self.counts.argmax(1)

    @cached_property
    def fingerprint(self) -> str:
        """See :class:`bgn_lab.data.sources.Source`."""
        code = hashlib.blake2b(repr(len(self)).encode())
        for tensors in zip(self.x, self.labels, strict=True):
            for tensor in tensors:
                code.update(repr(tuple(tensor.shape)).encode())
                code.update(tensor.contiguous().numpy().data.cast("B"))
        return code.hexdigest()[:FINGERPRINT]

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`.

        An epoch has a window for every image. With neighboring windows it has as many of them, of
        fewer images, which differ from epoch to epoch.
        """
        order = torch.randperm(len(self), generator=generator(seed, epoch)).tolist()
        each = batch_size // self.crops.neighbors  # images of a batch
        numbers = range(len(self) // batch_size) if wanted is None else wanted
        for number in numbers:
            own = range(number * each, (number + 1) * each)
            found = [pair for k in own for pair in self._windows(order[k], seed, epoch, k)]
            x, y = zip(*found, strict=True)
            yield torch.stack(x), torch.stack(y)

    def _windows(self, i: int, seed: int, epoch: int, place: int) -> Iterator[Batch]:
        """Neighboring windows of an image; their draws depend on its place in the epoch alone."""
        x, y, crops = self.x[i], self.labels[i], self.crops
        draws = generator(seed, epoch, place)
        first = (
            windows.draw(y.shape, crops.size, crops.scale, draws)
            if crops.augment
            else windows.middle(y.shape, crops.size)
        )
        for number in range(crops.neighbors):
            far = [own // NEAR for own in first.size]
            own = first if not number else first.shifted(far, y.shape, draws)
            yield windows.cut(x, y, own, crops.size, self.fill)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`; images of one batch have the same size."""
        begin = 0
        for end in range(1, len(self) + 1):
            same = end < len(self) and self.labels[end].shape == self.labels[begin].shape
            if not same or end - begin == batch_size:
                yield torch.stack(self.x[begin:end]), torch.stack(self.labels[begin:end])
                begin = end

    def check(self) -> None:
        """See :class:`bgn_lab.data.sources.Source`; all were read already."""

    def part(self, index: Tensor) -> Pairs:
        """See :class:`bgn_lab.data.sources.Source`."""
        places = index.tolist()
        return replace(
            self,
            x=tuple(self.x[i] for i in places),
            labels=tuple(self.labels[i] for i in places),
        )


@dataclass(frozen=True)
class SegmentationData(Data):
    """A data set of pairs. ``shape`` is that of a training window; ``chance`` is the mean IoU of a
    constant answer on the test images."""

    train: Pairs
    validation: Pairs
    test: Pairs
    made_up: bool = False
    """Whether the images were composed here, and no camera or scanner took them."""

    @property
    def spatial(self) -> int:
        """2, or 3 for volumes."""
        return len(self.shape) - 1

    def contents(self) -> tuple[object, ...]:
        """See :class:`Data`; windows are drawn as the recipe says."""
        parts = (self.train, self.validation, self.test)
        return self.classes, *(part.fingerprint for part in parts)


def constant_iou(counts: Tensor) -> float:
    """Mean IoU of the best constant answer, from the pixels (K,) of each class.

    >>> constant_iou(torch.tensor([60, 30, 10]))
    0.2
    """
    total, present = int(counts.sum()), int((counts > 0).sum())
    return float(counts.max()) / (total * present) if total else 0.0

"""Whether an exported network answers as the one that was trained, on real images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bgn_lab.data.segmentation.windows import IGNORED

BATCH = 32
LIMIT = 1e-3
"""Largest difference that counts as rounding, as a share of the largest output."""


@dataclass(frozen=True)
class Comparison:
    """Outputs of two networks for the same images."""

    images: int
    difference: float
    """The largest one between two outputs."""
    largest: float
    """The largest output."""
    before: float
    """Accuracy of the trained network."""
    after: float
    """Accuracy of the exported one."""

    @property
    def agrees(self) -> bool:
        """Whether they differ by rounding alone."""
        return self.difference <= LIMIT * self.largest

    def __str__(self) -> str:
        return (
            f"{self.images} images: largest difference {self.difference:.1e} of outputs up to"
            f" {self.largest:.1f}; accuracy {self.before:.2%} of the trained network,"
            f" {self.after:.2%} of the file"
        )


@torch.no_grad()
def compare(
    trained: Callable[[Tensor], Tensor],
    exported: Callable[[Tensor], Tensor],
    images: Tensor,
    labels: Tensor,
    batch: int = BATCH,
) -> Comparison:
    """Run both on all images, ``batch`` at a time and the rest in a smaller batch."""
    difference, largest, known = 0.0, 0.0, 0
    right = [0, 0]
    for x, y in zip(torch.split(images, batch), torch.split(labels, batch), strict=True):
        outputs = trained(x), exported(x)
        difference = max(difference, _largest(outputs[0] - outputs[1]))
        largest = max(largest, _largest(outputs[0]))
        has_class = y != IGNORED if y.dim() > 1 else torch.ones_like(y, dtype=torch.bool)
        known += int(has_class.sum())
        for i, output in enumerate(outputs):
            right[i] += int(((output.argmax(1) == y) & has_class).sum())
    return Comparison(
        len(images), difference, largest, right[0] / max(known, 1), right[1] / max(known, 1)
    )


def _largest(x: Tensor) -> float:
    """Infinite where one is not a number, so that it agrees with nothing."""
    return float(x.abs().nan_to_num(float("inf")).max())

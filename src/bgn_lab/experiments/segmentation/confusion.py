"""Counts of what each pixel is and was taken for, and the scores that follow from them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from bgn_lab.data.segmentation.windows import IGNORED


def count(truth: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """(K, K): pixels of each class (rows) that were taken for each class (columns).

    Pixels whose truth is IGNORED are left out.

    >>> import torch
    >>> count(torch.tensor([0, 0, 1, 255]), torch.tensor([0, 1, 1, 1]), 2).tolist()
    [[1, 1], [0, 1]]
    """
    known = truth != IGNORED
    both = truth[known].long() * classes + predicted[known].long()
    return both.bincount(minlength=classes**2).view(classes, classes)


@dataclass(frozen=True)
class Scores:
    """Scores of a confusion matrix."""

    matrix: Tensor
    """(K, K), of integers."""
    loss: float = math.nan
    """Mean cross-entropy of the pixels."""

    @property
    def pixels(self) -> int:
        """Number of pixels that have a class."""
        return int(self.matrix.sum())

    @property
    def accuracy(self) -> float:
        """Share of the pixels that are right."""
        return int(self.matrix.diagonal().sum()) / max(self.pixels, 1)

    @property
    def ious(self) -> list[float | None]:
        """Of each class, the pixels that are rightly of it over those that are or were taken for
        it; None if there are neither."""
        right = self.matrix.diagonal()
        union = self.matrix.sum(0) + self.matrix.sum(1) - right
        pairs = zip(right.tolist(), union.tolist(), strict=True)
        return [r / u if u else None for r, u in pairs]

    @property
    def mean_iou(self) -> float:
        """Over the classes that occur, in the images or in the answers."""
        found = [iou for iou in self.ious if iou is not None]
        return sum(found) / len(found) if found else 0.0

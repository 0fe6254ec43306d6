"""Recipe of classification: the paper's ImageNet experiment, and yours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bgn_lab.recipe import (
    AmpOptions,
    CompileOptions,
    DecodingOptions,
    MedianOptions,
    ScheduleOptions,
    SGDOptions,
    StrideOptions,
    ValidationOptions,
    WidthOptions,
    WorkerOptions,
)


@dataclass(frozen=True)
class ClassificationRecipe(
    CompileOptions,
    AmpOptions,
    WorkerOptions,
    ScheduleOptions,
    SGDOptions,
    MedianOptions,
    StrideOptions,
    WidthOptions,
    ValidationOptions,
    DecodingOptions,
):
    """Train one network for classification."""

    experiment: ClassVar[str] = "classification"

    model: str = "resnet8"
    """resnet8 14 20 32 44 56 110 (small images), resnet10 18 34 50 101 or mobilenet-v2 (as
    torchvision's), timm:NAME where timm is installed; or PACKAGE:FUNCTION, which is called with
    norm, classes and channels"""
    batch_size: int = 32
    """images that are normalized together, by each worker"""
    lr: float = 0.1
    """learning rate for 32 images per step; it is scaled in proportion to the images per step, as
    in the paper"""

    @property
    def rate(self) -> float:
        """Highest learning rate, in proportion to the images per step."""
        return self.lr * self.batch_size * self.batches / 32

"""Recipe of semantic segmentation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from bgn import checks
from bgn_lab.data.segmentation import FORMS
from bgn_lab.models import pretrained, segmentation
from bgn_lab.recipe import (
    TRAINING,
    AmpOptions,
    FolderOptions,
    Measure,
    ScheduleOptions,
    SGDOptions,
    ValidationOptions,
    WidthOptions,
    WorkerOptions,
)

ClassWeights = Literal["none", "balanced"]
Evaluation = Literal["whole", "sliding"]
REFERENCE = 16
"""Images of a step that the learning rate is given for."""


@dataclass(frozen=True)
class SegmentationRecipe(
    AmpOptions,
    WorkerOptions,
    ScheduleOptions,
    SGDOptions,
    WidthOptions,
    ValidationOptions,
    FolderOptions,
):
    """Give every pixel of an image, or every voxel of a volume, a class."""

    experiment: ClassVar[str] = "segmentation"
    group: ClassVar[str] = "segmentation"
    known: ClassVar[tuple[str, ...]] = tuple(FORMS)

    data: str = "scenes"
    """scenes (made up of clothes that ship with the package), volumes (made up, 3D); or the path of
    a folder of images and masks (pairs; CamVid's, Cityscapes' or VOC's layout), or of an .npz"""
    image_size: int | None = None
    """pixels of the shorter side to which image files are scaled, and at which answers are judged;
    by default as they are"""
    validation: float = 0.1
    """share of the training images that is held out for validation, where the data has no
    validation images of its own"""
    model: str = "unet"
    """unet (images or volumes), or fpn or deeplab on mobilenet-v2, resnet18, resnet50, ...:
    fpn-mobilenet-v2, deeplab-resnet50"""
    width: int | None = None
    """channels of a U-Net's first stage, by default 16, or of a head, by default 64 (fpn) or 96
    (deeplab)"""
    weights: str | None = None
    """pretrained weights of the backbone: a .safetensors or .pth file, of torchvision or of a run,
    or the folder of a run of classification; BN's also begin other normalizers, as exactly as each
    allows"""
    weights_code: str = field(default="", init=False)
    """hash of that file: the weights count by their content"""
    crop: tuple[int, ...] | None = None
    """height and width of training windows, with the depth before them for volumes; by default the
    largest that all images have, up to 512, or 64 for volumes"""
    scale: tuple[float, float] = (0.5, 2.0)
    """smallest and largest factor by which training windows are enlarged"""
    neighbors: int = 1
    """windows of one image, beside each other, that are normalized together; 1 takes every window
    of a batch from another image"""
    class_weights: ClassWeights = "none"
    """weights of the classes in the loss: none, or balanced by their share of the training pixels
    (median frequency over frequency)"""
    evaluation: Evaluation = "whole"
    """answers for whole images, or from windows of the size of --crop that overlap"""
    recalibrate: bool = False
    """evaluate the trained network also with exact running statistics of the training windows; the
    result as trained stays"""
    batch_size: int = 2
    """images that are normalized together, by each worker"""
    epochs: int = 10
    """passes over the training images"""
    lr: float = 0.1
    """learning rate for 16 images per step; it is scaled in proportion to the images per step"""
    head_factor: float = 10.0
    """how many times faster layers without pretrained weights learn than those with"""
    renorm_momentum: float = 0.01
    """with --renorm, in place of --norm-momentum: weight of a batch in the running statistics that
    batches are corrected towards"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("class_weights", self.class_weights, get_args(ClassWeights))
        checks.one_of("evaluation", self.evaluation, get_args(Evaluation))
        head, backbone = segmentation.parts(self.model)
        checks.positive_int("neighbors", self.neighbors)
        for side in self.crop or ():
            checks.positive_int("crop", side)
        if self.batch_size % self.neighbors:
            raise ValueError(
                f"neighbors={self.neighbors} does not divide batch_size={self.batch_size}; expected"
                " a number of windows of each image that does"
            )
        if len(self.scale) != 2 or not 0 < self.scale[0] <= self.scale[1] < math.inf:
            raise ValueError(
                f"scale={self.scale} is no range of factors; expected the smallest, above 0, and"
                " the largest"
            )
        for name, most in {"head_factor": math.inf, "renorm_momentum": 1.0}.items():
            if not 0 < getattr(self, name) <= most:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number above 0"
                    + (f", at most {most:g}" if math.isfinite(most) else "")
                )
        if self.weights is not None:
            if not backbone:
                raise ValueError(
                    f"weights={self.weights!r} is for a backbone, and model={head!r} has none;"
                    " expected such as model='fpn-mobilenet-v2'"
                )
            if self.standardize and self.renorm:
                raise ValueError(
                    "standardize=True and renorm=True exclude each other where there are weights:"
                    " batches would be corrected towards statistics of weights that were not"
                    " standardized; expected one of them"
                )
            self._set("weights_code", pretrained.code(Path(self.weights)))

    def without_effect(self) -> tuple[str, ...]:
        """Options of what is off."""
        unused = [*super().without_effect()]
        unused += [] if self.weights else ["weights_code", "head_factor"]
        unused += [] if self.augment else ["scale"]
        if not self.renorm:
            unused.append("renorm_momentum")
        return tuple(unused)

    def identity(self) -> dict[str, Any]:
        """The identity; with --renorm another momentum counts."""
        found = super().identity()
        if self.renorm:
            found.pop("norm_momentum", None)
        return found

    @property
    def rate(self) -> float:
        """Highest learning rate, in proportion to the images per step."""
        return self.lr * self.batch_size * self.batches / REFERENCE

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Mean IoU over the classes, on test images."""
        return (Measure("test_iou", "mean IoU"),)

    @property
    def curves(self) -> tuple[Measure, ...]:
        """Mean IoU on validation images."""
        return Measure("validation_iou", "validation IoU"), TRAINING

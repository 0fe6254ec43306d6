"""The parts that every recipe has: data, model, optimizer and runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from bgn_lab import paper
from bgn_lab.data import DATA_SETS
from bgn_lab.recipe.part import Part, above_zero, in_range, positive_ints

DATA = tuple(DATA_SETS)
PATHS = ("folder", "arrays")
"""What data of one's own is called, whose root is given as a path."""


@dataclass(frozen=True)
class DataOptions(Part):
    """Options of the images that are trained on."""

    group: ClassVar[str] = "data"
    known: ClassVar[tuple[str, ...]] = DATA
    """Names that are no paths."""

    data: str = "fashion-mnist"
    """fashion-mnist (a part ships with the package), cifar10, imagenet; or the path of a folder of
    class folders or of an .npz"""
    root: Path | None = None
    """folder or file of the data; not needed for fashion-mnist, nor for cifar10 after
    `bgn data get cifar10`"""
    limit: int | None = None
    """use at most this many training images, before validation images are held out"""
    augment: bool = True
    """random crops and flips"""

    def __post_init__(self) -> None:
        super().__post_init__()
        path = Path(self.data)
        # a path is short for the kind of data and its root
        if self.data not in self.known and (path.is_dir() or path.suffix == ".npz"):
            if self.root is not None:
                raise ValueError(
                    f"data={self.data!r} is a path, root={str(self.root)!r} another;"
                    " expected one of them"
                )
            self._set("root", path)
            self._set("data", "folder" if path.is_dir() else "arrays")
        if self.data not in self.known and ("/" in self.data or path.suffix):
            raise ValueError(
                f"data={self.data!r} is neither a folder nor an .npz file; accepted too:"
                f" {', '.join(name for name in self.known if name not in PATHS)}"
            )
        if self.root is not None:
            self._set("root", self.root.resolve())
        positive_ints(self, "limit")


@dataclass(frozen=True)
class ModelOptions(Part):
    """Options of the network."""

    group: ClassVar[str] = "model"

    model: str = ""
    """name of the network"""


@dataclass(frozen=True)
class OptimizerOptions(Part):
    """Options of every optimizer."""

    group: ClassVar[str] = "optimizer"

    lr: float = 0.1
    """learning rate"""
    decay: float = paper.WEIGHT_DECAY
    """weight decay, on all parameters as in the paper"""

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "lr")
        in_range(self, decay=math.inf)


@dataclass(frozen=True)
class RuntimeOptions(Part):
    """Options of the device, and of what the run writes."""

    group: ClassVar[str] = "runtime"

    seed: int = 0
    """seed of the weights, the order of the images and the augmentation"""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto is cuda where there is one, else cpu"""
    channels_last: bool = False
    """channels_last memory format"""
    onednn: bool | None = None
    """oneDNN's convolutions on the CPU; by default the faster of these and plain ones, timed when
    the run begins"""
    tensorboard: bool = False
    """write TensorBoard events beside the metrics"""
    save_every: float = 30.0
    """minutes between checkpoints within an epoch; there is also one after every epoch, and on
    SIGTERM or Ctrl-C"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "auto":
            self._set("device", "cuda" if torch.cuda.is_available() else "cpu")
        try:
            torch.device(self.device)
        except RuntimeError:
            raise ValueError(
                f"device={self.device!r} is not known; expected auto, cpu, cuda, cuda:1 or mps"
            ) from None
        in_range(self, seed=2**32 - 1)
        above_zero(self, "save_every")

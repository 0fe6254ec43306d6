"""A recipe: everything that decides what a training run does, written beside its results."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch

from bgn import checks
from bgn.factory import NAMES
from bgn_lab import paper

Schedule = Literal["cosine", "steps", "constant"]
Damaged = Literal["refuse", "skip"]
DATA = ("fashion-mnist", "cifar10", "imagenet", "folder", "arrays")
# where things are and how fast they come: results do not depend on them
CIRCUMSTANCES = ("root", "decoders", "tensorboard", "damaged", "save_every", "images_per_pass")


class Measure(NamedTuple):
    """What a run is judged by: a name in its result, and what a table calls it."""

    key: str
    name: str


TRAINING = Measure("train_accuracy", "training accuracy")


@dataclass(frozen=True)
class Recipe:
    """Train one network for classification. Other experiments have recipes that go on from this one."""

    experiment: ClassVar[str] = "classification"
    schedules: ClassVar[tuple[str, ...]] = get_args(Schedule)

    data: str = "fashion-mnist"
    """fashion-mnist (a part ships with the package), cifar10, imagenet; or the path of a folder of class folders or of an .npz"""
    root: Path | None = None
    """where the data is; for fashion-mnist not needed, for cifar10 the cache of `bgn data get` unless given"""
    model: str = "resnet8"
    """resnet8 14 20 32 44 56 110 (small images), resnet10 18 34 50 101 or mobilenet-v2 (as torchvision's)"""
    width: int | None = None
    """channels of the first stage; by default 16 for small images, 64 for large ones"""
    stride: int | None = None
    """of the first convolution; by default 1 for small images (2 quarters the work), 2 for large ones"""
    norm: str = "bgn"
    """bn in ln gn pn gbgn bgn"""
    groups: int | None = None
    """G of bgn, gn or gbgn; by default the paper's for the batch size (bgn), or 32 but at least 2 channels each (gn, gbgn)"""
    instances: int | None = None
    """BGN with, in each layer, the most groups of whole channels that leave so many values per statistic; instead of --groups"""
    batch_size: int = 32
    """images that are normalised together, by each worker"""
    simulate_workers: int = 1
    """workers in all (the paper's GPUs): each normalises batches of its own, gradients are averaged; processes that torchrun
    starts share them out"""
    images_per_pass: int | None = None
    """images that the workers of a process may normalize in one pass, each its own; by default as many as have 2^20 pixels.
    Fewer take less memory and more time; results differ by rounding"""
    accumulate: int = 1
    """batches whose gradients are averaged for one step"""
    epochs: int = 3
    """passes over the training images"""
    lr: float = 0.1
    """learning rate for 32 images per step; it is scaled in proportion to the images per step, as in the paper"""
    momentum: float = 0.9
    """of SGD"""
    nesterov: bool = False
    """Nesterov's form of the momentum"""
    decay: float = paper.WEIGHT_DECAY
    """weight decay, on all parameters as in the paper"""
    schedule: Schedule = "cosine"
    """how the learning rate falls: to zero along a cosine, by a tenth at each milestone, or not at all"""
    milestones: tuple[int, ...] = paper.MILESTONES
    """epochs at which `--schedule steps` divides the learning rate by ten"""
    warmup: float = 0.0
    """epochs over which the learning rate rises from zero"""
    validation: float = 0.1
    """share of the training images that is held out for validation; choices are made on it, never on the test images"""
    limit: int | None = None
    """use at most so many training images (before the validation share is taken)"""
    image_size: int | None = None
    """pixels to which images of folders are cut; by default 224"""
    augment: bool = True
    """random crops and flips"""
    damaged: Damaged = "refuse"
    """what to do with image files that cannot be read: stop and name the file, or name it and go on without"""
    median_of: int = 1
    """test accuracy is the median over so many last epochs (the paper's ImageNet figures: 5)"""
    seed: int = 0
    """of the weights, the order of the images and the augmentation"""
    decoders: int = 2
    """processes that decode images of folders; data in memory needs none"""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto is cuda where there is one, else cpu"""
    amp: bool = False
    """mixed precision: bfloat16 on the CPU, float16 with a scaled loss on CUDA devices"""
    compile: bool = False
    """torch.compile the network"""
    channels_last: bool = False
    """channels_last memory format"""
    onednn: bool | None = None
    """oneDNN's convolutions on the CPU; by default the faster of these and plain ones, timed when the run begins"""
    tensorboard: bool = False
    """write TensorBoard events beside the metrics"""
    save_every: float = 30.0
    """minutes between checkpoints within an epoch; there is also one after every epoch, and on SIGTERM or Ctrl-C"""

    def __post_init__(self) -> None:
        path = Path(self.data)
        if self.data not in DATA and (
            path.is_dir() or path.suffix == ".npz"
        ):  # short for the kind of data and its place
            if self.root is not None:
                raise ValueError(
                    f"data={self.data!r} is a path, root={str(self.root)!r} another; expected one of them"
                )
            object.__setattr__(self, "root", path)
            object.__setattr__(self, "data", "folder" if path.is_dir() else "arrays")
        if self.data not in DATA and ("/" in self.data or path.suffix):
            raise ValueError(
                f"data={self.data!r} is neither a folder nor an .npz file; accepted too: {', '.join(DATA)}"
            )
        if self.root is not None:
            object.__setattr__(self, "root", self.root.resolve())
        if self.device == "auto":
            object.__setattr__(self, "device", "cuda" if torch.cuda.is_available() else "cpu")
        checks.one_of("norm", self.norm, NAMES)
        checks.one_of("schedule", self.schedule, self.schedules)
        checks.one_of("damaged", self.damaged, get_args(Damaged))
        for name in ("batch_size", "simulate_workers", "accumulate", "epochs", "median_of"):
            checks.positive_int(name, getattr(self, name))
        for name in (
            "width",
            "stride",
            "groups",
            "instances",
            "limit",
            "image_size",
            "images_per_pass",
        ):
            if getattr(self, name) is not None:
                checks.positive_int(name, getattr(self, name))
        if self.groups is not None and self.norm not in ("gn", "gbgn", "bgn"):
            raise ValueError(
                f"groups={self.groups} has no meaning for norm={self.norm!r}; expected none"
            )
        if self.instances is not None and (self.norm != "bgn" or self.groups is not None):
            raise ValueError(
                f"instances={self.instances} is for norm='bgn' without groups; norm={self.norm!r}, groups={self.groups}"
            )
        for name in ("lr", "save_every"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number above 0"
                )
        most = {
            "momentum": 1,
            "decay": math.inf,
            "warmup": self.epochs,
            "decoders": 1024,
            "seed": 2**32 - 1,
        }
        for name, limit in most.items():
            if not 0 <= getattr(self, name) <= limit:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number from 0 to {limit}"
                )
        if self.median_of > self.epochs:
            raise ValueError(
                f"median_of={self.median_of} exceeds epochs={self.epochs}; expected at most that"
            )
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True needs a momentum above 0; momentum=0")
        if not 0 <= self.validation < 1:
            raise ValueError(
                f"validation={self.validation} is out of range; expected a share of the training images in [0, 1)"
            )

    @property
    def batches(self) -> int:
        """For one step, over all workers."""
        return self.simulate_workers * self.accumulate

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return self.lr * self.batch_size * self.batches / 32

    @property
    def measures(self) -> tuple[Measure, ...]:
        """What runs are compared by, the most important first."""
        return (Measure("test_accuracy", "test accuracy"),)

    @property
    def variant(self) -> str:
        """What sets it apart from runs with the same normaliser at the same place; mostly nothing."""
        return ""

    @property
    def place(self) -> int | str:
        """Which column of a table the run belongs to."""
        return self.batch_size

    @property
    def curves(self) -> tuple[Measure, ...]:
        """What is drawn by epoch: the first of these that was measured."""
        return Measure("validation_accuracy", "validation accuracy"), TRAINING

    @property
    def falls(self) -> tuple[float, ...]:
        """What is left of the learning rate after each milestone."""
        return tuple(0.1 ** (k + 1) for k in range(len(self.milestones)))

    @property
    def usual_groups(self) -> int | None:
        """G where the recipe names none; None leaves it to the normaliser."""
        return None

    @property
    def usual_name(self) -> str:
        """What BGN with that G is called; in runs that are compared it may differ from column to column."""
        return "paper's G" if self.usual_groups is None else f"G = {self.usual_groups}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
        return {
            "experiment": self.experiment,
            **values,
            "root": None if self.root is None else str(self.root),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Recipe:
        """The inverse of :meth:`to_json`; a recipe of an older or newer version is refused if it has fields unknown here."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        experiment = plain.pop("experiment", cls.experiment)
        if experiment != cls.experiment:
            raise ValueError(
                f"the recipe is one of experiment={experiment!r}; expected {cls.experiment!r}"
            )
        unknown = sorted(set(plain) - {f.name for f in fields(cls)})
        if unknown:
            raise ValueError(f"the recipe has fields that are unknown here: {', '.join(unknown)}")
        return cls(**{**plain, "root": None if plain.get("root") is None else Path(plain["root"])})

    def identity(self) -> dict[str, Any]:
        """What results depend on."""
        found = {name: value for name, value in self.to_json().items() if name not in CIRCUMSTANCES}
        if self.experiment == "classification":
            del found["experiment"]  # whose runs were the first, and are found by names without it
        if (
            self.root is not None and self.data != "cifar10"
        ):  # whose images are the same wherever they lie
            found["root"] = str(self.root)
        return found

    def key(self) -> str:
        """A name for a folder: readable, and different for recipes that differ."""
        groups = "" if self.groups is None else str(self.groups)
        groups += "" if self.instances is None else f"-i{self.instances}"
        code = hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()[:8]
        what = "" if self.experiment == "classification" else f"{self.experiment}-"
        return f"{what}{self.data}-{self.model}-{self.norm}{groups}-b{self.batch_size}-s{self.seed}-{code}"

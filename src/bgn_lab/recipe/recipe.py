"""A recipe: everything that decides what a training run does, written beside its results."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import tyro

from bgn_lab import partners
from bgn_lab.recipe.norm import NormOptions
from bgn_lab.recipe.part import positive_ints
from bgn_lab.recipe.parts import DataOptions, ModelOptions, OptimizerOptions, RuntimeOptions

Damaged = Literal["refuse", "skip"]
# where files are and how fast they come; data and weights count by their content
NOT_IDENTITY = (
    "root",
    "weights",
    "decoders",
    "tensorboard",
    "damaged",
    "save_every",
    "images_per_pass",
)
# what has an effect in some rows of a table and not in others
ROW_DEPENDENT = (
    *("norm_momentum", "norm_eps", "printed", "ways", "trust", "alpha", "warm", "stop"),
    *partners.RENORM_SETTINGS,
)


class Measure(NamedTuple):
    """A value that runs are compared by: its key in a result, and its name in tables."""

    key: str
    name: str


TRAINING = Measure("train_accuracy", "training accuracy")


@dataclass(frozen=True)
class Recipe(RuntimeOptions, OptimizerOptions, NormOptions, ModelOptions, DataOptions):
    """What every run has. Properties stand for options that not all experiments have."""

    group: ClassVar[str] = "training"
    experiment: ClassVar[str]

    batch_size: int = 32
    """images that are normalized together"""
    epochs: int = 3
    """passes over the training images"""
    test: tyro.conf.Suppress[bool] = True
    """evaluate test images; `bgn tune` does not"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_ints(self, "batch_size", "epochs")

    @property
    def image_size(self) -> int | None:
        """Pixels of images from folders; None for the data's default."""
        return None

    @property
    def damaged(self) -> Damaged:
        """What to do with image files that cannot be read."""
        return "refuse"

    @property
    def decoders(self) -> int:
        """Processes that decode images of folders."""
        return 0

    @property
    def validation(self) -> float:
        """Share of the training images that is held out."""
        return 0.0

    @property
    def median_of(self) -> int:
        """Last epochs over which the test accuracy is the median."""
        return 1

    @property
    def simulate_workers(self) -> int:
        """Workers in all."""
        return 1

    @property
    def images_per_pass(self) -> int | None:
        """Images that several workers may normalize in one pass; None for the default."""
        return None

    @property
    def accumulate(self) -> int:
        """Batches whose gradients are averaged for one step."""
        return 1

    @property
    def width(self) -> int | None:
        """Channels of the first stage; None for the model's default."""
        return None

    @property
    def stride(self) -> int | None:
        """Stride of the first convolution; None for the model's default."""
        return None

    @property
    def milestones(self) -> tuple[int, ...]:
        """Epochs at which the learning rate falls."""
        return ()

    @property
    def amp(self) -> bool:
        """Mixed precision."""
        return False

    @property
    def compile(self) -> bool:
        """Whether torch.compile compiles the network."""
        return False

    @property
    def batches(self) -> int:
        """Batches for one step, over all workers."""
        return self.simulate_workers * self.accumulate

    @property
    def rate(self) -> float:
        """Highest learning rate: the option, whatever the batch size."""
        return self.lr

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Values that runs are compared by, the most important first."""
        return (Measure("test_accuracy", "test accuracy"),)

    @property
    def variant(self) -> str:
        """What distinguishes it from runs with the same normalizer in the same column; mostly
        nothing."""
        return ""

    @property
    def place(self) -> int | str:
        """Column of a table that the run belongs to."""
        return self.batch_size

    @property
    def curves(self) -> tuple[Measure, ...]:
        """Values that are drawn by epoch: the first of these that was measured."""
        return Measure("validation_accuracy", "validation accuracy"), TRAINING

    @property
    def usual_groups(self) -> int | None:
        """G where the recipe names none; None leaves it to the normalizer."""
        return None

    @property
    def usual_name(self) -> str:
        """Name of BGN with that G in tables; G may differ from column to column."""
        return "paper's G" if self.usual_groups is None else f"G = {self.usual_groups}"

    def to_json(self) -> dict[str, Any]:
        """Plain values, of which :meth:`from_json` makes the same recipe."""
        # fields are flat: asdict would copy each of them, and a report asks thousands of times
        plain = ((own.name, getattr(self, own.name)) for own in fields(self))
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in plain}
        root = None if self.root is None else str(self.root)
        return {"experiment": self.experiment, **values, "root": root}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Recipe:
        """The inverse of :meth:`to_json`; refuses fields that are unknown here."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        experiment = plain.pop("experiment", cls.experiment)
        if experiment != cls.experiment:
            raise ValueError(
                f"the recipe is one of experiment={experiment!r}; expected {cls.experiment!r}"
            )
        known = {f.name: f for f in fields(cls)}
        unknown = sorted(set(plain) - set(known))
        if unknown:
            raise ValueError(f"the recipe has fields that are unknown here: {', '.join(unknown)}")
        derived = {n: plain.pop(n) for n, f in known.items() if not f.init and n in plain}
        root = None if plain.get("root") is None else Path(plain["root"])
        made = cls(**{**plain, "root": root})
        for name, value in derived.items():  # as they were then: files may have changed
            made._set(name, value)
        return made

    def settings(self) -> dict[str, Any]:
        """Values by which runs are grouped in a table: those of the identity, also where they have
        no effect in one of the rows; not the weights, which each normalizer has its own
        of. The root stands for the data's content, but for CIFAR-10, which is the same
        everywhere."""
        derived = {f.name for f in fields(self) if not f.init}
        unused = {name for name in self.without_effect() if name not in ROW_DEPENDENT}
        found = self._values((*NOT_IDENTITY, *derived, *unused))
        if self.root is not None and self.data != "cifar10":
            found["root"] = str(self.root)
        return found

    def identity(self) -> dict[str, Any]:
        """Everything in the recipe that changes the result, and nothing else."""
        return self._values((*NOT_IDENTITY, *self.without_effect()))

    def _values(self, omitted: tuple[str, ...]) -> dict[str, Any]:
        found = {name: value for name, value in self.to_json().items() if name not in omitted}
        return {**found, "device": torch.device(self.device).type}

    def key(self, data: str = "") -> str:
        """Name of a run's folder: readable, and different for recipes that differ.

        Args:
            data: fingerprint of the data, which is part of the identity by its content.
        """
        groups = "" if self.groups is None else str(self.groups)
        groups += "" if self.instances is None else f"-i{self.instances}"
        whole = json.dumps([self.identity(), data], sort_keys=True)
        code = hashlib.sha256(whole.encode()).hexdigest()[:8]
        what = "" if self.experiment == "classification" else f"{self.experiment}-"
        names = partners.name(self), self.model
        norm, model = (name.replace(":", ".").replace("/", "-") for name in names)
        size, seed = self.batch_size, self.seed
        return f"{what}{self.data}-{model}-{norm}{groups}-b{size}-s{seed}-{code}"

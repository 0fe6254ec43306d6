"""Recipe of domain adaptation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from bgn import checks
from bgn_lab import models, paper
from bgn_lab.data.domains import PLAIN, TEXTURED
from bgn_lab.models import pretrained
from bgn_lab.recipe import (
    AmpOptions,
    CompileOptions,
    FolderOptions,
    GroupWord,
    Measure,
    ScheduleOptions,
    SGDOptions,
    StrideOptions,
    WidthOptions,
)

Optimizer = Literal["sgd", "adam"]
Falls = Literal["inverse", "steps", "constant"]
Printed = Literal["text", "table"]
Stop = Literal["still", "gap"]
OFFICE = (
    "amazon",
    "dslr",
    "webcam",
)  # domains of Office-31, whose tasks the paper names by initials


@dataclass(frozen=True)
class AdaptationRecipe(
    CompileOptions,
    AmpOptions,
    ScheduleOptions,
    SGDOptions,
    StrideOptions,
    WidthOptions,
    FolderOptions,
):
    """Adapt a network from a domain with labels to one without."""

    experiment: ClassVar[str] = "adaptation"
    group: ClassVar[str] = "adaptation"
    schedules: ClassVar[tuple[str, ...]] = get_args(Falls)

    data: str = "fashion-mnist"
    """fashion-mnist (two domains made of a part that ships with the package: plain, and before
    textures); or the path of a folder of domains with class folders each, or of an .npz of JPEGs
    with domains"""
    image_size: int | None = None
    """pixels to which images of folders and archives are cut; by default 224"""
    task: str | None = None
    """source and target, by initials or names: da or dslr-amazon; by default the first two
    domains"""
    adapt: bool = True
    """without it the network learns from the source alone: what adaptation is compared with"""
    model: str = "resnet8"
    """resnet50, as in the paper, resnet18, mobilenet-v2, ..."""
    weights: str | None = None
    """pretrained weights: a .safetensors or .pth file, of torchvision or of a run, or the folder
    of a run of classification"""
    weights_code: str = field(default="", init=False)
    """hash of that file: the weights count by their content"""
    warm: int = 0
    """first loops that learn from the source alone, for networks without pretrained weights"""
    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; by default the paper's for the task of Office-31 (bgn), else by its
    schedule; auto (bgn): by maps and batch size"""
    printed: Printed = "text"
    """source of G for ad and aw: the paper's text (1 and 8), or a row of its table that it does not
    print (8 and 1)"""
    batch_size: int = 30
    """images with labels; beside them are as many of each domain, by classes"""
    ways: int = 10
    """classes of a batch, with 3 images each of both domains"""
    epochs: int = 50
    """loops, at most"""
    iterations: int | None = None
    """steps of a loop, at most; by default one pass over the trusted images, by classes"""
    stop: Stop = "still"
    """when loops end: still, as released, when clusters, their distance to the source's classes and
    the labels change by less than 0.001; gap, as in the paper's text, when the distance between
    the domains' centers is below 0.001"""
    optimizer: Optimizer = "sgd"
    """sgd or adam"""
    lr: float = 0.001
    """learning rate of the backbone; that of the last layer is ten times as high"""
    decay: float = 5e-4
    """weight decay, on all parameters"""
    schedule: Falls = "inverse"  # type: ignore[assignment]
    """how the learning rate falls: as 1 / (1 + step / 1000)^0.75, by a tenth at the milestones (in
    loops), or not at all"""
    milestones: tuple[int, ...] = (25,)
    """loops at which `--schedule steps` divides the learning rate by ten"""
    trust: float | None = None
    """leave out target images further from their center, from 0 to 1; by default, as released, 0.05
    for ad and aw, else 1"""
    alpha: float = 0.3
    """weight of the discrepancy between domains in the loss"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("optimizer", self.optimizer, get_args(Optimizer))
        checks.one_of("printed", self.printed, get_args(Printed))
        checks.one_of("stop", self.stop, get_args(Stop))
        checks.one_of("model", self.model, models.ADAPTABLE)
        checks.positive_int("ways", self.ways)
        if self.iterations is not None:
            checks.positive_int("iterations", self.iterations)
        self._set("task", _canonical(self.task, self.data))
        for name, most in {"trust_limit": 1.0, "alpha": math.inf, "warm": self.epochs}.items():
            if not 0 <= getattr(self, name) <= most:
                name = name.removesuffix("_limit")
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number from 0 to"
                    f" {most}"
                )
        if self.warmup and self.schedule == "inverse":
            raise ValueError(
                f"warmup={self.warmup} has no meaning for schedule='inverse'; expected 0, or"
                " another schedule"
            )
        if self.weights is not None:
            self._set("weights", str(Path(self.weights).resolve()))
            self._set("weights_code", pretrained.code(Path(self.weights)))

    def without_effect(self) -> tuple[str, ...]:
        """Names of the options that change nothing.

        Adam has another momentum; without adaptation there are no clusters; G may be given; images
        of fashion-mnist keep their size.
        """
        size = ("image_size",) if self.data == "fashion-mnist" else ()
        momentum = ("momentum", "nesterov") if self.optimizer == "adam" else ()
        clusters = () if self.adapt else ("ways", "trust", "alpha", "warm", "stop")
        printed = () if self._printed_matters else ("printed",)
        return (*super().without_effect(), *size, *momentum, *clusters, *printed)

    @property
    def _printed_matters(self) -> bool:
        given = self.groups is not None or self.instances is not None
        return self.norm == "bgn" and self.task in ("ad", "aw") and not given

    @property
    def trust_limit(self) -> float:
        """Largest distance of a trusted image. It is resolved here and not stored: a preset must
        not fix it before the task is known."""
        usual = 0.05 if self.task in ("ad", "aw") else 1.0
        return usual if self.trust is None else self.trust

    def identity(self) -> dict[str, Any]:
        """The identity, with the distance that is used, whether it was given or not."""
        found = super().identity()
        return found | {"trust": self.trust_limit} if "trust" in found else found

    @property
    def place(self) -> str:
        """Task."""
        return self.task or "the first two"

    @property
    def variant(self) -> str:
        """Without adaptation: what adaptation is compared with."""
        return "" if self.adapt else "source only"

    @property
    def curves(self) -> tuple[Measure, ...]:
        """There are no validation images."""
        return (Measure("test_accuracy", "target accuracy"),)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Accuracy on the target's images."""
        return (Measure("test_accuracy", "target accuracy"),)

    @property
    def usual_groups(self) -> int | None:
        """G of the paper for the task."""
        by_task = (
            paper.ADAPTATION_GROUPS if self.printed == "text" else paper.ADAPTATION_GROUPS_OF_SOURCE
        )
        return by_task.get(self.task or "") if self.norm == "bgn" else None

    @property
    def usual_name(self) -> str:
        """Another G for each task."""
        return "paper's G"


def _canonical(task: str | None, data: str) -> str | None:
    """One name for each task: initials for Office-31, as in the paper, names for fashion-mnist.

    >>> [_canonical(t, "folder") for t in ("da", "dslr-amazon", "webcam-a", "clipart-real", None)]
    ['da', 'da', 'wa', 'clipart-real', None]
    >>> [_canonical(task, "fashion-mnist") for task in ("tp", "plain-textured", None)]
    ['textured-plain', 'plain-textured', 'plain-textured']
    """
    shipped = data == "fashion-mnist"
    if task is None:
        return f"{PLAIN}-{TEXTURED}" if shipped else None
    words = task.split("-") if "-" in task else list(task)
    names = (PLAIN, TEXTURED) if shipped else OFFICE
    found = [name for word in words for name in names if word and name.startswith(word)]
    if len(words) != 2 or len(found) != 2:
        return task
    return "-".join(found) if shipped else "".join(name[0] for name in found)

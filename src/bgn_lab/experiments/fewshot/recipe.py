"""Recipe of few-shot learning."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from bgn import checks
from bgn_lab.recipe import (
    AmpOptions,
    CompileOptions,
    FolderOptions,
    GroupWord,
    Measure,
    Schedule,
    ScheduleOptions,
    SGDOptions,
    ValidationOptions,
    WidthOptions,
    WorkerOptions,
)

Activation = Literal["relu", "swish"]
SHOTS = (1, 5)


@dataclass(frozen=True)
class FewShotRecipe(
    CompileOptions,
    AmpOptions,
    WorkerOptions,
    ScheduleOptions,
    SGDOptions,
    WidthOptions,
    ValidationOptions,
    FolderOptions,
):
    """Learn base classes, recognize new ones."""

    experiment: ClassVar[str] = "fewshot"
    group: ClassVar[str] = "few-shot"

    data: str = "fashion-mnist"
    """fashion-mnist (6 base and 4 new classes of a part that ships with the package); or the path
    of a folder of train, val and test with class folders each, or of an .npz of JPEGs with such a
    division"""
    model: str = "resnet12"
    """resnet12"""
    width: int | None = None
    """channels of the first block; by default 64"""
    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; by default 256 for bgn, the largest power of two that divides every
    layer (the paper does not say); auto (bgn): by maps and batch size"""
    activation: Activation = "relu"
    """relu or swish"""
    negative: bool = False
    """let features be negative: no activation at the end of the last block"""
    batch_size: int = 256
    """images that are normalized together"""
    epochs: int = 6
    """epochs of --iterations steps, or passes over the images of the base classes; 60 in the
    paper"""
    iterations: int | None = None
    """steps of an epoch, with images drawn with replacement; by default one pass over the images;
    1000 in the code that the paper's schedule comes from"""
    lr: float = 0.1
    """learning rate, whatever the batch size"""
    nesterov: bool = True
    """Nesterov's form of the momentum"""
    decay: float = 5e-4
    """weight decay, on all parameters"""
    schedule: Schedule = "steps"
    """how the learning rate falls: at the milestones to 6, 1.2 and 0.24 % of the first (the
    paper's), along a cosine, or not at all"""
    milestones: tuple[int, ...] = (2, 4, 5)
    """three epochs at which `--schedule steps` lowers the learning rate; 20, 40 and 50 in the
    paper"""
    ways: int | None = None
    """classes of an episode; by default 5, of fashion-mnist all 4 that are new"""
    queries: int = 15
    """images to recognize, per class of an episode"""
    episodes: int = 600
    """episodes that the accuracy is the mean of; the same for every normalizer and seed"""
    transductive: bool = False
    """let normalizers use the statistics of each episode's images, labeled ones and queries
    together, at test time. This is another, easier task: queries are not recognized one by one"""
    image_size: int | None = None
    """pixels of the images of folders and archives, by default 84; those of fashion-mnist stay
    28"""
    channels_last: bool = True
    """channels_last memory format: faster on the CPU"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("activation", self.activation, get_args(Activation))
        checks.one_of("model", self.model, ("resnet12",))
        for name in ("queries", "episodes"):
            checks.positive_int(name, getattr(self, name))
        if self.iterations is not None:
            checks.positive_int("iterations", self.iterations)
        if self.ways is not None and self.ways < 2:
            raise ValueError(f"ways={self.ways} leaves nothing to decide; expected 2 or more")
        if self.schedule == "steps" and len(self.milestones) != len(self.falls):
            raise ValueError(
                f"milestones={self.milestones} are {len(self.milestones)} epochs; expected"
                f" {len(self.falls)}"
            )

    def without_effect(self) -> tuple[str, ...]:
        """Images of fashion-mnist keep their size."""
        size = ("image_size",) if self.data == "fashion-mnist" else ()
        return (*super().without_effect(), *size)

    @property
    def classes(self) -> int:
        """Classes of an episode."""
        return self.ways or (4 if self.data == "fashion-mnist" else 5)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """The paper's measures."""
        return tuple(Measure(f"test_{shots}", f"{shots}-shot") for shots in SHOTS)

    @property
    def falls(self) -> tuple[float, ...]:
        """0.1 falls to 0.006, 0.0012, 0.00024."""
        return (0.06, 0.012, 0.0024)

    @property
    def usual_groups(self) -> int | None:
        """256 for BGN: the paper does not say."""
        return 256 if self.norm == "bgn" else None

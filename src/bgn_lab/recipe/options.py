"""Options that some experiments have. Each is a recipe with a few more fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from bgn import checks
from bgn_lab import paper
from bgn_lab.recipe.part import in_range, positive_ints
from bgn_lab.recipe.recipe import Damaged, Recipe

if TYPE_CHECKING:
    from typing_extensions import Self

Schedule = Literal["cosine", "steps", "constant"]


@dataclass(frozen=True)
class FolderOptions(Recipe):
    """Options of reading images of folders."""

    group: ClassVar[str] = "data"

    image_size: int | None = None
    """pixels to which images of folders are cut; by default 224"""
    damaged: Damaged = "refuse"
    """image files that cannot be read: refuse names the file and stops, skip names it and goes on
    without it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("damaged", self.damaged, get_args(Damaged))
        positive_ints(self, "image_size")


@dataclass(frozen=True)
class DecodingOptions(FolderOptions):
    """Options of decoding images of folders while training goes on."""

    group: ClassVar[str] = "data"

    decoders: int = 2
    """processes that decode images of folders; data in memory needs none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, decoders=1024)


@dataclass(frozen=True)
class ValidationOptions(Recipe):
    """Images that choices are made on."""

    group: ClassVar[str] = "data"

    validation: float = 0.1
    """share of the training images that is held out for validation; choices are made on it, never
    on the test images"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.validation < 1:
            raise ValueError(
                f"validation={self.validation} is out of range; expected a share of the training"
                " images in [0, 1)"
            )


@dataclass(frozen=True)
class MedianOptions(Recipe):
    """Options of which epochs count."""

    group: ClassVar[str] = "training"

    median_of: int = 1
    """the test accuracy is the median over this many last epochs (5 in the paper's ImageNet
    tables)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_ints(self, "median_of")
        if self.median_of > self.epochs:
            raise ValueError(
                f"median_of={self.median_of} exceeds epochs={self.epochs}; expected at most that"
            )


@dataclass(frozen=True)
class StrideOptions(Recipe):
    """The network's first convolution."""

    group: ClassVar[str] = "model"

    stride: int | None = None
    """stride of the first convolution; by default 1 for small images (2 quarters the work), 2 for
    large ones"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_ints(self, "stride")


@dataclass(frozen=True)
class WidthOptions(Recipe):
    """The network's width."""

    group: ClassVar[str] = "model"

    width: int | None = None
    """channels of the first stage; by default 16 for small images, 64 for large ones"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_ints(self, "width")


@dataclass(frozen=True)
class MomentumOptions(Recipe):
    """SGD with momentum."""

    group: ClassVar[str] = "optimizer"

    momentum: float = 0.9
    """momentum of SGD"""

    def __post_init__(self) -> None:
        super().__post_init__()
        in_range(self, momentum=1)


@dataclass(frozen=True)
class SGDOptions(MomentumOptions):
    """SGD, with Nesterov's form of the momentum on request."""

    group: ClassVar[str] = "optimizer"

    nesterov: bool = False
    """Nesterov's form of the momentum"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True needs a momentum above 0; momentum=0")


@dataclass(frozen=True)
class ScheduleOptions(Recipe):
    """Options of how the learning rate changes."""

    group: ClassVar[str] = "optimizer"
    schedules: ClassVar[tuple[str, ...]] = get_args(Schedule)

    schedule: Schedule = "cosine"
    """how the learning rate falls: to zero along a cosine, by a tenth at each milestone, or not at
    all"""
    milestones: tuple[int, ...] = paper.MILESTONES
    """epochs at which `--schedule steps` divides the learning rate by ten"""
    warmup: float = 0.0
    """epochs over which the learning rate rises from zero"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("schedule", self.schedule, self.schedules)
        in_range(self, warmup=self.epochs)

    @property
    def falls(self) -> tuple[float, ...]:
        """Share of the learning rate that is left after each milestone."""
        return tuple(0.1 ** (k + 1) for k in range(len(self.milestones)))

    def for_epochs(self, epochs: int) -> Self:
        """The same with other epochs, warm-up and milestones in proportion.

        Milestones beyond the epochs, or without a schedule of steps, mean nothing and stay.
        """
        share = epochs / self.epochs
        milestones = self.milestones
        if self.schedule == "steps" and max(milestones, default=0) <= self.epochs:
            milestones = tuple(max(1, round(m * share)) for m in milestones)
        return replace(self, epochs=epochs, warmup=self.warmup * share, milestones=milestones)

    def without_effect(self) -> tuple[str, ...]:
        """Milestones are for steps."""
        unused = () if self.schedule == "steps" else ("milestones",)
        return (*super().without_effect(), *unused)


@dataclass(frozen=True)
class WorkerOptions(Recipe):
    """Several workers, each with batches of its own."""

    group: ClassVar[str] = "worker"

    simulate_workers: int = 1
    """workers in all (the paper's GPUs): each normalizes batches of its own, gradients are
    averaged; processes share them out"""
    images_per_pass: int | None = None
    """images that the workers of a process may normalize in one pass, each its own; by default as
    many as have 2^18 pixels on a CPU, 2^20 on other devices; results differ by rounding"""
    accumulate: int = 1
    """batches whose gradients are averaged for one step"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_ints(self, "simulate_workers", "images_per_pass", "accumulate")


@dataclass(frozen=True)
class AmpOptions(Recipe):
    """Mixed precision."""

    group: ClassVar[str] = "runtime"

    amp: bool = False
    """mixed precision: bfloat16 on the CPU, float16 with a scaled loss on CUDA devices"""


@dataclass(frozen=True)
class CompileOptions(Recipe):
    """Compiled networks."""

    group: ClassVar[str] = "runtime"

    compile: bool = False
    """torch.compile the network"""

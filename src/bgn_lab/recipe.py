"""A recipe: everything that decides what a training run does, written beside its results.

A recipe is composed of parts, small dataclasses with flat fields. ``Recipe`` has those that every
experiment needs; an experiment's recipe adds the parts that have an effect there, so that its help
lists no other options and nothing else can change the identity of a run.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import torch
import tyro

from bgn import checks
from bgn.factory import BATCH_WIDE, NAMES
from bgn.groups import AUTO, ENOUGH, PAPER
from bgn_lab import paper, partners
from bgn_lab.data import DATA_SETS

if TYPE_CHECKING:
    from typing_extensions import Self

Schedule = Literal["cosine", "steps", "constant"]
Damaged = Literal["refuse", "skip"]
GroupWord = Literal["paper", "auto"]
Center = Literal["group", "channel"]
DATA = tuple(DATA_SETS)
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
GROUPED = ("gn", "gbgn", "bgn")
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


def _positive_ints(recipe: Part, *names: str) -> None:
    """Refuse anything but positive ints; None where that is the default."""
    for name in names:
        if getattr(recipe, name) is not None:
            checks.positive_int(name, getattr(recipe, name))


def _in_range(recipe: Part, **most: float) -> None:
    for name, limit in most.items():
        if not 0 <= getattr(recipe, name) <= limit:
            raise ValueError(
                f"{name}={getattr(recipe, name)} is out of range; expected a number from 0 to"
                f" {limit}"
            )


def _above_zero(recipe: Part, *names: str) -> None:
    for name in names:
        if not 0 < getattr(recipe, name) < math.inf:
            raise ValueError(
                f"{name}={getattr(recipe, name)} is out of range; expected a number above 0"
            )


@dataclass(frozen=True)
class Part:
    """Some options of a recipe. Each part checks its own, after those of the parts below it."""

    group: ClassVar[str] = ""
    """Heading of the options in --help."""

    def __post_init__(self) -> None:
        """Refuse bad values."""

    def without_effect(self) -> tuple[str, ...]:
        """Fields that change nothing, given the others: they are no part of the identity."""
        return ()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True)
class DataOptions(Part):
    """Which images are trained on."""

    group: ClassVar[str] = "data"

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
        if self.data not in DATA and (path.is_dir() or path.suffix == ".npz"):
            if self.root is not None:
                raise ValueError(
                    f"data={self.data!r} is a path, root={str(self.root)!r} another;"
                    " expected one of them"
                )
            self._set("root", path)
            self._set("data", "folder" if path.is_dir() else "arrays")
        if self.data not in DATA and ("/" in self.data or path.suffix):
            raise ValueError(
                f"data={self.data!r} is neither a folder nor an .npz file; accepted too:"
                f" {', '.join(DATA)}"
            )
        if self.root is not None:
            self._set("root", self.root.resolve())
        _positive_ints(self, "limit")


@dataclass(frozen=True)
class NormOptions(Part):
    """Which normalizer, and its settings."""

    group: ClassVar[str] = "normalizer"

    norm: str = "bgn"
    """bn, in, ln, gn, pn, gbgn, bgn; or PACKAGE:CLASS, which is called with the channels; +ws,
    +renorm and +center behind it stand for --standardize, --renorm and --center channel"""
    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; paper: the paper's for the experiment and batch size (the default for
    bgn); auto (bgn): one group per channel where maps are large, fewer where they are small"""
    instances: int | None = None
    """instead of --groups for bgn: minimum number of values per statistic, by which each layer
    gets its G (--groups auto is --instances 16)"""
    norm_momentum: float = 0.1
    """weight of a batch in the running statistics"""
    norm_eps: float = 1e-5
    """added to variances"""
    standardize: bool = False
    """standardize the weights of the convolutions that a normalizer follows"""
    renorm: bool = False
    """correct training batches towards the running statistics (batch renormalization); bn, gbgn and
    bgn"""
    renorm_r_max: float = 3.0
    """largest correction of the scale by --renorm; 1 is none"""
    renorm_d_max: float = 5.0
    """largest correction of the mean by --renorm, in standard deviations; 0 is none"""
    renorm_warmup: int | None = None
    """steps over which the corrections of --renorm grow from none; by default a quarter of the
    run's, at most 1000; layers with pretrained statistics need none"""
    center: Center = "group"
    """what has a mean of its own: each group, or each channel (bgn, with groups of whole channels;
    the paper's G is changed to the nearest that fits)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        name, given = partners.split(self.norm)
        for option, value in {"norm": name, **given}.items():
            self._set(option, value)
        if ":" not in self.norm:
            checks.one_of("norm", self.norm, NAMES)
        groups: int | str | None = self.groups
        if isinstance(groups, str):
            checks.one_of("groups", groups, get_args(GroupWord))
        if groups is not None and self.norm not in GROUPED:
            raise ValueError(
                f"groups={groups} has no meaning for norm={self.norm!r}; expected none"
            )
        if groups == PAPER:
            self._set("groups", None)
        elif groups == AUTO:
            if self.norm != "bgn" or self.instances not in (None, ENOUGH):
                raise ValueError(
                    f"groups={AUTO!r} is for norm='bgn' without instances; norm={self.norm!r},"
                    f" instances={self.instances}"
                )
            self._set("groups", None)
            self._set("instances", ENOUGH)
        _positive_ints(self, "groups", "instances")
        if self.instances is not None and (self.norm != "bgn" or self.groups is not None):
            raise ValueError(
                f"instances={self.instances} is for norm='bgn' without groups;"
                f" norm={self.norm!r}, groups={self.groups}"
            )
        _in_range(self, norm_momentum=1.0)
        _above_zero(self, "norm_eps")
        self._check_running()

    def _check_running(self) -> None:
        """Refuse partners that the normalizer cannot have, and bad settings of them."""
        checks.one_of("center", self.center, get_args(Center))
        if self.center == "channel" and self.norm != "bgn":
            raise ValueError(
                f"center='channel' has no meaning for norm={self.norm!r}; expected norm='bgn', or"
                " center='group'"
            )
        if self.renorm and self.norm not in BATCH_WIDE:
            raise ValueError(
                f"renorm=True has no meaning for norm={self.norm!r}; expected one of"
                f" {', '.join(BATCH_WIDE)}, or renorm=False"
            )
        for name, least in {"renorm_r_max": 1, "renorm_d_max": 0, "renorm_warmup": 0}.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ValueError(
                    f"{name}={value} is out of range; expected a finite number of at least {least}"
                )

    def without_effect(self) -> tuple[str, ...]:
        """The momentum of running statistics where there are none; all of a class of one's own;
        partners that are off, so that runs from before there was a partner keep their keys."""
        unused = (*super().without_effect(), *partners.without(self))
        if ":" in self.norm:
            return (*unused, "norm_momentum", "norm_eps")
        tracked = self.norm in BATCH_WIDE
        return (*unused, *(() if tracked else ("norm_momentum",)))


@dataclass(frozen=True)
class ModelOptions(Part):
    """Which network."""

    group: ClassVar[str] = "model"

    model: str = ""
    """name of the network"""


@dataclass(frozen=True)
class OptimizerOptions(Part):
    """What all optimizers have."""

    group: ClassVar[str] = "optimizer"

    lr: float = 0.1
    """learning rate"""
    decay: float = paper.WEIGHT_DECAY
    """weight decay, on all parameters as in the paper"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_zero(self, "lr")
        _in_range(self, decay=math.inf)


@dataclass(frozen=True)
class RuntimeOptions(Part):
    """On what the run computes, and what it writes."""

    group: ClassVar[str] = "runtime"

    seed: int = 0
    """of the weights, the order of the images and the augmentation"""
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
        _in_range(self, seed=2**32 - 1)
        _above_zero(self, "save_every")


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
        _positive_ints(self, "batch_size", "epochs")

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
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }
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


@dataclass(frozen=True)
class FolderOptions(Recipe):
    """How images of folders are read."""

    group: ClassVar[str] = "data"

    image_size: int | None = None
    """pixels to which images of folders are cut; by default 224"""
    damaged: Damaged = "refuse"
    """image files that cannot be read: refuse names the file and stops, skip names it and goes on
    without it"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("damaged", self.damaged, get_args(Damaged))
        _positive_ints(self, "image_size")


@dataclass(frozen=True)
class DecodingOptions(FolderOptions):
    """How images of folders are decoded while training goes on."""

    group: ClassVar[str] = "data"

    decoders: int = 2
    """processes that decode images of folders; data in memory needs none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range(self, decoders=1024)


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
    """Which epochs count."""

    group: ClassVar[str] = "training"

    median_of: int = 1
    """the test accuracy is the median over this many last epochs (5 in the paper's ImageNet
    tables)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive_ints(self, "median_of")
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
        _positive_ints(self, "stride")


@dataclass(frozen=True)
class WidthOptions(Recipe):
    """The network's width."""

    group: ClassVar[str] = "model"

    width: int | None = None
    """channels of the first stage; by default 16 for small images, 64 for large ones"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _positive_ints(self, "width")


@dataclass(frozen=True)
class MomentumOptions(Recipe):
    """SGD with momentum."""

    group: ClassVar[str] = "optimizer"

    momentum: float = 0.9
    """momentum of SGD"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _in_range(self, momentum=1)


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
    """How the learning rate changes."""

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
        _in_range(self, warmup=self.epochs)

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
        _positive_ints(self, "simulate_workers", "images_per_pass", "accumulate")


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

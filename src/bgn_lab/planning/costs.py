"""From step times to hours: what a run takes, and what a grid takes in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from bgn import checks
from bgn_lab import paper
from bgn_lab.planning import traffic
from bgn_lab.planning.devices import Device
from bgn_lab.planning.grid import Run
from bgn_lab.planning.network import Network
from bgn_lab.planning.traffic import Link, Traffic

LR_IMAGES = (
    32  # images per step for which the laboratory's --lr is; then it is scaled in proportion
)
PAPER_LR = (
    paper.LEARNING_RATES[LR_IMAGES] / paper.WORKERS
)  # where all workers together see 32 images a step

FORMULAS = {
    "steps_per_epoch": "floor(images / (workers * batch_size))",
    "learning_rate": "lr * workers * batch_size / 32",
    "worker_step": "ratio(norm) * t(batch_size), t(b) as measured, else overhead + b / rate",
    "step": "workers / devices * worker_step + gradients + statistics if sync",
    "gradients, bytes": "2 (P - 1) / P * 4 * parameters",
    "statistics, bytes": "workers / devices * sum over layers of 4 * ((P - 1) * 3 G"
    " + 2 (P - 1) / P * 2 G)",
    "traffic, seconds": "collectives * latency + bytes / bandwidth",
    "evaluation": "ratio(norm) * (epochs * validation_images + median_of * test_images)"
    " / (devices * test_rate)",
    "hours": "(epochs * steps_per_epoch * step + evaluation) / 3600",
    "device_hours": "devices * hours",
    "cost": "device_hours * price",
    "images_per_second": "workers * batch_size / step",
    "decoding_cores": "ceil(images_per_second / decode_rate)",
}


@dataclass(frozen=True)
class Setting:
    """What all runs of a grid share."""

    network: Network = field(default_factory=Network)
    images: int = paper.TRAINING_IMAGES
    validation_images: int = 0  # after every epoch
    test_images: int = paper.TEST_IMAGES  # after the last median_of epochs
    epochs: int = paper.EPOCHS
    median_of: int = paper.MEDIAN_EPOCHS
    workers: int = paper.WORKERS  # W
    devices: int = paper.WORKERS  # P
    lr: float = PAPER_LR
    sync: bool = False
    link: Link = field(default_factory=Link)

    def __post_init__(self) -> None:
        for name in ("images", "test_images", "epochs", "median_of", "workers", "devices"):
            checks.positive_int(name, getattr(self, name))
        if self.validation_images < 0:
            raise ValueError(
                f"validation_images={self.validation_images} is negative; "
                "expected an int of at least 0"
            )
        if self.median_of > self.epochs:
            raise ValueError(
                f"median_of={self.median_of} exceeds epochs={self.epochs}; expected at most that"
            )
        if self.workers % self.devices:
            fitting = ", ".join(str(P) for P in range(1, self.workers + 1) if self.workers % P == 0)
            raise ValueError(
                f"devices={self.devices} does not divide workers={self.workers}; "
                f"accepted: {fitting}"
            )
        if not 0 < self.lr < float("inf"):
            raise ValueError(f"lr={self.lr} is out of range; expected a number above 0")

    @property
    def turns(self) -> int:
        """Workers that a device runs one after the other, W / P."""
        return self.workers // self.devices

    def rate(self, b: int) -> float:
        """The learning rate, in proportion to the images of a step.

        >>> Setting().rate(128), Setting().rate(2)
        (0.4, 0.00625)
        """
        return self.lr * self.workers * b / LR_IMAGES

    def steps(self, b: int) -> int:
        """Per epoch; what is left over waits for another epoch.

        >>> Setting().steps(128)
        1251
        """
        return self.images // (self.workers * b)

    def gradients(self) -> Traffic:
        """Traffic of the gradients in a step."""
        return traffic.gradients(self.network.parameters(), self.devices)

    def statistics(self, run: Run) -> Traffic:
        """Traffic of the statistics in a step, if they were synchronized."""
        return traffic.statistics(self.network.synchronized(run), self.devices, self.turns)


@dataclass(frozen=True)
class Cost:
    """What one run takes; in seconds where nothing else is said."""

    run: Run
    steps: int  # per epoch
    compute: float  # of a step
    gradients: float
    statistics: float  # of a step, counted only where synchronized
    step: float
    evaluation: float  # of the whole run
    hours: float
    device_hours: float
    price: float | None  # of the run
    images_per_second: float  # in training, on all devices
    exact: bool  # whether the step time is as measured or given


def cost(run: Run, device: Device, setting: Setting) -> Cost:
    """A run on P devices, W / P workers on each; formulas: :data:`FORMULAS`.

    >>> device = Device("x", rate=1000, overhead=0.022)
    >>> found = cost(Run("bn", None, 128), device, Setting())  # t = 22 + 128 ms, 1251 steps
    >>> round(found.hours, 2), round(1251 * 120 * 0.150 / 3600 + 5 * 50_000 / 8 / 3000 / 3600, 2)
    (6.26, 6.26)
    """
    b, P = run.batch_size, setting.devices
    steps = setting.steps(b)
    if not steps:
        raise ValueError(
            f"batch_sizes={b} times workers={setting.workers} exceeds images={setting.images}; "
            "expected at most that"
        )
    compute = setting.turns * device.step(b, run.norm)
    gradients = setting.gradients().seconds(setting.link)
    statistics = setting.statistics(run).seconds(setting.link)
    step = compute + gradients + (statistics if setting.sync else 0.0)
    tests = setting.epochs * setting.validation_images + setting.median_of * setting.test_images
    evaluation = tests * device.testing(run.norm) / P
    hours = (setting.epochs * steps * step + evaluation) / 3600
    return Cost(
        run, steps, compute, gradients, statistics, step, evaluation, hours, P * hours,
        None if device.price is None else P * hours * device.price, setting.workers * b / step,
        device.exact(b),
    )  # fmt: skip


@dataclass(frozen=True)
class Total:
    """What several runs take, one after the other on the same devices."""

    runs: int
    hours: float
    device_hours: float
    price: float | None
    exact: bool


def total(costs: Iterable[Cost]) -> Total:
    """The sum."""
    found = list(costs)
    prices = [one.price for one in found if one.price is not None]
    return Total(
        len(found), sum(one.hours for one in found), sum(one.device_hours for one in found),
        sum(prices) if len(prices) == len(found) and found else None,
        all(one.exact for one in found),
    )  # fmt: skip

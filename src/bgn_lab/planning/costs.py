"""From step times to hours: what a run takes, and what a grid takes in all."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from bgn_lab import partners
from bgn_lab.planning import traffic
from bgn_lab.planning.devices import TRAINING_TO_TEST, Device
from bgn_lab.planning.traffic import Link
from bgn_lab.recipe import Recipe


@dataclass(frozen=True)
class Setting:
    """What all runs of a grid share: sizes of the data and the network, and processes."""

    images: int
    """For training."""
    validation: int = 0
    """After every epoch."""
    test: int = 0
    """After each of the last epochs that the median is of."""
    parameters: int = 0
    processes: int = 1
    """P of each run, on a device each, which share its workers."""
    link: Link = field(default_factory=Link)


@dataclass(frozen=True)
class Cost:
    """What one run takes."""

    recipe: Recipe
    steps: int  # an epoch
    step: float  # seconds
    hours: float
    device_hours: float
    price: float | None
    exact: bool  # whether the step time is as measured or given

    @property
    def row(self) -> str:
        """As in the options of a comparison, such as bgn+ws."""
        return partners.name(self.recipe)

    @property
    def images_per_second(self) -> float:
        """In training, over all devices."""
        return self.recipe.batches * self.recipe.batch_size / self.step


def cost(recipe: Recipe, device: Device, setting: Setting) -> Cost:
    """A run on P devices, W / P of its workers on each.

    >>> from bgn_lab.experiments.classification.recipe import ClassificationRecipe
    >>> device = Device("x", rate=1000, overhead=0.022)  # 22 + 128 = 150 ms at 128 images
    >>> recipe = ClassificationRecipe(batch_size=128, epochs=120, simulate_workers=8)
    >>> found = cost(recipe, device, Setting(1_281_167, processes=8))
    >>> found.steps, round(found.hours, 3), round(120 * 1251 * 0.15 / 3600, 3)
    (1251, 6.255, 6.255)
    """
    b, P = recipe.batch_size, setting.processes
    steps = setting.images // (b * recipe.batches)
    if not steps:
        raise ValueError(
            f"batch_size={b} times {recipe.batches} batches a step exceeds the {setting.images:,}"
            " training images; expected at most that"
        )
    if recipe.simulate_workers % P:
        raise ValueError(
            f"processes={P} does not divide simulate_workers={recipe.simulate_workers}"
        )
    sent = traffic.gradients(setting.parameters, P).seconds(setting.link)
    turns = recipe.batches // P  # of a worker's forward and backward pass, on each device
    step = turns * device.step(b, partners.name(recipe)) + sent
    tests = recipe.epochs * setting.validation + recipe.median_of * setting.test
    evaluation = tests / (P * TRAINING_TO_TEST * device.rate)
    hours = (recipe.epochs * steps * step + evaluation) / 3600
    price = None if device.price is None else P * hours * device.price
    return Cost(recipe, steps, step, hours, P * hours, price, device.exact(b))


def makespan(hours: Iterable[float], jobs: int) -> float:
    """Hours until the last run is over, of which ``jobs`` go side by side, in their order.

    >>> makespan([3, 1, 1, 1], jobs=2)
    3
    """
    free: list[float] = [0] * jobs
    for own in hours:
        heapq.heappush(free, heapq.heappop(free) + own)
    return max(free)

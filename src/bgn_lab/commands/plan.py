"""``bgn plan``: what a comparison would take, before machines are rented."""

from __future__ import annotations

import inspect
import math
import time
from dataclasses import MISSING, dataclass, field, fields, make_dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bgn import checks
from bgn_lab import experiments
from bgn_lab.commands import compare, options, parsing
from bgn_lab.commands.compare import Compare
from bgn_lab.data.sources import Data
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.planning import devices, show
from bgn_lab.planning.costs import Setting, cost
from bgn_lab.planning.devices import Device
from bgn_lab.planning.measure import decoding, imagenet, measure
from bgn_lab.planning.traffic import Link
from bgn_lab.recipe import Recipe

NOT_PLANNED = ("jobs", "out", "engine")  # options of a comparison that say where it runs


@dataclass(frozen=True)
class PlanOptions:
    """Where the runs would run."""

    jobs: int = 1
    """runs side by side"""
    processes: int = 1
    """P of each run, on a device each, which share its workers; devices in all: jobs * processes"""
    times: str | None = None
    """the time of a step of one worker with BN, instead of measuring: NAME:rate=1000,overhead=20
    (images/s, ms) or NAME:2=25,32=55,128=150 (ms by batch size), perhaps with ratios of other
    normalizers, as in gn=1.1"""
    price: float | None = None
    """an hour of one device"""
    seconds: float = 50.0
    """for measuring, about"""
    latency_us: float | None = None
    """microseconds that a collective between the processes takes, however small"""
    bandwidth_gb: float | None = None
    """GB/s that a process sends to others"""
    decode_rate: float | None = None
    """images/s that one core decodes, of data in folders; measured unless given"""

    def __post_init__(self) -> None:
        checks.positive_int("jobs", self.jobs)
        checks.positive_int("processes", self.processes)
        for name in ("price", "seconds", "latency_us", "bandwidth_gb", "decode_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} is out of range; expected a number above 0")


@dataclass(frozen=True)
class Plan:
    """Say what a comparison would take: steps, hours, decoding cores and money.

    All options of `bgn compare` describe the runs; nothing is kept of them. Step times are measured
    here in about a minute, by real steps, or given with --times. Without --root, ImageNet is noise
    in its numbers and sizes.
    """

    comparison: Compare
    where: PlanOptions

    def __call__(self, console: Console) -> int:
        """Measure where needed, then count; the exit code."""
        recipes, where = self._recipes(), self.where
        data = self._data(recipes[0])
        setting = self._setting(recipes[0], data)
        device = devices.parse(where.times, where.price) if where.times else None
        experiments.task(recipes[0], data).check()
        for recipe in recipes:  # what does not fit is refused before anything is measured
            cost(recipe, device or Device("any", 1.0), setting)
        if device is None:
            device = replace(self._measured(console, recipes, data), price=where.price)
        rate = where.decode_rate
        if rate is None and recipes[0].data in ("imagenet", "folder"):
            rate = decoding(data.shape[-1])
        costs = [cost(recipe, device, setting) for recipe in recipes]
        console.print(show.sizes(device, costs, rate))
        console.print(show.sums(device, costs))
        for note in show.notes(device, setting, costs, rate):
            console.print(Text(note, style="dim"))
        if not where.times:
            console.print("\nThe same elsewhere, without measuring:")
            self._say(console, f"--times {device.spec}")
        console.print()
        console.print(Text(show.summary(device, setting, costs, where.jobs), style="bold"))
        return 0

    def _recipes(self) -> list[ClassificationRecipe]:
        grid, values = self.comparison.grid, self.comparison.values
        found: Any = grid.recipes(ClassificationRecipe, values)
        return list(found)

    def _data(self, recipe: Recipe) -> Data:
        if recipe.data == "imagenet" and recipe.root is None:
            return imagenet(recipe)
        self.comparison.experiment.check(self.comparison.preset, recipe)
        return experiments.task(recipe).data

    def _setting(self, recipe: Recipe, data: Data) -> Setting:
        where, parameters = self.where, 0
        if where.processes > 1:
            network = experiments.task(recipe, data).initial_network()
            parameters = sum(parameter.numel() for parameter in network.parameters())
        link = Link(
            None if where.latency_us is None else where.latency_us * 1e-6,
            None if where.bandwidth_gb is None else where.bandwidth_gb * 1e9,
        )
        counts = len(data.train), len(data.validation), len(data.test)
        return Setting(*counts, parameters, where.processes, link)

    def _measured(
        self, console: Console, recipes: list[ClassificationRecipe], data: Data
    ) -> Device:
        where = self.where
        columns = (
            TextColumn("measuring"), BarColumn(), TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )  # fmt: skip
        with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
            task, begin = progress.add_task("", total=where.seconds), time.perf_counter()

            def say(what: str) -> None:
                progress.update(task, completed=time.perf_counter() - begin, description=what)

            try:
                return measure(recipes, data, where.processes, where.seconds, say)
            except RuntimeError as error:
                problem = str(error).splitlines()[0]
                raise ValueError(
                    f"device={recipes[0].device!r} cannot take steps of"
                    f" {recipes[0].model}: {problem}"
                ) from error

    @staticmethod
    def _say(console: Console, text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def options_of(words: list[str]) -> type:
    """A dataclass with the options of ``bgn plan``: those of the comparison, and its own."""
    kind = compare.options_of(_compared(words))
    shared = [
        (own.name, own.type, own if own.default is MISSING else field(default=own.default))
        for own in fields(kind)
        if own.name not in NOT_PLANNED
    ]
    own = options.of(PlanOptions, words)
    where: Any = ("where", own, field(default_factory=own))
    return make_dataclass("Options", [*shared, where], frozen=True)


def parse(words: list[str], description: str = "") -> Plan:
    """The plan that the words after ``bgn plan`` describe.

    Args:
        words: options and their values.
        description: examples, for its help.
    """
    about = f"{inspect.cleandoc(Plan.__doc__ or '')}\n\n{description}"
    parsed: Any = parsing.parse(options_of(words), "plan", words, about)
    comparison = compare.parse(_compared(words))
    if comparison.experiment.recipe is not ClassificationRecipe:
        raise ValueError(
            f"experiment={comparison.experiment.name!r} is not planned for; expected classification"
        )
    return Plan(comparison, PlanOptions(**vars(parsed.where)))


def _compared(words: list[str]) -> list[str]:
    """The words without the plan's own options, each of which has one value."""
    own = {f"--{name}" for f in fields(PlanOptions) for name in (f.name, f.name.replace("_", "-"))}
    kept, words = [], list(words)
    while words:
        word = words.pop(0)
        if word.partition("=")[0] not in own:
            kept.append(word)
        elif "=" not in word and words:
            words.pop(0)
    return kept

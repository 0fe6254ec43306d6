"""``bgn run``: one training run of an experiment."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from bgn import checks
from bgn_lab import experiments, norms
from bgn_lab.commands import options, parsing
from bgn_lab.commands.searches import Searches
from bgn_lab.experiments.experiment import Choice, Experiment
from bgn_lab.recipe import Recipe
from bgn_lab.recipe.part import above_zero
from bgn_lab.system import signals
from bgn_lab.system.launch import launch
from bgn_lab.training import workers
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.result import Result
from bgn_lab.training.run import Watcher, run
from bgn_lab.training.task import Task

SHOWN = {  # of an epoch's metrics
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "validation_iou": "IoU",
    "validation_robust": "under attack",
    "choice_1": "1-shot of the classes for choosing",
    "test_accuracy": "test",
    "test_iou": "IoU",
    "test_iou_recalibrated": "recalibrated",
    "test_robust": "under attack",
    "test_1": "1-shot",
    "test_5": "5-shot",
}


@dataclass(frozen=True)
class Run:
    """One run of an experiment, as the command line describes it."""

    experiment: Experiment
    recipe: Recipe
    preset: str | None = None
    out: Path | None = None
    processes: int = 1
    restarts: int = 3
    lost_after: float = workers.LOST_AFTER

    def __call__(self, console: Console) -> int:
        """Train, print the result; the exit code."""
        checks.positive_int("processes", self.processes)
        if self.restarts < 0:
            raise ValueError(f"restarts={self.restarts} is negative; expected 0 or more")
        above_zero(self, "lost_after")
        if self.preset is not None:
            self.experiment.check(self.preset, self.recipe)
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise ValueError(f"out={self.out} is a file; expected a folder, or a name for one")
        recipe = self._shared(self.recipe)
        if self.processes > 1 and not workers.is_launched():
            with signals.handle_signals():
                if recipe.device == "cuda" and torch.cuda.device_count() < self.processes:
                    raise ValueError(
                        f"processes={self.processes} exceeds the {torch.cuda.device_count()}"
                        " devices; start fewer, with --simulate-workers for the rest"
                    )
                here = replace(recipe, device="cpu")  # devices are for the processes
                experiments.task(here).check()  # here, where an error is printed once
            return launch(sys.argv[1:], self.processes, self.restarts, console)
        with signals.handle_signals(), workers.connected(recipe, self.lost_after) as own:
            return self._run(console if own.is_first else Console(quiet=True), recipe, own)

    def _shared(self, recipe: Recipe) -> Recipe:
        """The recipe for the processes at hand."""
        wanted = workers.world_size() if workers.is_launched() else self.processes
        if wanted > 1 and "simulate_workers" not in {f.name for f in fields(recipe)}:
            raise ValueError(
                f"processes={wanted} has no meaning for experiment={recipe.experiment!r};"
                " expected 1"
            )
        return workers.resolve_workers(recipe, self.processes)

    def _run(self, console: Console, recipe: Recipe, own: workers.Workers) -> int:
        task = experiments.task(recipe)
        code: str = task.data.fingerprint
        folder = self.out or Path("runs") / recipe.key(code)
        title = f"{norms.label(recipe)}, batch {recipe.batch_size}{_workers(own)}: {folder}"
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        result = _train(console, task, folder, own)
        if result.reason:
            found = Text.assemble((result.status, "red"), f": {result.reason}")
        else:
            found = Text(f"{task.result_line(result)}, {result.seconds:.0f} s")
        console.print(found, soft_wrap=True)
        return 0


def options_of(name: str, words: list[str]) -> type:
    """A dataclass with the options of ``bgn run NAME``; some depend on the preset in the words."""
    experiment = experiments.get(name)
    preset = options.value_of("preset", words)
    default = experiment.recipe() if preset is None else experiment.preset(preset).recipe
    own = _own(experiment)
    choice = experiment.choices.get(preset or "")
    several = [] if choice is None else _several(choice)
    return make_dataclass("Options", [*own, *several, *options.groups(default)], frozen=True)


def _own(experiment: Experiment) -> list[tuple[str, Any, Any]]:
    """Options that are not the recipe's."""
    own: list[tuple[str, Any, Any]] = [
        ("preset", Annotated[str | None, _arg(_presets(experiment))], field(default=None)),
        ("out", Annotated[Path | None, _arg(OUT)], field(default=None)),
    ]
    if "simulate_workers" in {f.name for f in fields(experiment.recipe)}:
        own += [
            ("processes", Annotated[int, tyro.conf.arg(help=PROCESSES)], field(default=1)),
            ("restarts", Annotated[int, tyro.conf.arg(help=RESTARTS)], field(default=3)),
            (
                "lost_after",
                Annotated[float, tyro.conf.arg(help=LOST)],
                field(default=workers.LOST_AFTER),
            ),
        ]
    return own


def parse(name: str, words: list[str], description: str) -> Run | Searches:
    """The run, or the searches, that the words after ``bgn run NAME`` describe.

    Args:
        name: of the experiment.
        words: options and their values.
        description: of the command, for its help.
    """
    experiment = experiments.get(name)
    preset = options.value_of("preset", words)
    choice = experiment.choices.get(preset or "")
    kind = options_of(name, words)
    about = f"{experiment.recipe.__doc__}\n\n{description}"
    parsed: Any = parsing.parse(kind, f"run {name}", words, about)
    recipe = experiment.recipe(**options.values(parsed))
    if choice is not None:
        checks.positive_int("searches", parsed.searches)
        checks.positive_int("short_epochs", parsed.short_epochs)
        if parsed.searches > 1:
            choice = Choice(parsed.searches, choice.training, parsed.short_epochs)
            return Searches(experiment, recipe, choice, preset, parsed.jobs, parsed.out)
    own = {option: getattr(parsed, option) for option, _, _ in _own(experiment)}
    return Run(experiment, recipe, **own)


OUT = "folder of the run; by default runs/ and a name made from the options"
PROCESSES = "processes on this machine, which share the workers; for several machines see torchrun"
SEARCHES = (
    "searches with seeds --seed, --seed + 1, ...; with several, what each found is trained from"
    " scratch for a short time, and the best on validation images is kept: genotype.json and"
    " choice.json in --out"
)
SHORT = "with several --searches: epochs of each short training"
JOBS = "with several --searches: runs side by side; by default one per core, one on a GPU"
RESTARTS = "how often all processes begin again from the last checkpoint after one of them died"
LOST = "minutes without a word of a process that others wait for, after which it counts as dead"


def _several(choice: Choice) -> list[tuple[str, Any, Any]]:
    """Options of several searches."""
    count, short = tyro.conf.arg(help=SEARCHES), tyro.conf.arg(help=SHORT)
    return [
        ("searches", Annotated[int, count], field(default=choice.searches)),
        ("short_epochs", Annotated[int, short], field(default=choice.epochs)),
        ("jobs", Annotated[int | None, _arg(JOBS)], field(default=None)),
    ]


def _arg(help: str) -> Any:
    return tyro.conf.arg(help=help, help_behavior_hint="")


def _presets(experiment: Experiment) -> str:
    """Help of --preset."""
    found = []
    for name, preset in experiment.presets.items():
        needs = " and ".join(f"--{option}" for option in preset.needs)
        found.append(f"{name} ({preset.help}{f'; needs {needs}' if needs else ''})")
    return f"other defaults: {', '.join(found)}"


def _train(console: Console, task: Task, folder: Path, own: workers.Workers) -> Result:
    """The result, with a bar meanwhile."""
    columns = (
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", epoch="...", total=None)
        steps = 1

        def begin(epochs: int, per_epoch: int) -> None:
            nonlocal steps
            steps = per_epoch
            progress.update(bar, total=epochs * per_epoch)

        def step(epoch: int, done: int) -> None:
            progress.update(bar, completed=epoch * steps + done, epoch=epoch + 1)

        def epoch(metrics: Metrics) -> None:
            progress.console.print(line(metrics), highlight=False, soft_wrap=True)

        return run(task, folder, Watcher(begin, step, epoch), own)


def _workers(own: workers.Workers) -> str:
    """
    >>> _workers(workers.Workers()), _workers(workers.Workers(8, 2))
    ('', ' for each of 8 workers, on 2 processes')
    """
    if own.count == 1:
        return ""
    where = "one process" if own.processes == 1 else f"{own.processes} processes"
    return f" for each of {own.count} workers, on {where}"


def line(metrics: Metrics) -> str:
    """The metrics of an epoch in one line."""
    finite = math.isfinite(metrics.train_loss)
    loss = f"{metrics.train_loss:.4f}" if finite else "not finite"
    scores = [
        f"{name} {value:.2%}"
        for key, name in SHOWN.items()
        if (value := metrics.value(key)) is not None
    ]
    return "  ".join(
        [
            f"epoch {metrics.epoch:>3}",
            f"loss {loss}",
            *scores,
            f"{metrics.images_per_second:.0f} images/s",
        ]
    )

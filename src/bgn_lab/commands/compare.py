"""``bgn compare``: every normalizer at every batch size, side by side."""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.text import Text

from bgn_lab import experiments, partners
from bgn_lab.commands import options, parsing
from bgn_lab.commands.progress import RunsProgress, run_name
from bgn_lab.data.sources import Data
from bgn_lab.engines import engine
from bgn_lab.engines.engine import Broken, Engine, Outcome
from bgn_lab.engines.options import EngineOptions
from bgn_lab.experiments.experiment import Experiment
from bgn_lab.experiments.grid import Grid
from bgn_lab.recipe import Recipe, ScheduleOptions
from bgn_lab.report import text
from bgn_lab.report.collect import Run, read
from bgn_lab.report.write import check_out, write
from bgn_lab.system import files, signals
from bgn_lab.system.signals import STOPPED, Interrupted
from bgn_lab.training import record
from bgn_lab.training.record import RESULT
from bgn_lab.training.run import is_finished

RUNS = "runs"
JOBS = "runs side by side; by default one per core or GPU, on a cluster as many as it has room for"
EXPERIMENT, PRESET = "classification", "laptop"
# fields of a recipe that differ from run to run; options with other names set them here
COMPARED = ("norm", *partners.OPTIONS, "groups", "instances", "batch_size", "seed", "task", "adapt")


@dataclass(frozen=True)
class Compare:
    """Train a network with each normalizer at each batch size and compare the accuracies.

    All options of `bgn run EXPERIMENT` hold for every run. Runs are made side by side, one per
    core. Ctrl-C keeps what is done; run the same command to resume. Nothing is tuned on test
    images.
    """

    experiment: Experiment
    preset: str
    grid: Grid
    values: dict[str, Any]
    """Fields of the recipes that all runs share."""
    tasks: tuple[str, ...] = ()
    jobs: int | None = None
    out: Path = Path("runs/compare")
    engine: EngineOptions = field(default_factory=EngineOptions)

    def recipes(self) -> list[Recipe]:
        """All runs, those of the first seed first."""
        columns = self.experiment.columns(self.values["data"], self.tasks)
        found = list(self.grid.recipes(self.experiment.recipe, self.values, columns))
        for recipe in found:
            self.experiment.check(self.preset, recipe)
        return found

    def __call__(self, console: Console) -> int:
        """Run what is missing and write the report; the exit code."""
        with signals.handle_signals():
            wanted = self.recipes()
            check_out(self.out)
            data = self._check(wanted)
            recipes = {r.key(data[_task(r)].fingerprint): r for r in wanted}
            made = self.engine.make(self.jobs)
            folder = self.out / RUNS
            files.make_folder(folder)
            handle = files.lock(self.out)
            try:
                for key, recipe in recipes.items():
                    record.check_data(folder / key, data[_task(recipe)])
                return self._run(console, recipes, folder, made)
            finally:
                files.unlock(handle)

    def _check(self, recipes: list[Recipe]) -> dict[str | None, Data]:
        """Refuse what would fail after minutes; the data, by the task that has it."""
        found: dict[str | None, Data] = {}
        for recipe in recipes:
            if recipe.seed == 0:
                task = experiments.task(recipe, found.get(_task(recipe)))
                task.check()
                found[_task(recipe)] = task.data
        return found

    def _run(
        self, console: Console, recipes: dict[str, Recipe], folder: Path, where: Engine
    ) -> int:
        done = {key: read(folder / key) for key in recipes if (folder / key / RESULT).exists()}
        if done:
            lines = [f"{len(done)} of {len(recipes)} runs are there already, in {folder}"]
            abouts = [run.about for run in done.values()]
            for line in lines + record.other_versions(abouts, len(recipes)):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        started = time.perf_counter()
        failures: list[str] = []
        stopped, code = "", 0
        with RunsProgress(console, recipes, done) as progress:

            def on_outcome(outcome: Outcome) -> None:
                if outcome.result is None:
                    failures.append(f"{run_name(outcome.recipe)}: {outcome.error}")
                else:
                    done[outcome.key] = read(folder / outcome.key)
                progress.over(outcome)

            left = {key: r for key, r in recipes.items() if not is_finished(folder / key)}
            try:
                engine.run(where, left, folder, on_outcome, progress.refresh, progress.say)
            except Interrupted as stop:
                stopped, code = str(stop), stop.code
            except Broken as broken:
                stopped, code = f"{broken}. {STOPPED}", 1
        self._report(console, recipes, done, time.perf_counter() - started)
        for failure in failures:
            console.print(Text(f"failed: {failure}", style="red"), soft_wrap=True)
        for line in (where.note, stopped):
            if line:
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        return code or (1 if failures else 0)

    def _report(
        self, console: Console, recipes: dict[str, Recipe], done: dict[str, Run], seconds: float
    ) -> None:
        if not done:
            return
        for found in write([done[key] for key in recipes if key in done], self.out):
            text.show(console, found)
        spent = f"{seconds / 60:.1f} min this time"
        report = self.out / "report.html"
        line = f"\n{len(done)} of {len(recipes)} runs are done ({spent}); report: {report}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _task(recipe: Recipe) -> str | None:
    """Task of adaptation; tasks have images of their own."""
    task: str | None = getattr(recipe, "task", None)
    return task


def options_of(words: list[str]) -> type:
    """A dataclass with the options of ``bgn compare``, which depend on the experiment."""
    experiment, name = _experiment(words), options.value_of("preset", words) or PRESET
    grid = experiment.grid(name)
    default = experiment.preset(grid.preset).recipe
    own = _options(experiment, name, grid)
    shared = options.groups(default, without=COMPARED)
    where = ("engine", EngineOptions, field(default_factory=EngineOptions))
    return make_dataclass("Options", [*own, where, *shared], frozen=True)


def _experiment(words: list[str]) -> Experiment:
    experiment = experiments.get(options.value_of("experiment", words) or EXPERIMENT)
    if not experiment.comparable:
        raise ValueError(
            f"experiment={experiment.name!r} is a search; expected one that can be compared, such"
            " as nas-train for what searches find"
        )
    return experiment


def parse(words: list[str], description: str = "") -> Compare:
    """The comparison that the words after ``bgn compare`` describe.

    Args:
        words: options and their values.
        description: examples, for its help.
    """
    experiment = _experiment(words)
    grid = experiment.grid(options.value_of("preset", words) or PRESET)
    default = experiment.preset(grid.preset).recipe
    about = f"{inspect.cleandoc(Compare.__doc__ or '')}\n\n{description}"
    parsed: Any = parsing.parse(options_of(words), "compare", words, about)
    usual = {f.name: getattr(default, f.name) for f in fields(default) if f.init}
    values = usual | options.values(parsed)
    if values["data"] != default.data or values["root"] != default.root:
        shipped_only = experiment.preset(grid.preset).shipped_only
        without = {f.name: f.default for f in fields(default)}
        values |= {
            name: without[name] for name in shipped_only if not options.is_given(name, words)
        }
    if isinstance(default, ScheduleOptions) and not options.is_given("milestones", words):
        values["milestones"] = default.for_epochs(values["epochs"]).milestones
    groups = tuple(int(word) if word.isdecimal() else word for word in parsed.groups)
    wanted = Grid(grid.preset, parsed.norms, parsed.batch_sizes, groups, parsed.seeds)
    tasks = getattr(parsed, "tasks", ())
    return Compare(
        experiment, grid.preset, wanted, values, tasks, parsed.jobs, parsed.out, parsed.engine
    )


def _options(experiment: Experiment, preset: str, grid: Grid) -> list[tuple[str, Any, Any]]:
    """Options of the comparison itself, for ``dataclasses.make_dataclass``."""
    names = ", ".join(n for n in experiments.names() if experiments.get(n).comparable)
    grids = ", ".join(
        f"{name} ({experiment.grid(name).help or experiment.presets[name].help})"
        for name in {**experiment.presets, **experiment.grids}
    )
    sizes = "images that are normalized together, a column each"
    if not grid.batch_sizes:
        sizes += "; by default the preset's"
    kinds = (
        f"bn in ln gn pn gbgn bgn, or PACKAGE:CLASS; each may have partners: {partners.ACCEPTED}"
    )
    rows = "G of BGN, a row each: numbers, paper (the paper's G) or auto (by maps and batch size)"
    found: list[tuple[str, Any, Any, str]] = [
        ("experiment", str, experiment.name, names),
        ("preset", str, preset, f"other defaults: {grids}"),
        ("norms", tuple[str, ...], grid.norms, kinds),
        ("batch_sizes", tuple[int, ...], grid.batch_sizes, sizes),
        ("groups", tuple[str, ...], tuple(map(str, grid.groups)), rows),
        ("seeds", int, grid.seeds, "runs of each kind, with seeds 0, 1, ..."),
        ("jobs", int | None, None, JOBS),
        (
            "out",
            Path,
            Path("runs") / ("compare" if preset == PRESET else f"compare-{preset}"),
            "folder for the runs, results.json, table.md, pictures and report.html",
        ),
    ]
    if "task" in {f.name for f in fields(experiment.recipe)}:
        about = (
            "pairs of domains, a column each; by default Office-31's six, of fashion-mnist its two"
        )
        found.insert(4, ("tasks", tuple[str, ...], (), about))
    made = []
    for name, annotation, default, help in found:
        hint = "" if default in (None, ()) else None
        argument = tyro.conf.arg(help=help, help_behavior_hint=hint)
        made.append((name, Annotated[annotation, argument], field(default=default)))
    return made

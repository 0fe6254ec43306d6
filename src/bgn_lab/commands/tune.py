"""``bgn tune``: normalizer, G and learning rate for your data, by successive halving."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bgn import checks
from bgn.groups import AUTO
from bgn_lab import data as data_sets
from bgn_lab import experiments, norms, partners
from bgn_lab.data.sources import Data
from bgn_lab.engines import engine
from bgn_lab.engines.engine import Broken, Engine, NotStarted, Outcome
from bgn_lab.engines.options import EngineOptions
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.report.text import LONGEST_LABEL
from bgn_lab.system import files, signals
from bgn_lab.system.signals import STOPPED, Interrupted
from bgn_lab.training import record
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Result
from bgn_lab.training.run import is_finished

RUNS = "runs"

# each normalizer, and BGN from fine to coarse; BN first, which those that are BN here merge into.
# Standardized weights and means per channel make channels comparable, so those normalizers have
# them whose channels share statistics; renormalization is for statistics of few values.
CANDIDATES: tuple[dict[str, Any], ...] = (
    {"norm": "bn"}, {"norm": "bgn", "groups": AUTO}, {"norm": "bgn", "groups": 8},
    {"norm": "bgn", "groups": 1}, {"norm": "gn"}, {"norm": "in"}, {"norm": "ln"},
    {"norm": "bn+ws"}, {"norm": "gn+ws"}, {"norm": "bgn+ws", "groups": 8},
    {"norm": "bgn+ws", "groups": 1}, {"norm": "bgn+center", "groups": 1},
    {"norm": "bn+renorm"}, {"norm": "bgn+renorm", "groups": AUTO},
)  # fmt: skip
FACTORS = (0.3, 1.0, 3.0)  # of the learning rate
SEARCHED = ("norm", "groups", "instances", *partners.OPTIONS)


@dataclass(frozen=True)
class Standing:
    """A candidate after a round: mean validation accuracy, None if a run did not converge."""

    recipe: ClassificationRecipe
    accuracy: float | None


@dataclass(frozen=True)
class Tune:
    """Find the normalizer, its G and its learning rate for your data, on validation images alone.

    Successive halving: all candidates (BN, GN, IN, LN, BGN with several G; some with standardized
    weights, means per channel or batch renormalization; three learning rates each) are trained for
    a ninth of the epochs, the best third of them for a third, the best of those for all epochs with
    several seeds. Candidates that are the same in every layer are tried once. BN stays until the
    end for comparison. Ctrl-C keeps what is done; run the same command to resume. Test images are
    not evaluated.
    """

    recipe: Annotated[ClassificationRecipe, tyro.conf.arg(name="")] = field(
        default_factory=lambda: ClassificationRecipe(batch_size=2, epochs=9, validation=0.2),
        metadata={"without": ("seed",), "refused": SEARCHED},
    )
    seeds: int = 2
    """seeds of each candidate in the last round"""
    jobs: int | None = None
    """runs side by side; by default one per core or GPU, on a cluster as many as it has room for"""
    out: Path = Path("runs/tune")
    """folder for the runs"""
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __call__(self, console: Console) -> int:
        """Run the rounds; print the tables, the verdict and the line to paste."""
        with signals.handle_signals():
            first, data = self._check(console)
            made = self.engine.make(self.jobs)
            files.make_folder(self.out / RUNS)
            handle = files.lock(self.out)
            try:
                return self._rounds(console, first, data, made)
            except Interrupted as stop:
                console.print(str(stop))
                return stop.code
            except NotStarted as left:
                console.print(str(left), highlight=False, markup=False, soft_wrap=True)
                return 0
            except Broken as broken:
                console.print(f"{broken}. {STOPPED}", highlight=False, soft_wrap=True)
                return 1
            finally:
                files.unlock(handle)

    def _check(self, console: Console) -> tuple[list[ClassificationRecipe], Data]:
        """Refuse what would fail after minutes; the candidates that differ, and the data."""
        checks.positive_int("seeds", self.seeds)
        for name in SEARCHED:
            if getattr(self.recipe, name) != getattr(ClassificationRecipe(), name):
                raise ValueError(
                    f"{name}={getattr(self.recipe, name)!r} is what is searched for; "
                    f"expected no --{name.replace('_', '-')}"
                )
        data = data_sets.load(self.recipe)
        if len(data.validation) < 50:
            raise ValueError(
                f"validation={self.recipe.validation} leaves {len(data.validation)} images "
                "to judge by; expected at least 50"
            )
        kept, merged = distinct(list(self.first()), data)
        for line in merged:
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return kept, data

    def first(self) -> Iterator[ClassificationRecipe]:
        """All candidates with a ninth of the epochs."""
        epochs = max(1, self.recipe.epochs // 9)
        short = replace(self.recipe, median_of=1, test=False).for_epochs(epochs)
        for row in CANDIDATES:
            for factor in FACTORS:
                yield replace(short, **row, lr=float(f"{self.recipe.lr * factor:.3g}"))

    def _longer(self, recipe: ClassificationRecipe, epochs: int) -> ClassificationRecipe:
        """A candidate with the schedule of this many epochs."""
        own = self.recipe.for_epochs(epochs)
        return replace(recipe, epochs=epochs, warmup=own.warmup, milestones=own.milestones)

    def _rounds(
        self, console: Console, first: list[ClassificationRecipe], data: Data, where: Engine
    ) -> int:
        E, recipes, images = self.recipe.epochs, first, len(data.validation)
        # with few epochs there are fewer rounds
        rounds = list(dict.fromkeys((first[0].epochs, max(1, E // 3), E)))
        standings: list[Standing] = []
        for number, epochs in enumerate(rounds):
            seeds = range(self.seeds if epochs == E else 1)
            recipes = [self._longer(recipe, epochs) for recipe in recipes]
            title = f"round {number + 1}: {len(recipes)} candidates, {epochs} epochs"
            standings = self._round(console, title, recipes, seeds, data, where)
            console.print(_table(title, standings, images * len(seeds)))
            recipes = [s.recipe for s in survivors(standings)]
        if standings[0].accuracy is None:
            console.print("nothing converged: try other --lr or more --epochs")
            return 1
        chosen, why = verdict(standings, images * self.seeds)
        console.print(f"\n{why}\n", highlight=False)
        words = line(chosen.recipe, data.shape, experiments.task(chosen.recipe, data).steps())
        console.print(words, style="bold", highlight=False, markup=False, soft_wrap=True)
        return 0

    def _round(
        self,
        console: Console,
        title: str,
        recipes: list[ClassificationRecipe],
        seeds: range,
        data: Data,
        where: Engine,
    ) -> list[Standing]:
        """Candidates from best to worst."""
        folder = self.out / RUNS
        runs = {
            r.key(data.fingerprint): r
            for recipe in recipes
            for seed in seeds
            if (r := replace(recipe, seed=seed))
        }
        for key in runs:
            record.check_data(folder / key, data)
        done = [record.read_about(folder / key) for key in runs if is_finished(folder / key)]
        for words in record.other_versions(done, len(runs)):
            console.print(words, highlight=False, soft_wrap=True)
        found: dict[str, Result] = {}
        failures: list[str] = []
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(runs))

            def on_outcome(outcome: Outcome) -> None:
                if outcome.result is None:
                    failures.append(f"{norms.label(outcome.recipe)}: {outcome.error}")
                else:
                    found[outcome.key] = outcome.result
                progress.advance(task)

            engine.run(where, runs, folder, on_outcome, on_retry=progress.console.print)
        if failures:
            raise ValueError("; ".join(failures))
        if where.note:
            raise NotStarted(where.note)
        return sorted(
            (_standing(recipe, seeds, found, data.fingerprint) for recipe in recipes),
            key=lambda s: -(s.accuracy or 0),
        )


def distinct(
    recipes: list[ClassificationRecipe], data: Data
) -> tuple[list[ClassificationRecipe], list[str]]:
    """Recipes whose networks differ, and lines that say which others are the same as one of them.

    Two normalizers are the same if they have the same partners and act alike in every layer of this
    network at this batch size, such as BGN with a group per channel and BN.
    """
    kept: dict[Any, ClassificationRecipe] = {}
    merged: dict[str, None] = {}
    layers: dict[ClassificationRecipe, Any] = {}  # which do not depend on the learning rate
    for recipe in recipes:
        like = replace(recipe, lr=recipes[0].lr)
        if like not in layers:
            task = experiments.task(like, data)
            task.check()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                rows = task.description()
            alike = tuple((row.layer, row.acts_as, row.G) for row in rows)
            layers[like] = alike, partners.of(like)
        key = recipe.lr, layers[like]
        same = kept.setdefault(key, recipe)
        if same is not recipe:
            one, two = norms.label(recipe), norms.label(same)
            merged[f"{one} is the same as {two} in every layer here: tried once"] = None
    return list(kept.values()), list(merged)


def _standing(
    recipe: ClassificationRecipe, seeds: range, found: dict[str, Result], data: str
) -> Standing:
    results = [found[replace(recipe, seed=seed).key(data)] for seed in seeds]
    if any(r.status != FINISHED for r in results):
        return Standing(recipe, None)
    return Standing(recipe, sum(r.validation_accuracy or 0 for r in results) / len(results))


def survivors(standings: list[Standing]) -> list[Standing]:
    """The best third, and the best of BN without partners."""
    kept = standings[: -(-len(standings) // 3)]
    bn = next((s for s in standings if partners.name(s.recipe) == "bn"), None)
    return kept if bn is None or bn in kept else [*kept, bn]


def _error(accuracy: float, images: int) -> float:
    return math.sqrt(accuracy * (1 - accuracy) / images)


def _table(title: str, standings: list[Standing], images: int) -> Table:
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    made.add_column("normalizer", overflow="fold", max_width=LONGEST_LABEL)
    made.add_column("lr", justify="right")
    made.add_column("validation accuracy, %", justify="right")
    kept = survivors(standings)
    for standing in standings:
        a = standing.accuracy
        score = NOT_CONVERGED if a is None else f"{100 * a:.1f} ± {100 * _error(a, images):.1f}"
        label, rate = norms.label(standing.recipe), f"{standing.recipe.rate:.3g}"
        made.add_row(label, rate, score, style="" if standing in kept else "dim")
    return made


def verdict(standings: list[Standing], images: int) -> tuple[Standing, str]:
    """The candidate to use, and why: BN, unless another is ahead of it by more than chance."""
    best = standings[0]
    bn = next(s for s in standings if partners.name(s.recipe) == "bn")
    name = norms.label(best.recipe)
    if best is bn:
        return bn, "Keep BN: it is the best here."
    if best.accuracy is None or bn.accuracy is None:
        return best, f"Use {name}: it is the best, and BN did not converge."
    gain, noise = best.accuracy - bn.accuracy, 2 * _error(best.accuracy, images) * 2**0.5
    ahead = f"{name} is {100 * gain:+.1f} points from BN"
    chance = f"the {100 * noise:.1f} that chance would explain"
    if gain > noise:
        return best, f"Use {name}: {ahead}, more than {chance}."
    return bn, f"Keep BN: {ahead}, within {chance}."


def line(recipe: ClassificationRecipe, shape: tuple[int, ...], steps: int) -> str:
    """Line of code to paste, for a model with any normalizers and a training of so many steps."""
    rate = f"  # lr={recipe.rate:.3g} at {recipe.batch_size} images"
    own = ""
    if recipe.renorm:
        r = norms.renorm(recipe, steps)
        own += f", renorm=bgn.Renorm({r.r_max:g}, {r.d_max:g}, warmup={r.warmup})"
    own += ", standardize=True" if recipe.standardize else ""
    own += ', center="channel"' if recipe.center == "channel" else ""
    if recipe.norm == "bn" and recipe.renorm:
        return f'model = bgn.convert(model, num_groups="channels"{own}){rate}'
    if recipe.norm == "bn":
        return f"{'model = bgn.standardize(model)' if own else 'torch.nn.BatchNorm2d'}{rate}"
    if recipe.norm != "bgn":
        return f'model = bgn.convert(model, "{recipe.norm}"{own}){rate}'
    if isinstance(recipe.groups, int):
        return f"model = bgn.convert(model, num_groups={recipe.groups}{own}){rate}"
    size = f"batch_size={recipe.batch_size}, sample={shape}"
    return f'model = bgn.convert(model, num_groups="auto", {size}{own}){rate}'

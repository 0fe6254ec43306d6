"""``bgn run darts-search --searches 4``: several searches, of which the best is kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from bgn_lab import experiments, norms
from bgn_lab.data.sources import Data
from bgn_lab.engines import engine
from bgn_lab.engines.engine import Broken, Engine, Outcome
from bgn_lab.engines.options import EngineOptions
from bgn_lab.experiments.experiment import Choice, Experiment
from bgn_lab.experiments.nas import choice as choices
from bgn_lab.experiments.nas.choice import Candidate
from bgn_lab.experiments.nas.recipe import NasTrainRecipe, SearchRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.recipe import Recipe
from bgn_lab.system import files, signals
from bgn_lab.system.signals import STOPPED
from bgn_lab.training import record, workers
from bgn_lab.training.result import NOT_CONVERGED, Result
from bgn_lab.training.run import is_finished
from bgn_lab.training.task import ENOUGH

RUNS = "runs"


@dataclass(frozen=True)
class Searches:
    """Searches with several seeds, a short training of what each found, and the best of them."""

    experiment: Experiment
    recipe: Recipe
    """Recipe of the first search."""
    choice: Choice
    preset: str | None = None
    jobs: int | None = None
    out: Path | None = None

    @property
    def first(self) -> SearchRecipe:
        """Recipe of the first search."""
        assert isinstance(self.recipe, SearchRecipe)
        return self.recipe

    def __call__(self, console: Console) -> int:
        """Run what is missing and choose; the exit code."""
        with signals.handle_signals():
            if self.preset is not None:
                self.experiment.check(self.preset, self.recipe)
            if workers.is_launched() and workers.world_size() > 1:
                raise ValueError(
                    f"processes={workers.world_size()} has no meaning for"
                    f" experiment={self.experiment.name!r}; expected 1"
                )
            searched, trained = self._check()
            where = EngineOptions().make(self.jobs)
            folder = self.out or Path("runs") / f"{self.recipe.key(searched.fingerprint)}-best"
            files.make_folder(folder)
            handle = files.lock(folder)
            try:
                choices.claim(folder, self.first, searched.fingerprint)
                return self._run(console, folder, where, searched, trained)
            except Broken as broken:
                console.print(f"{broken}. {STOPPED}", highlight=False, soft_wrap=True)
                return 1
            finally:
                files.unlock(handle)

    def short(self, found: str) -> NasTrainRecipe:
        """The short training of a genotype."""
        return choices.short_training(self.first, self.choice.training, found, self.choice.epochs)

    def _check(self) -> tuple[Data, Data]:
        """Refuse what would fail after hours; the images of the searches and of the trainings."""
        search = experiments.task(self.recipe)
        search.check()
        if len(search.data.validation) < ENOUGH:
            raise ValueError(
                f"validation={self.first.validation} leaves {len(search.data.validation)} images"
                f" to choose by; expected at least {ENOUGH}"
            )
        training = experiments.task(self.short(choices.any_genotype(self.first)))
        training.check()
        return search.data, training.data

    def _run(
        self, console: Console, folder: Path, where: Engine, searched: Data, trained: Data
    ) -> int:
        seeds = range(self.recipe.seed, self.recipe.seed + self.choice.searches)
        searches: dict[str, Recipe] = {
            r.key(searched.fingerprint): r for s in seeds if (r := replace(self.recipe, seed=s))
        }
        title = f"{norms.label(self.recipe)}, batch {self.recipe.batch_size}: {folder}"
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        found = _side_by_side(console, "searches", searches, folder, where)
        candidates, trainings = self._candidates(searches, found, trained)
        results = _side_by_side(console, "short trainings", trainings, folder, where)
        candidates = [
            c if c.training is None else choices.judged(c, results[Path(c.training).name])
            for c in candidates
        ]
        epochs, images = self.choice.epochs, len(trained.validation)
        choices.write(folder, self.first, searched.fingerprint, epochs, candidates, images)
        title = f"\nwhat each search found, after {epochs} epochs, on {images} validation images:"
        console.print(title, highlight=False, soft_wrap=True)
        console.print(_table(candidates, images))
        chosen = choices.best(candidates)
        if chosen is None:
            console.print("nothing converged: try other --lr or more --short-epochs")
            return 1
        place = folder / GENOTYPE
        words = choices.command(self.first, self.choice.training, place)
        for line in (
            f"chosen: what the search with seed {chosen.seed} found, in {place}",
            f"to train it: {words}",
        ):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return 0

    def _candidates(
        self, searches: Mapping[str, Recipe], found: Mapping[str, Result], data: Data
    ) -> tuple[list[Candidate], dict[str, NasTrainRecipe]]:
        """What was found, and its short trainings; one training if two searches found the same."""
        candidates, trainings = [], {}
        for key, search in searches.items():
            genotype, training = found[key].details.get("genotype"), None
            if genotype is not None:
                short = self.short(choices.text(genotype))
                trainings[own := short.key(data.fingerprint)] = short
                training = f"{RUNS}/{own}"
            candidates.append(Candidate(search.seed, f"{RUNS}/{key}", genotype, training))
        return candidates, trainings


def _side_by_side(
    console: Console, title: str, runs: Mapping[str, Recipe], folder: Path, where: Engine
) -> dict[str, Result]:
    """Results by the name of the run's folder; runs that are finished are not repeated."""
    place = folder / RUNS
    files.make_folder(place)
    done = [record.read_about(place / key) for key in runs if is_finished(place / key)]
    lines = [f"{len(done)} of {len(runs)} {title} are there already"] if done else []
    for words in lines + record.other_versions(done, len(runs)):
        console.print(words, highlight=False, soft_wrap=True)
    found: dict[str, Result] = {}
    failures: list[str] = []
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(runs))

        def on_outcome(outcome: Outcome) -> None:
            progress.advance(task)
            if outcome.result is None:
                failures.append(f"{outcome.key}: {outcome.error}")
            else:
                found[outcome.key] = outcome.result
                line = f"{outcome.key}: {_result_line(outcome.result)}"
                progress.console.print(line, highlight=False, markup=False, soft_wrap=True)

        engine.run(where, runs, place, on_outcome)
    if failures:
        raise ValueError("; ".join(failures))
    return found


def _result_line(result: Result) -> str:
    if result.reason:
        return f"{result.status}: {result.reason}"
    return f"validation accuracy {result.validation_accuracy or 0:.2%}, {result.seconds:.0f} s"


def _table(candidates: list[Candidate], images: int) -> Table:
    """Candidates from best to worst."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("seed of the search", justify="right")
    made.add_column("validation accuracy, %", justify="right")
    chosen = choices.best(candidates)
    for c in sorted(candidates, key=lambda c: -(c.validation_accuracy or 0)):
        a = c.validation_accuracy
        score = NOT_CONVERGED
        if a is not None:
            score = f"{100 * a:.1f} ± {100 * math.sqrt(a * (1 - a) / images):.1f}"
        made.add_row(str(c.seed), score, style="bold" if c is chosen else "")
    return made

"""``bgn tune``: which normaliser, which G and which learning rate for one's own data, by short runs of which the better go on."""

from __future__ import annotations

import math
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
from bgn.groups import ENOUGH
from bgn_lab import data as data_sets
from bgn_lab import experiments, norms
from bgn_lab.data.sources import Data
from bgn_lab.engines import local
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.system import files
from bgn_lab.training.run import FINISHED, NOT_CONVERGED

# what is tried: each normaliser, and BGN from fine to coarse
CANDIDATES: tuple[dict[str, Any], ...] = (
    {"norm": "bn"}, {"norm": "bgn", "instances": ENOUGH}, {"norm": "bgn", "groups": 8}, {"norm": "bgn", "groups": 1},
    {"norm": "gn"}, {"norm": "in"}, {"norm": "ln"},
)  # fmt: skip
FACTORS = (0.3, 1.0, 3.0)  # of the learning rate


@dataclass(frozen=True)
class Standing:
    """A candidate after a round: accuracy on the validation images, mean over the seeds, None if a run did not converge."""

    recipe: ClassificationRecipe
    accuracy: float | None


@dataclass(frozen=True)
class Tune:
    """Find the normaliser, its G and its learning rate for your data, on validation images alone.

    Successive halving: all candidates (BN, GN, IN, LN, BGN with several G; three learning rates each) are trained for a ninth
    of the epochs, the best third of them for a third, the best of those for all epochs with several seeds. BN stays until the
    end for comparison. Ctrl-C keeps what is done; the same command goes on from there. Test images are not looked at.
    """

    recipe: Annotated[ClassificationRecipe, tyro.conf.arg(name="")] = field(
        default_factory=lambda: ClassificationRecipe(batch_size=2, epochs=9, validation=0.2)
    )
    seeds: int = 2
    """of the last round"""
    jobs: int | None = None
    """runs side by side; by default one per core on the CPU, one on other devices"""
    out: Path = Path("runs/tune")
    """folder for the runs"""

    def __call__(self, console: Console) -> int:
        """Rounds, table, the line to paste."""
        checks.positive_int("seeds", self.seeds)
        for name in ("norm", "groups", "instances"):
            if getattr(self.recipe, name) != getattr(ClassificationRecipe(), name):
                raise ValueError(
                    f"{name}={getattr(self.recipe, name)!r} is what is searched for; expected no --{name}"
                )
        data = data_sets.load(self.recipe)
        if len(data.validation) < 50:
            raise ValueError(
                f"validation={self.recipe.validation} leaves {len(data.validation)} images to judge by; expected at least 50"
            )
        first = list(self.first())
        for recipe in first:
            experiments.task(recipe, data).check()
        jobs = local.jobs_for(self.jobs, self.recipe.device)
        (self.out / "runs").mkdir(parents=True, exist_ok=True)
        handle = files.lock(self.out)
        try:
            return self._rounds(console, first, data, jobs)
        finally:
            files.unlock(handle)

    def first(self) -> Iterator[ClassificationRecipe]:
        """All candidates with a ninth of the epochs."""
        short = replace(
            self.recipe, epochs=max(1, self.recipe.epochs // 9), median_of=1, test=False
        )
        for row in CANDIDATES:
            for factor in FACTORS:
                yield replace(short, **row, lr=float(f"{self.recipe.lr * factor:.3g}"))

    def _rounds(
        self, console: Console, first: list[ClassificationRecipe], data: Data, jobs: int
    ) -> int:
        images, code = len(data.validation), getattr(data, "fingerprint", "")
        E, recipes = self.recipe.epochs, first
        rounds = list(
            dict.fromkeys((first[0].epochs, max(1, E // 3), E))
        )  # with few epochs there are fewer rounds
        standings: list[Standing] = []
        for number, epochs in enumerate(rounds):
            seeds = range(self.seeds if epochs == E else 1)
            recipes = [replace(recipe, epochs=epochs) for recipe in recipes]
            title = f"round {number + 1}: {len(recipes)} candidates, {epochs} epochs"
            found = self._round(console, title, recipes, seeds, jobs, code)
            if found is None:
                console.print(
                    "interrupted: what is done is kept, the same command goes on from there"
                )
                return 130
            standings = found
            console.print(_table(title, standings, images * len(seeds)))
            recipes = [s.recipe for s in survivors(standings)]
        best = standings[0]
        if best.accuracy is None:
            console.print("nothing converged: try other --lr or more --epochs")
            return 1
        console.print(f"\n{verdict(standings, images * self.seeds)}\n", highlight=False)
        console.print(
            line(best.recipe, data.shape),
            style="bold",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
        return 0

    def _round(
        self,
        console: Console,
        title: str,
        recipes: list[ClassificationRecipe],
        seeds: range,
        jobs: int,
        code: str,
    ) -> list[Standing] | None:
        """Candidates from best to worst; None after Ctrl-C."""
        folder = self.out / "runs"
        runs = {
            r.key(code): r
            for recipe in recipes
            for seed in seeds
            if (r := replace(recipe, seed=seed))
        }
        found: dict[str, dict[str, Any]] = {}
        failures: list[str] = []
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=len(runs))

            def hear(outcome: local.Outcome) -> None:
                if outcome.result is None:
                    failures.append(f"{norms.label(outcome.recipe)}: {outcome.error}")
                else:
                    found[outcome.key] = outcome.result
                progress.advance(task)

            try:
                local.run(runs, folder, jobs, hear, lambda: None)
            except KeyboardInterrupt:
                return None
        if failures:
            raise ValueError("; ".join(failures))
        return sorted(
            (_standing(recipe, seeds, found, code) for recipe in recipes),
            key=lambda s: -(s.accuracy or 0),
        )


def _standing(
    recipe: ClassificationRecipe, seeds: range, found: dict[str, dict[str, Any]], code: str
) -> Standing:
    results = [found[replace(recipe, seed=seed).key(code)] for seed in seeds]
    if any(r["status"] != FINISHED for r in results):
        return Standing(recipe, None)
    return Standing(recipe, sum(r["validation_accuracy"] for r in results) / len(results))


def survivors(standings: list[Standing]) -> list[Standing]:
    """The best third; the best of BN with them."""
    kept = standings[: -(-len(standings) // 3)]
    bn = next((s for s in standings if s.recipe.norm == "bn"), None)
    return kept if bn is None or bn in kept else [*kept, bn]


def _error(accuracy: float, images: int) -> float:
    return math.sqrt(accuracy * (1 - accuracy) / images)


def _table(title: str, standings: list[Standing], images: int) -> Table:
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    made.add_column("normaliser", no_wrap=True)
    made.add_column("lr", justify="right")
    made.add_column("validation accuracy, %", justify="right")
    kept = survivors(standings)
    for standing in standings:
        a = standing.accuracy
        said = NOT_CONVERGED if a is None else f"{100 * a:.1f} ± {100 * _error(a, images):.1f}"
        label, rate = norms.label(standing.recipe), f"{standing.recipe.rate:.3g}"
        made.add_row(label, rate, said, style="" if standing in kept else "dim")
    return made


def verdict(standings: list[Standing], images: int) -> str:
    """How the best stands to BN, in words."""
    best = standings[0]
    bn = next(s for s in standings if s.recipe.norm == "bn")
    if best is bn:
        return "BN is the best here: leave it as it is."
    if best.accuracy is None or bn.accuracy is None:
        return f"{norms.label(best.recipe)} is the best; BN did not converge."
    gain, noise = best.accuracy - bn.accuracy, 2 * _error(best.accuracy, images) * 2**0.5
    sure = "more than" if gain > noise else "within"
    return f"{norms.label(best.recipe)} is {100 * gain:+.1f} points from BN, {sure} the {100 * noise:.1f} that chance would explain."


def line(recipe: ClassificationRecipe, shape: tuple[int, ...]) -> str:
    """What to write in one's own code."""
    rate = f"  # lr={recipe.rate:.3g} at {recipe.batch_size} images"
    if recipe.norm == "bn":
        return f"torch.nn.BatchNorm2d{rate}"
    if recipe.norm != "bgn":
        return f'model = bgn.convert(model, "{recipe.norm}"){rate}'
    if recipe.groups is not None:
        return f"model = bgn.convert(model, num_groups={recipe.groups}){rate}"
    return f'model = bgn.convert(model, num_groups="auto", batch_size={recipe.batch_size}, sample={shape}){rate}'

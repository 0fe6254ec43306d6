"""Normalisers against batch sizes or tasks: mean and spread over seeds, and the difference to BN, seed by seed."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from bgn_lab import norms, paper
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.experiments.adversarial.recipe import AdversarialRecipe
from bgn_lab.experiments.fewshot.recipe import FewShotRecipe
from bgn_lab.paper import NORMALISERS
from bgn_lab.recipe import Measure, Recipe
from bgn_lab.report.cells import Cell, cell, count
from bgn_lab.report.collect import Run

BASELINE = "BN"
ACCURACY, MEAN = "test_accuracy", "mean"
# fields of a recipe; runs that agree in all others are compared
COMPARED = (
    "norm",
    "groups",
    "instances",
    "batch_size",
    "seed",
    "task",
    "adapt",
    "weights",
    "trust",
)
IN_TITLE = ("experiment", "data", "model", "width", "epochs", "simulate_workers")
WORDS = {
    "adversarial": "adversarial training",
    "fewshot": "few-shot learning",
    "adaptation": "domain adaptation",
    "nas-train": "a network of cells",
}


@dataclass(frozen=True)
class Column:
    """Of a table: what was measured at a place, which is a batch size or a task."""

    place: int | str
    measure: Measure
    title: str


@dataclass(frozen=True)
class Comparison:
    """Cells by (label, column) of runs that differ in nothing else but place and seed."""

    setting: Recipe  # of the runs, with the first normaliser, place and seed
    labels: tuple[str, ...]
    places: tuple[int | str, ...]
    cells: dict[tuple[str, Column], Cell]
    apart: str = ""  # what sets it apart from others of the same title

    @property
    def columns(self) -> tuple[Column, ...]:
        """By place, then by measure."""
        return tuple(dict.fromkeys(column for _, column in self.cells))

    @property
    def firsts(self) -> tuple[Column, ...]:
        """Of each place the first column, which has all its runs."""
        return tuple(
            {column.place: column for column in reversed(self.columns)}[place]
            for place in self.places
        )

    def at(self, label: str, place: int | str, key: str | None = None) -> Cell:
        """The cell of a row, for the most important measure unless another is named."""
        key = key or self.setting.measures[0].key
        column = next(c for c in self.columns if (c.place, c.measure.key) == (place, key))
        return self.cells[label, column]

    @property
    def by_batch_size(self) -> bool:
        """Whether columns are batch sizes, and nothing else."""
        return len(self.columns) == len(self.places) and all(
            isinstance(place, int) for place in self.places
        )

    @property
    def runs(self) -> list[Run]:
        """All of them, row by row."""
        return [
            run
            for label in self.labels
            for column in self.firsts
            for run in self.cells[label, column].runs
        ]

    @property
    def results(self) -> list[dict[str, Any]]:
        """Of all runs that are over."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def seeds(self) -> list[int]:
        """All that occur."""
        return sorted({run.recipe.seed for run in self.runs})

    def title(self) -> str:
        """What was run."""
        s = self.setting
        wide = "" if s.width is None else f" ({s.width} channels at first)"
        workers = "" if s.simulate_workers == 1 else f", {s.simulate_workers} workers"
        what = "" if s.experiment == "classification" else f"{WORDS[s.experiment]}, "
        return (
            f"{what}{s.model}{wide} on {_data(s)}, {count(s.epochs, 'epoch')}{workers}{self.apart}"
        )

    def reading(self) -> str:
        """How to read the table."""
        median = self.setting.median_of
        when = f" (median of the last {median} epochs)" if median > 1 else ""
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else "one seed"
        if any("episodes" in result for result in self.results):
            over, alone, pairs = (
                f", mean of {seeds} ± 95 % interval over the episodes",
                "",
                "episode by episode",
            )
        else:
            over = (
                f", mean ± standard deviation over {seeds}" if len(self.seeds) > 1 else f", {seeds}"
            )
            single = (
                any(c.accuracy and c.accuracy.count < 2 for c in self.cells.values())
                and len(self.seeds) > 1
            )
            alone, pairs = " (no ± where there is but one run)" if single else "", "seed by seed"
        beside = f", and the difference to {BASELINE}, {pairs}" if BASELINE in self.labels else ""
        best = "at its batch size" if self.by_batch_size else "of its column"
        return f"Test accuracy in %{when}{over}{alone}{beside}. Bold: the best {best}.{self._how()}"

    def _how(self) -> str:
        """What the measures of an experiment are."""
        s = self.setting
        if isinstance(s, AdversarialRecipe):
            how = f" Robust: under PGD of {s.test_steps} steps of {s.step_size:.4f} within {s.bound}, begun at the image."
            return how + (
                f" Stronger attacks: {s.strong_restarts} random starts, {s.strong_images} images."
                if s.strong_images
                else ""
            )
        if isinstance(s, AdaptationRecipe):
            how = "of all images of the target, which are also those that were adapted to, without their labels; last loop."
            alone = "Source only: learned from the source alone, and compared with BN of that kind."
            return f" Accuracies are {how} {alone} Nothing was chosen by the target's labels."
        if isinstance(s, FewShotRecipe):
            way = f" {s.classes}-way, {s.queries} queries of each class, {s.episodes} episodes, the same for all."
            return way + (
                " Transductive: normalisers saw the queries of an episode together."
                if s.transductive
                else ""
            )
        return ""

    def caveats(self) -> str:
        """What a reader needs in order to judge it."""
        over = self.results
        if not over:
            return "Nothing is finished yet."
        images, chance = over[0]["images"], over[0]["chance"]
        accuracies = [
            result["test_accuracy"] for result in over if result["test_accuracy"] is not None
        ]
        typical = statistics.median(accuracies) if accuracies else chance
        error = 100 * math.sqrt(typical * (1 - typical) / images["test"])
        sure = f": the standard error of one accuracy is about {error:.1f} points"
        if "episodes" in over[0]:  # which the interval is over, and so knows nothing of seeds
            sure = (
                f"; seeds of one normaliser are up to {self._between_seeds():.1f} points apart"
                if len(self.seeds) > 1
                else ""
            )
        if isinstance(self.setting, AdaptationRecipe):
            failed = "A run that learns the source no better than by guessing, or whose loss is not finite, did not converge."
            return f"Images: {self._sizes()}. {failed}"
        return (
            f"{images['train']:,} training and {images['test']:,} test images{sure}. "
            f"Guessing reaches {100 * chance:.1f} %; a run that ends at {100 * over[0]['floor']:.1f} % or "
            "less, or whose loss is not finite, did not converge."
        )

    def _between_seeds(self) -> float:
        """The largest difference of two runs of one normaliser, in percent."""
        values = [
            [
                run.result[column.measure.key]
                for run in found.runs
                if run.result is not None and not run.failed
            ]
            for (_, column), found in self.cells.items()
        ]
        return 100 * max((max(own) - min(own) for own in values if own), default=0.0)

    def _sizes(self) -> str:
        """Of the domains."""
        found: dict[str, int] = {}
        for result in self.results:
            found |= {
                result["source"]: result["images"]["train"],
                result["target"]: result["images"]["test"],
            }
        return ", ".join(f"{name} {images:,}" for name, images in sorted(found.items()))

    def caption(self) -> str:
        """Both."""
        return f"{self.reading()} {self.caveats()}"


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """One comparison for each group of runs that share everything but normaliser, groups, batch size or task, and seed."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    # unfinished runs come last: they join finished ones whatever images those saw, and make way for finished ones of their recipe
    for run in sorted(runs, key=lambda run: run.result is None):
        setting = _setting(run)
        own = next((own for other, own in groups if setting.items() <= other.items()), None)
        if own is None:
            groups.append((setting, own := []))
        own.append(run)
    return [
        _one(own, apart)
        for (_, own), apart in zip(groups, _apart([setting for setting, _ in groups]), strict=True)
    ]


def _apart(settings: list[dict[str, Any]]) -> list[str]:
    """What sets each apart from the others, beyond its title."""
    names = sorted({name for setting in settings for name in setting if name not in IN_TITLE})
    differing = [
        name
        for name in names
        if len({str(setting[name]) for setting in settings if name in setting}) > 1
    ]
    if len({setting["data"] for setting in settings}) == len(
        {(setting["data"], setting.get("root")) for setting in settings}
    ):
        differing = [
            name for name in differing if name != "root"
        ]  # the title has its last part, which tells enough
    return [
        "".join(f", {name} {_value(setting[name])}" for name in differing if name in setting)
        for setting in settings
    ]


def _setting(run: Run) -> dict[str, Any]:
    """What the results depend on, without what is compared."""
    found = {name: value for name, value in run.recipe.settings().items() if name not in COMPARED}
    found |= {"experiment": run.recipe.experiment, "data": _data(run.recipe)}
    if run.result is not None and isinstance(
        run.recipe.place, int
    ):  # tasks have images of their own
        found["images"] = run.result[
            "images"
        ]  # data sets of one name may differ, such as a part of it and the whole
    return found


def _data(recipe: Recipe) -> str:
    """The data set's name; that of the folder or file for people's own; both where it is in ImageNet's layout."""
    if recipe.data == "imagenet" and recipe.root is not None and recipe.root.name != "imagenet":
        return f"imagenet ({recipe.root.name})"
    return (
        recipe.root.name
        if recipe.root is not None and recipe.data in ("folder", "arrays")
        else recipe.data
    )


def _value(value: Any) -> str:
    if isinstance(value, str) and value.startswith("{"):  # a genotype
        return f"found {hashlib.sha256(value.encode()).hexdigest()[:6]}"
    return (
        " + ".join(f"{n:,} {part}" for part, n in value.items())
        if isinstance(value, dict)
        else str(value)
    )


def _order(run: Run) -> tuple[int, bool, int, int, str]:
    """The paper's order; BGN's own choice of G before others; variants behind what they are of."""
    r = run.recipe
    return (
        list(NORMALISERS).index(r.norm),
        r.groups is not None,
        r.instances or 0,
        r.groups or 0,
        r.variant,
    )


def _one(runs: list[Run], apart: str) -> Comparison:
    runs = sorted(runs, key=_order)
    rivals = {
        norms.label(run.recipe): ", ".join(filter(None, (BASELINE, run.recipe.variant)))
        for run in runs
    }
    labels = tuple(rivals)
    places = tuple(sorted({run.recipe.place for run in runs}, key=_rank))
    by_seed: dict[tuple[str, int | str], dict[int, Run]] = {
        (label, place): {} for label in labels for place in places
    }
    for run in runs:
        own = by_seed[norms.label(run.recipe), run.recipe.place]
        own.setdefault(run.recipe.seed, run)  # a recipe that was run twice counts once
    columns = _columns(runs[0].recipe.measures, (*places, *_average(by_seed, labels, places)))
    cells = {}
    for label, column in product(labels, columns):
        baseline = by_seed.get((rivals[label], column.place), {}) if label != rivals[label] else {}
        cells[label, column] = cell(by_seed[label, column.place], baseline, column.measure.key)
    for column in columns:
        means = {
            label: found.accuracy.mean
            for label in labels
            if (found := cells[label, column]).accuracy is not None and not found.failed
        }
        for label, mean in means.items():
            if round(mean, 1) == round(max(means.values()), 1):
                cells[label, column] = replace(cells[label, column], best=True)
    return Comparison(runs[0].recipe, labels, places, cells, apart)


def _accuracy(run: Run) -> float:
    assert run.result is not None
    accuracy: float = run.result[ACCURACY]
    return accuracy


def _average(
    by_seed: dict[tuple[str, int | str], dict[int, Run]],
    labels: tuple[str, ...],
    places: tuple[int | str, ...],
) -> list[str]:
    """Add the mean over tasks, of the seeds that finished all of them; what it is called."""
    tasks = [place for place in places if isinstance(place, str)]
    if len(tasks) < 2:
        return []
    for label in labels:
        own = [
            {
                seed: run
                for seed, run in by_seed[label, task].items()
                if run.result and not run.failed
            }
            for task in tasks
        ]
        by_seed[label, MEAN] = {
            seed: replace(
                run,
                folder=Path(MEAN),
                result={**(run.result or {}), ACCURACY: statistics.mean(values)},
            )
            for seed, run in own[0].items()
            if len(values := [_accuracy(found[seed]) for found in own if seed in found])
            == len(tasks)
        }
    return [MEAN]


def _rank(place: int | str) -> tuple[int, str]:
    """Batch sizes by size, tasks in the paper's order."""
    if isinstance(place, int):
        return place, ""
    known = list(paper.ADAPTATION_GROUPS)
    return known.index(place) if place in known else len(known), place


def named(place: int | str) -> str:
    """In words."""
    return f"batch {place}" if isinstance(place, int) else place


def _columns(measures: tuple[Measure, ...], places: tuple[int | str, ...]) -> list[Column]:
    """Named by what tells them apart.

    >>> [c.title for c in _columns((Measure("test_accuracy", "test accuracy"),), (2, 8))]
    ['batch 2', 'batch 8']
    >>> [c.title for c in _columns((Measure("a", "robust"), Measure("b", "clean")), (128,))]
    ['robust', 'clean']
    """
    made = []
    for place, measure in product(places, measures):
        parts = [measure.name] if len(measures) > 1 else []
        parts += [named(place)] if len(places) > 1 or not parts else []
        made.append(Column(place, measure, ", ".join(parts)))
    return made

"""A table of cells: normalizers by batch sizes or tasks, and the sentences about it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bgn_lab import experiments, paper
from bgn_lab.experiments.experiment import Experiment
from bgn_lab.recipe import Measure, Recipe
from bgn_lab.report.cells import Cell, count
from bgn_lab.report.collect import Run
from bgn_lab.system.printable import shorten
from bgn_lab.training.result import Result

BASELINE = "BN"
MEAN = "mean"  # over tasks
JUDGED = {"train": "training", "validation": "validation"}  # images, by their name in results
LONGEST_NAME = 120


@dataclass(frozen=True)
class Column:
    """What was measured at a place, which is a batch size or a task."""

    place: int | str
    measure: Measure
    title: str


@dataclass(frozen=True)
class Comparison:
    """Cells by (label, column) of runs that differ in nothing else but place and seed."""

    setting: Recipe  # of the runs, with the first normalizer, place and seed
    labels: tuple[str, ...]
    places: tuple[int | str, ...]
    cells: dict[tuple[str, Column], Cell]
    difference: str = ""  # from other comparisons of the same title
    weights: str = ""  # pretrained weights that differ from row to row
    rivals: Mapping[str, str] = field(default_factory=dict)
    """The row of BN that each row is compared with."""

    @property
    def experiment(self) -> Experiment:
        """Descriptor of its experiment."""
        return experiments.get(self.setting.experiment)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns by place, then by measure."""
        return tuple(dict.fromkeys(column for _, column in self.cells))

    @property
    def firsts(self) -> tuple[Column, ...]:
        """The first column of each place, which has all its runs."""
        found = {column.place: column for column in reversed(self.columns)}
        return tuple(found[place] for place in self.places)

    def at(self, label: str, place: int | str, key: str | None = None) -> Cell:
        """The cell of a row, for the most important measure unless another is named."""
        key = key or self.setting.measures[0].key
        column = next(c for c in self.columns if (c.place, c.measure.key) == (place, key))
        return self.cells[label, column]

    def printed(self, label: str, column: Column) -> float | None:
        """The paper's value for a cell, if it prints one."""
        runs = self.cells[label, column].runs
        if not runs or column.place not in self.places:
            return None
        return self.experiment.paper_value(runs[0].recipe, column.measure.name)

    @property
    def by_batch_size(self) -> bool:
        """Whether columns are batch sizes, and nothing else."""
        return len(self.columns) == len(self.places) and all(
            isinstance(place, int) for place in self.places
        )

    @property
    def is_imagenet(self) -> bool:
        """Whether the paper's table by batch size, of ImageNet, belongs beside it."""
        return paper.IMAGENET in self.experiment.paper_tables

    @property
    def runs(self) -> list[Run]:
        """All runs, row by row."""
        return [
            run
            for label in self.labels
            for column in self.firsts
            for run in self.cells[label, column].runs
        ]

    @property
    def results(self) -> list[Result]:
        """Results of all runs that are over."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def seeds(self) -> list[int]:
        """All seeds that occur."""
        return sorted({run.recipe.seed for run in self.runs})

    def title(self) -> str:
        """A title: what was run."""
        s = self.setting
        wide = "" if s.width is None else f" ({s.width} channels at first)"
        workers = "" if s.simulate_workers == 1 else f", {s.simulate_workers} workers"
        what = "" if s.experiment == "classification" else f"{self.experiment.title}, "
        model, epochs = shorten(s.model, LONGEST_NAME), count(s.epochs, "epoch")
        return f"{what}{model}{wide} on {data_name(s)}, {epochs}{workers}{self.difference}"

    @property
    def score(self) -> str:
        """What cells are, at the beginning of a sentence."""
        words = self.experiment.score
        return words[0].upper() + words[1:]

    def reading(self) -> str:
        """How to read the table."""
        median = self.setting.median_of
        when = f" (median of the last {median} epochs)" if median > 1 else ""
        return " ".join(
            filter(
                None,
                (
                    f"{self.score} in %{when}, {self._over()}.",
                    self._differences(),
                    "Accuracies of runs that did not converge are marked, and in no other average."
                    if any(cell.failed for cell in self.cells.values())
                    else "",
                    self.experiment.explain(self.setting),
                    self.weights.strip(),
                ),
            )
        )

    def _over(self) -> str:
        """What the numbers of a cell are."""
        several = len(self.seeds) > 1
        seeds = f"{len(self.seeds)} seeds" if several else "one seed"
        if not several:
            return seeds
        alone = any(c.accuracy and c.accuracy.count < 2 for c in self.cells.values())
        single = " (no ± where there is but one run)" if alone else ""
        return f"mean ± standard deviation over {seeds}{single}"

    def _differences(self) -> str:
        """What the differences are, and which are marked."""
        if not self.rivals:
            return ""
        found = [cell.difference for cell in self.cells.values() if cell.difference]
        several = any(one.count > 1 for one in found)
        marked = any(cell.standing for cell in self.cells.values())
        half = ", ± half of their 95 % interval (Student's t)" if several else ""
        shown = " They are marked if their interval excludes zero." if marked else ""
        return f"Differences are to {BASELINE}, seed by seed{half}.{shown}"

    def caveats(self) -> str:
        """What a reader needs in order to judge it."""
        over = self.results
        if not over:
            return "Nothing is finished yet."
        if self.experiment.caveats is not None:
            return self.experiment.caveats(self)
        if any(result.source is not None for result in over):
            return (
                f"Images: {self._sizes()}. A run that learns the source no better than by guessing,"
                " or whose loss is not finite, did not converge."
            )
        images, chance = over[0].images, over[0].chance
        judged = JUDGED.get(over[0].judged, "judged")
        over_what, error = _standard_error(over, chance)
        sure = f"the standard error of one accuracy{over_what} is about {error:.1f} points"
        return (
            f"{images.train:,} training and {images.test:,} test images: {sure}. "
            f"Guessing reaches {100 * chance:.1f} %; a run that ends at "
            f"{100 * over[0].floor:.1f} % or less of the {judged} images, "
            "or whose loss is not finite, did not converge."
        )

    def facts(self) -> list[str]:
        """Numbers of runs, seeds and images, and the time that training took."""
        over = self.results
        if not over:
            return []
        seconds = sum(result.seconds for result in over)
        hours = f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{seconds / 60:.0f} min"
        found = [count(len(over), "run"), count(len(self.seeds), "seed")]
        if over[0].source is None:  # domains differ
            images = over[0].images
            found += [f"{images.train:,} training images", f"{images.test:,} test images"]
        return [*found, f"{hours} of training"]

    def _sizes(self) -> str:
        """Images of the domains."""
        found: dict[str, int] = {}
        for result in self.results:
            domains = {result.source: result.images.train, result.target: result.images.test}
            found |= {name: images for name, images in domains.items() if name is not None}
        return ", ".join(f"{name} {images:,}" for name, images in sorted(found.items()))

    def caption(self) -> str:
        """How to read and how to judge it."""
        return f"{self.reading()} {self.caveats()}"


def _standard_error(results: Sequence[Result], chance: float) -> tuple[str, float]:
    """What a typical accuracy is an average over, if not the test images; its error in percent."""
    by_episode = [own for r in results for own in r.episodes.values() if own]
    if by_episode:
        errors = (statistics.stdev(own) / len(own) ** 0.5 for own in by_episode if len(own) > 1)
        return f" over {len(by_episode[0])} episodes", 100 * statistics.median([*errors] or [0.0])
    accuracies = [a for result in results if (a := result.test_accuracy) is not None]
    typical = statistics.median(accuracies) if accuracies else chance
    return "", 100 * math.sqrt(typical * (1 - typical) / results[0].images.test)


def data_name(recipe: Recipe) -> str:
    """Name of the data set, with the name of the folder or file for people's own.

    A folder in ImageNet's layout has both.
    """
    name = recipe.data
    if recipe.data == "imagenet" and recipe.root is not None and recipe.root.name != "imagenet":
        name = f"imagenet ({recipe.root.name})"
    elif recipe.root is not None and recipe.data in ("folder", "arrays"):
        name = recipe.root.name
    return shorten(name, LONGEST_NAME)


def named(place: int | str) -> str:
    """A place in words."""
    return f"batch {place}" if isinstance(place, int) else shorten(place, LONGEST_NAME)

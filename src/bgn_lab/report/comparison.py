"""Normalisers against batch sizes: mean and spread over seeds, and the difference to BN, seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from bgn_lab import norms
from bgn_lab.paper import NORMALISERS
from bgn_lab.recipe import Recipe
from bgn_lab.report.cells import Cell, cell, count
from bgn_lab.report.collect import Run

BASELINE = "BN"
COMPARED = ("norm", "groups", "instances", "batch_size", "seed")  # fields of a recipe; runs that agree in all others are compared
IN_TITLE = ("data", "model", "width", "epochs", "simulate_workers")


@dataclass(frozen=True)
class Comparison:
    """Cells by (label, batch size) of runs that differ in nothing else but the seed."""

    setting: Recipe  # of the runs, with the first normaliser, batch size and seed
    labels: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    cells: dict[tuple[str, int], Cell]
    apart: str = ""  # what sets it apart from others of the same title

    @property
    def runs(self) -> list[Run]:
        """All of them, row by row."""
        return [run for own in self.cells.values() for run in own.runs]

    @property
    def results(self) -> list[dict[str, Any]]:
        """Of all runs that are over."""
        return [result for own in self.cells.values() for result in own.results]

    @property
    def seeds(self) -> list[int]:
        """All that occur."""
        return sorted({run.recipe.seed for run in self.runs})

    def title(self) -> str:
        """What was run."""
        s = self.setting
        wide = "" if s.width is None else f" ({s.width} channels at first)"
        workers = "" if s.simulate_workers == 1 else f", {s.simulate_workers} workers"
        return f"{s.model}{wide} on {_data(s)}, {count(s.epochs, 'epoch')}{workers}{self.apart}"

    def reading(self) -> str:
        """How to read the table."""
        median = self.setting.median_of
        when = f" (median of the last {median} epochs)" if median > 1 else ""
        over = f", mean ± standard deviation over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ", one seed"
        single = any(c.accuracy and c.accuracy.count < 2 for c in self.cells.values()) and len(self.seeds) > 1
        alone = " (no ± where there is but one run)" if single else ""
        beside = f", and the difference to {BASELINE}, seed by seed" if BASELINE in self.labels else ""
        return f"Test accuracy in %{when}{over}{alone}{beside}. Bold: the best at its batch size."

    def caveats(self) -> str:
        """What a reader needs in order to judge it."""
        over = self.results
        if not over:
            return "Nothing is finished yet."
        images, chance = over[0]["images"], over[0]["chance"]
        accuracies = [result["test_accuracy"] for result in over if result["test_accuracy"] is not None]
        typical = statistics.median(accuracies) if accuracies else chance
        error = 100 * math.sqrt(typical * (1 - typical) / images["test"])
        return (
            f"{images['train']:,} training and {images['test']:,} test images: the standard error of one accuracy is about "
            f"{error:.1f} points. Guessing reaches {100 * chance:.1f} %; a run that ends at {100 * over[0]['floor']:.1f} % or "
            "less, or whose loss is not finite, did not converge."
        )

    def caption(self) -> str:
        """Both."""
        return f"{self.reading()} {self.caveats()}"


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """One comparison for each group of runs that share everything but normaliser, groups, batch size and seed."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    # unfinished runs come last: they join finished ones whatever images those saw, and make way for finished ones of their recipe
    for run in sorted(runs, key=lambda run: run.result is None):
        setting = _setting(run)
        own = next((own for other, own in groups if setting.items() <= other.items()), None)
        if own is None:
            groups.append((setting, own := []))
        own.append(run)
    return [_one(own, apart) for (_, own), apart in zip(groups, _apart([setting for setting, _ in groups]), strict=True)]


def _apart(settings: list[dict[str, Any]]) -> list[str]:
    """What sets each apart from the others, beyond its title."""
    names = sorted({name for setting in settings for name in setting if name not in IN_TITLE})
    differing = [name for name in names if len({str(setting[name]) for setting in settings if name in setting}) > 1]
    if len({setting["data"] for setting in settings}) == len({(setting["data"], setting.get("root")) for setting in settings}):
        differing = [name for name in differing if name != "root"]  # the title has its last part, which tells enough
    return ["".join(f", {name} {_value(setting[name])}" for name in differing if name in setting) for setting in settings]


def _setting(run: Run) -> dict[str, Any]:
    """What the results depend on, without what is compared."""
    found = {name: value for name, value in run.recipe.identity().items() if name not in COMPARED}
    found["data"] = _data(run.recipe)
    if run.result is not None:  # data sets of one name may differ, such as a part of it and the whole
        found["images"] = run.result["images"]
    return found


def _data(recipe: Recipe) -> str:
    """The data set's name; that of the folder or file for people's own; both where it is in ImageNet's layout."""
    if recipe.data == "imagenet" and recipe.root is not None and recipe.root.name != "imagenet":
        return f"imagenet ({recipe.root.name})"
    return recipe.root.name if recipe.root is not None and recipe.data in ("folder", "arrays") else recipe.data


def _value(value: Any) -> str:
    return " + ".join(f"{n:,} {part}" for part, n in value.items()) if isinstance(value, dict) else str(value)


def _order(run: Run) -> tuple[int, bool, int, int]:
    """The paper's order; BGN's own choice of G before others."""
    r = run.recipe
    return list(NORMALISERS).index(r.norm), r.groups is not None, r.instances or 0, r.groups or 0


def _one(runs: list[Run], apart: str) -> Comparison:
    runs = sorted(runs, key=_order)
    labels = tuple(dict.fromkeys(norms.label(run.recipe) for run in runs))
    batch_sizes = tuple(sorted({run.recipe.batch_size for run in runs}))
    by_seed: dict[tuple[str, int], dict[int, Run]] = {(label, size): {} for label in labels for size in batch_sizes}
    for run in runs:
        own = by_seed[norms.label(run.recipe), run.recipe.batch_size]
        own.setdefault(run.recipe.seed, run)  # a recipe that was run twice counts once
    cells = {}
    for (label, size), own in by_seed.items():
        baseline = by_seed.get((BASELINE, size), {}) if label != BASELINE else {}
        cells[label, size] = cell(own, baseline)
    for size in batch_sizes:
        means = {
            label: a.mean for label in labels if (a := cells[label, size].accuracy) is not None and not cells[label, size].failed
        }
        for label, mean in means.items():
            if round(mean, 1) == round(max(means.values()), 1):
                cells[label, size] = replace(cells[label, size], best=True)
    return Comparison(runs[0].recipe, labels, batch_sizes, cells, apart)

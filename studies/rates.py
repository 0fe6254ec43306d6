"""Learning rates, chosen on validation images: every rate once, then more seeds at the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.report.collect import Run, read
from studies.runner import folder_name


def each(
    recipes: Iterable[ClassificationRecipe], rates: Sequence[float]
) -> Iterator[ClassificationRecipe]:
    """Every recipe with every learning rate; all recipes at one rate before the next rate."""
    recipes = list(recipes)
    for rate in rates:
        for recipe in recipes:
            yield replace(recipe, lr=rate)


def runs(recipe: ClassificationRecipe, rates: Sequence[float], folder: Path) -> list[Run]:
    """Finished runs of a recipe, one for each rate that was tried."""
    paths = (folder / folder_name(replace(recipe, lr=rate)) for rate in rates)
    found = (read(path) for path in paths if (path / "result.json").exists())
    return [run for run in found if run.result is not None]


def score(run: Run) -> float:
    """Validation accuracy; 0 where the run did not converge."""
    if run.result is None or run.failed:
        return 0.0
    return run.result.validation_accuracy or 0.0


def best(
    recipe: ClassificationRecipe, rates: Sequence[float], folder: Path
) -> ClassificationRecipe | None:
    """The recipe at the rate that is best on validation images; None until all were tried."""
    found = runs(recipe, rates, folder)
    if len(found) < len(rates):
        return None
    return replace(recipe, lr=max(found, key=score).recipe.lr)

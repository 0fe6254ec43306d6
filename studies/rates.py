"""Learning rates, chosen on validation images: every rate once, then more seeds at the best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.report.collect import Run
from studies.ledger import Ledger


def each(
    recipes: Iterable[ClassificationRecipe], rates: Sequence[float]
) -> Iterator[ClassificationRecipe]:
    """Every recipe with every learning rate; all recipes at one rate before the next rate."""
    recipes = list(recipes)
    for rate in rates:
        for recipe in recipes:
            yield replace(recipe, lr=rate)


def runs(recipe: ClassificationRecipe, rates: Sequence[float], ledger: Ledger) -> list[Run]:
    """Finished runs of a recipe, one for each rate that was tried."""
    found = (ledger.get(replace(recipe, lr=rate)) for rate in rates)
    return [run for run in found if run is not None]


def score(run: Run) -> float:
    """Validation accuracy; 0 where the run did not converge."""
    if run.result is None or run.failed:
        return 0.0
    return run.result.validation_accuracy or 0.0


def best(
    recipe: ClassificationRecipe, rates: Sequence[float], ledger: Ledger
) -> ClassificationRecipe | None:
    """The recipe at the rate that is best on validation images; None until all were tried."""
    found = runs(recipe, rates, ledger)
    if len(found) < len(rates):
        return None
    return replace(recipe, lr=max(found, key=score).recipe.lr)

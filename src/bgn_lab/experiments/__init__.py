"""The experiments by name: a recipe and a task each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bgn import checks
from bgn_lab.data.sources import Data
from bgn_lab.experiments.adaptation.task import Adaptation, AdaptationRecipe
from bgn_lab.experiments.adversarial.task import Adversarial, AdversarialRecipe
from bgn_lab.experiments.classification.task import Classification
from bgn_lab.experiments.fewshot.task import FewShot, FewShotRecipe
from bgn_lab.experiments.nas.darts import Darts, DartsRecipe
from bgn_lab.experiments.nas.manas import Manas, ManasRecipe
from bgn_lab.experiments.nas.train import NasTrain, NasTrainRecipe
from bgn_lab.recipe import Recipe
from bgn_lab.training import run as running
from bgn_lab.training.task import Task
from bgn_lab.training.workers import Workers

EXPERIMENTS: dict[str, tuple[type[Recipe], type[Task]]] = {
    "classification": (Recipe, Classification),
    "adversarial": (AdversarialRecipe, Adversarial),
    "fewshot": (FewShotRecipe, FewShot),
    "adaptation": (AdaptationRecipe, Adaptation),
    "darts-search": (DartsRecipe, Darts),
    "manas-search": (ManasRecipe, Manas),
    "nas-train": (NasTrainRecipe, NasTrain),
}


def task(recipe: Recipe, data: Data | None = None) -> Task:
    """The recipe's, with its data, which is loaded unless given."""
    kind = EXPERIMENTS[recipe.experiment][1]
    return kind(recipe, kind.load(recipe) if data is None else data)


def run(
    recipe: Recipe,
    folder: Path,
    watcher: running.Watcher | None = None,
    workers: Workers | None = None,
) -> dict[str, Any]:
    """Train, or go on with training, in a folder of its own; the result. See :func:`bgn_lab.training.run.run`."""
    return running.run(task(recipe), folder, watcher, workers)


def recipe(values: dict[str, Any]) -> Recipe:
    """From plain values, the inverse of :meth:`Recipe.to_json`."""
    name = values.get("experiment", "classification")
    checks.one_of("experiment", name, tuple(EXPERIMENTS))
    return EXPERIMENTS[name][0].from_json(values)

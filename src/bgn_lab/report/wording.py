"""What a report says about each experiment: its name, its measures, and the paper's figures for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bgn_lab import paper
from bgn_lab.experiments.adaptation.task import AdaptationRecipe
from bgn_lab.experiments.adversarial.task import AdversarialRecipe
from bgn_lab.experiments.fewshot.task import FewShotRecipe
from bgn_lab.experiments.nas import genotype
from bgn_lab.experiments.nas.train import NasTrainRecipe
from bgn_lab.recipe import Recipe


@dataclass(frozen=True)
class Wording:
    """The words for one experiment."""

    title: str
    """before the network in the title of a comparison; may be empty"""
    explain: Callable[[Any], str]
    """sentences about the measures, from a recipe"""
    tables: tuple[paper.Table, ...]
    """the paper's tables, the one for the picture first"""
    printed: Callable[[Any, str], float | None]
    """the paper's value for a recipe's row and place, and the name of a measure"""


def _nothing(_: Recipe) -> str:
    return ""


def _lookup(table: paper.Table, row: str, column: str) -> float | None:
    return table.row(row).get(column) if row in table.rows else None


def _is_papers_groups(recipe: Recipe) -> bool:
    """Whether G is the default one, which is what the paper's tables by normalizer are for."""
    return recipe.groups is None and recipe.instances is None


def _classification(recipe: Recipe, _: str) -> float | None:
    size = str(recipe.batch_size)
    if _is_papers_groups(recipe):
        return _lookup(paper.IMAGENET, recipe.norm, size)
    if recipe.norm == "bgn" and recipe.groups is not None:
        return _lookup(paper.GROUP_SWEEP, size, str(recipe.groups))
    return None


def _explain_adversarial(recipe: AdversarialRecipe) -> str:
    r = recipe
    robust = (
        f" Robust: under PGD of {r.test_steps} steps of {r.step_size:.4f} within {r.bound},"
        " starting at the image."
    )
    strong = f" Stronger attacks: {r.strong_restarts} random starts, {r.strong_images} images."
    return robust + (strong if r.strong_images else "")


def _adversarial(recipe: AdversarialRecipe, measure: str) -> float | None:
    return _lookup(paper.ADVERSARIAL, recipe.norm, measure) if _is_papers_groups(recipe) else None


def _explain_few_shot(recipe: FewShotRecipe) -> str:
    r = recipe
    ways = (
        f" {r.classes}-way, {r.queries} queries of each class, {r.episodes} episodes,"
        " the same for all."
    )
    together = " Transductive: normalizers saw the queries of an episode together."
    return ways + (together if r.transductive else "")


def _few_shot(recipe: FewShotRecipe, measure: str) -> float | None:
    return _lookup(paper.FEWSHOT, recipe.norm, measure) if _is_papers_groups(recipe) else None


def _explain_adaptation(_: AdaptationRecipe) -> str:
    return (
        " Accuracies are of all images of the target, which are also those that were adapted to,"
        " without their labels; last loop. Source only: learned from the source alone, and compared"
        " with BN of that kind. Nothing was chosen by the target's labels."
    )


def _adaptation(recipe: AdaptationRecipe, _: str) -> float | None:
    papers = _is_papers_groups(recipe) and recipe.adapt
    return _lookup(paper.ADAPTATION, recipe.norm, recipe.task or "") if papers else None


def _nas_train(recipe: NasTrainRecipe, _: str) -> float | None:
    table = paper.MANAS if genotype.find(recipe.genotype).cells else paper.DARTS
    return _lookup(table, recipe.norm, "accuracy") if _is_papers_groups(recipe) else None


WORDING: Mapping[str, Wording] = {
    "classification": Wording("", _nothing, (paper.IMAGENET, paper.GROUP_SWEEP), _classification),
    "adversarial": Wording(
        "adversarial training", _explain_adversarial, (paper.ADVERSARIAL,), _adversarial
    ),
    "fewshot": Wording("few-shot learning", _explain_few_shot, (paper.FEWSHOT,), _few_shot),
    "adaptation": Wording(
        "domain adaptation", _explain_adaptation, (paper.ADAPTATION,), _adaptation
    ),
    "nas-train": Wording("searched cells", _nothing, (paper.DARTS, paper.MANAS), _nas_train),
}

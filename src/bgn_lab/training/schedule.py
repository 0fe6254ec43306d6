"""The learning rate of every step."""

from __future__ import annotations

import math

from bgn_lab.recipe import ScheduleOptions


def rate(recipe: ScheduleOptions, epoch: float) -> float:
    """Learning rate after a number of epochs (a fraction within an epoch).

    >>> from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
    >>> [round(rate(Recipe(epochs=120, schedule="steps"), e), 6) for e in (0, 29.9, 30, 60, 90)]
    [0.1, 0.1, 0.01, 0.001, 0.0001]
    """
    if epoch < recipe.warmup:
        return recipe.rate * epoch / recipe.warmup
    if recipe.schedule == "cosine":
        past = (epoch - recipe.warmup) / max(recipe.epochs - recipe.warmup, 1e-9)
        return recipe.rate * (1 + math.cos(math.pi * min(past, 1))) / 2
    if recipe.schedule == "steps":
        return (
            recipe.rate
            * (1.0, *recipe.falls)[sum(epoch >= milestone for milestone in recipe.milestones)]
        )
    return recipe.rate

"""Smaller versions of the images that ship, for tests of networks that take their time."""

from dataclasses import replace
from typing import Any

import torch

from bgn_lab import experiments
from bgn_lab.recipe import Recipe
from bgn_lab.training.task import Task

TEST_IMAGES = 200


def few_test_images(recipe: Recipe) -> Task:
    """The recipe's task with a tenth of its test images."""
    data: Any = experiments.task(recipe).data
    test = data.test.part(torch.arange(TEST_IMAGES))
    return experiments.task(recipe, replace(data, test=test))


def small(recipe: Recipe) -> Task:
    """The recipe's task with few test images, and every fourth pixel of all images: 8x8."""
    data: Any = few_test_images(recipe).data
    parts = {name: getattr(data, name) for name in ("train", "validation", "test")}
    shrunk = {
        name: replace(part, x=part.x[..., ::4, ::4].contiguous(), pad=min(part.pad, 1))
        for name, part in parts.items()
    }
    return experiments.task(recipe, replace(data, shape=(data.shape[0], 8, 8), **shrunk))

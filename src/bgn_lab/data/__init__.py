"""Data sets for classification by name: to add one, write a file and add a line here.

Data sets for few-shot learning and for domain adaptation are listed in :mod:`few_shot` and
:mod:`domains`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bgn import checks
from bgn_lab.data import arrays, cifar10, class_folders, fashion_mnist
from bgn_lab.data.sources import Data

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

DATA_SETS: dict[str, Callable[[Recipe], Data]] = {
    "fashion-mnist": fashion_mnist.data,
    "cifar10": cifar10.data,
    "imagenet": class_folders.imagenet,
    "folder": class_folders.data,
    "arrays": arrays.data,
}


def load(recipe: Recipe) -> Data:
    """The recipe's data. Validation images are held out of the training images, for any seed."""
    checks.one_of("data", recipe.data, tuple(DATA_SETS))
    return DATA_SETS[recipe.data](recipe)

"""Data sets with divided classes: base classes to train on, new ones to recognize from few images.

A form of data set is a function and a line in ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bgn_lab.data import fashion_mnist, images, jpegs
from bgn_lab.data.folders.scan import scan
from bgn_lab.data.names import class_names, printable
from bgn_lab.data.sources import Data, InMemory, hold_out, needed_root

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

# of miniImageNet's training images (Gidaris and Komodakis 2018)
MEAN, STD = (
    (120.396 / 255, 115.594 / 255, 104.540 / 255),
    (70.682 / 255, 68.276 / 255, 72.545 / 255),
)
SIZE, PAD = 84, 8
BASE = 6  # classes of Fashion-MNIST; the other four are new
PARTS = ("train", "val", "test")  # base classes, classes for choosing an epoch, new classes
Part = tuple[Tensor, Tensor, tuple[str, ...]]  # images, labels from 0 on, classes


class Classes(NamedTuple):
    """Images of the base classes, of classes for choosing an epoch, and of new classes."""

    base: Part
    choice: Part
    new: Part
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pad: int  # pixels by which training crops move


@dataclass(frozen=True)
class FewShotData(Data):
    """Base classes in ``train`` and ``validation``, new classes in ``test``, labeled from 0 on."""

    test: InMemory
    new_classes: tuple[str, ...] = ()
    choice: InMemory | None = None  # images of further classes, for choosing an epoch

    def contents(self) -> tuple[object, ...]:
        """See :class:`Data`."""
        choice = "" if self.choice is None else self.choice.fingerprint
        return *super().contents(), self.new_classes, choice


def load(recipe: Recipe, ways: int) -> FewShotData:
    """The recipe's data, with enough classes for episodes of so many."""
    if recipe.data not in FORMS:
        raise ValueError(
            f"data={recipe.data!r} has no division of classes; expected fashion-mnist, a folder "
            "with train, val and test, or an .npz of JPEGs"
        )
    found = FORMS[recipe.data](recipe)
    (x, y, base), (choice_x, choice_y, choice), (new_x, new_y, new) = found[:3]
    for name, classes in (("new", new), ("choice", choice)):
        if len(classes) < ways and (classes or name == "new"):
            where = f" of {printable(recipe.root)}" if recipe.root else ""
            raise ValueError(f"ways={ways} exceeds the {len(classes)} {name} classes{where}")
    kept, held = hold_out(len(x), recipe.validation, recipe.limit)
    _, C, H, W = x.shape
    return FewShotData(
        recipe.data,
        base,
        (C, H, W),
        found.mean,
        found.std,
        InMemory(x[kept], y[kept], found.pad if recipe.augment else 0, recipe.augment),
        InMemory(x[held], y[held]),
        InMemory(new_x, new_y),
        1 / ways,
        new,
        InMemory(choice_x, choice_y) if len(choice_x) else None,
    )


def _fashion_mnist(recipe: Recipe) -> Classes:
    return _divided(recipe.root)


@lru_cache(maxsize=1)
def _divided(root: Path | None) -> Classes:
    parts = fashion_mnist.load(root)
    x, y = (torch.cat(both) for both in zip(*parts.values(), strict=True))
    old, nobody = y < BASE, torch.zeros_like(y, dtype=torch.bool)
    names = fashion_mnist.CLASSES
    return Classes(
        (x[old], y[old], names[:BASE]),
        (x[nobody], y[nobody], ()),
        (x[~old], y[~old] - BASE, names[BASE:]),
        fashion_mnist.MEAN,
        fashion_mnist.STD,
        fashion_mnist.PAD,
    )


def _folder(recipe: Recipe) -> Classes:
    root, size = needed_root(recipe, "a folder"), recipe.image_size or SIZE
    return Classes(*_folders(root, size, recipe.damaged), MEAN, STD, PAD * size // SIZE)


@lru_cache(maxsize=1)
def _folders(root: Path, size: int, damaged: str) -> tuple[Part, Part, Part]:
    scanned = []
    for folder in (root / part for part in PARTS):
        if not folder.is_dir():
            raise FileNotFoundError(
                f"{printable(folder)} is not there; expected train, val and test, "
                "with class folders each"
            )
        scanned.append(scan(folder, damaged=damaged))
    images.refuse_total(size, sum(len(files) for _, files in scanned))
    base, choice, new = (
        (*images.stack_files(files.paths, files.y, images.square, size, damaged), classes)
        for classes, files in ((class_names(names), files) for names, files in scanned)
    )
    return base, choice, new


def _archive(recipe: Recipe) -> Classes:
    root, size = needed_root(recipe, "an .npz of JPEGs"), recipe.image_size or SIZE
    parts = _archived(root, images.stamp(root), size, recipe.damaged)
    return Classes(*parts, MEAN, STD, PAD * size // SIZE)


@lru_cache(maxsize=1)
def _archived(root: Path, _: object, size: int, damaged: str) -> tuple[Part, Part, Part]:
    arrays = jpegs.read(root)
    inside = [jpegs.places(arrays, "split", part) for part in PARTS]
    images.refuse_total(size, sum(map(len, inside)))
    found = []
    for own in inside:
        x, y = jpegs.decode(arrays, own, images.square, size, damaged)
        used, labels = np.unique(y.numpy(), return_inverse=True)
        names = tuple(arrays[jpegs.NAMES][used].tolist())
        found.append((x, torch.from_numpy(labels.astype(np.int64)), names))
    base, choice, new = found
    return base, choice, new


FORMS: dict[str, Callable[[Recipe], Classes]] = {
    "fashion-mnist": _fashion_mnist,
    "folder": _folder,
    "arrays": _archive,
}

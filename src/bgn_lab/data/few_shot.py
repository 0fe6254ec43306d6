"""Data sets whose classes are divided: base classes to learn from, others to recognise from a few images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bgn_lab.data import fashion_mnist, jpegs, scan
from bgn_lab.data.sources import Data, InMemory, hold_out
from bgn_lab.recipe import Recipe

# of miniImageNet's training images (Gidaris and Komodakis 2018)
MEAN, STD = (
    (120.396 / 255, 115.594 / 255, 104.540 / 255),
    (70.682 / 255, 68.276 / 255, 72.545 / 255),
)
SIZE, PAD = 84, 8
BASE = 6  # classes of Fashion-MNIST; the other four are new
Part = tuple[Tensor, Tensor, tuple[str, ...]]  # images, labels from 0 on, classes


@dataclass(frozen=True)
class FewShotData(Data):
    """``train`` and ``validation`` are images of the base classes, ``test`` those of the new ones, with labels of their own."""

    test: InMemory
    new_classes: tuple[str, ...] = ()
    choice: InMemory | None = None  # images of further classes, for choosing an epoch


def load(recipe: Recipe, ways: int) -> FewShotData:
    """From Fashion-MNIST, from a folder of train, val and test with class folders each, or from an .npz of JPEGs."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    if recipe.data == "fashion-mnist":
        parts, mean, std, pad = _fashion(recipe.root), fashion_mnist.MEAN, fashion_mnist.STD, 2
    elif recipe.data in ("folder", "arrays") and recipe.root is not None:
        size = recipe.image_size or SIZE
        parts, mean, std, pad = _mini(recipe.root, size), MEAN, STD, PAD * size // SIZE
    else:
        raise ValueError(
            f"data={recipe.data!r} has no division of classes; expected fashion-mnist, or a folder with train, val and test, or "
            "an .npz of JPEGs"
        )
    (x, y, base), (choice_x, choice_y, choice), (new_x, new_y, new) = parts
    for name, classes in {
        "base": base,
        "new": new,
        **({"choice": choice} if len(choice) else {}),
    }.items():
        if name != "base" and len(classes) < ways:
            raise ValueError(f"ways={ways} exceeds the {len(classes)} {name} classes")
    kept, held = hold_out(len(x), recipe.validation, recipe.limit)
    _, C, H, W = x.shape
    return FewShotData(
        recipe.data, base, (C, H, W), mean, std,
        InMemory(x[kept], y[kept], pad if recipe.augment else 0, recipe.augment), InMemory(x[held], y[held]),
        InMemory(new_x, new_y), 1 / ways, new, InMemory(choice_x, choice_y) if len(choice_x) else None,
    )  # fmt: skip


@lru_cache(maxsize=1)
def _fashion(root: Path | None) -> tuple[Part, Part, Part]:
    parts = fashion_mnist.load(root)
    x, y = (torch.cat(both) for both in zip(*parts.values(), strict=True))
    old, nobody = y < BASE, torch.zeros_like(y, dtype=torch.bool)
    names = fashion_mnist.CLASSES
    return (
        (x[old], y[old], names[:BASE]),
        (x[nobody], y[nobody], ()),
        (x[~old], y[~old] - BASE, names[BASE:]),
    )


@lru_cache(maxsize=1)
def _mini(root: Path, size: int) -> tuple[Part, Part, Part]:
    if root.is_file():
        arrays = jpegs.read(root)
        return (
            jpegs.part(arrays, "train", size),
            jpegs.part(arrays, "val", size),
            jpegs.part(arrays, "test", size),
        )
    return _folder(root / "train", size), _folder(root / "val", size), _folder(root / "test", size)


def _folder(folder: Path, size: int) -> Part:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not there; expected train, val and test, with class folders each"
        )
    classes, files = scan.scan(folder)
    x = torch.stack([jpegs.square(path, size) for path in files.paths])
    return x, files.y, classes

"""Data sets by name."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bgn import checks
from bgn_lab.data import arrays, cifar10, fashion_mnist, fetch, folder, layouts, scan
from bgn_lab.data.sources import Data, InMemory, chance, hold_out
from bgn_lab.recipe import DATA, Recipe

TEST_SHARE = 0.2  # of a folder that does not say which images are for testing


def load(recipe: Recipe) -> Data:
    """The recipe's data in three parts: validation images are held out of the training images, whatever the seed."""
    checks.one_of("data", recipe.data, DATA)
    if recipe.data in ("imagenet", "folder"):
        return _from_folders(recipe)
    if recipe.image_size is not None:
        raise ValueError(
            f"image_size={recipe.image_size} is for folders of images; those of {recipe.data} are used as they are"
        )
    root = (
        fetch.home() / "cifar10"
        if recipe.data == "cifar10" and recipe.root is None
        else recipe.root
    )
    parts, classes, mean, std, pad = _in_memory(recipe.data, root)
    x, y = parts["train"]
    train, validation = hold_out(len(x), recipe.validation, recipe.limit)
    return Data(
        recipe.data, classes, (x.shape[1], x.shape[2], x.shape[3]), mean, std,
        InMemory(x[train], y[train], pad if recipe.augment else 0, recipe.augment),
        InMemory(x[validation], y[validation]), InMemory(*parts["test"]),
        chance(parts["test"][1]),
    )  # fmt: skip


Parts = dict[str, tuple[Tensor, Tensor]]


@lru_cache(maxsize=2)
def _in_memory(
    name: str, root: Path | None
) -> tuple[Parts, tuple[str, ...], tuple[float, ...], tuple[float, ...], int]:
    """Parts, classes, mean, standard deviation, and by how many pixels training crops move. Runs of one process share them."""
    if name == "fashion-mnist":
        return (
            fashion_mnist.load(root),
            fashion_mnist.CLASSES,
            fashion_mnist.MEAN,
            fashion_mnist.STD,
            2,
        )
    if name == "cifar10":
        return (
            cifar10.load(_needed(name, root, "a folder")),
            cifar10.CLASSES,
            cifar10.MEAN,
            cifar10.STD,
            4,
        )
    parts, classes = arrays.load(_needed(name, root, "an .npz file"))
    x = parts["train"][0]
    std, mean = torch.std_mean(
        x[:: max(1, len(x) // 10_000)].double() / 255, (0, 2, 3), correction=0
    )
    return (
        parts,
        classes,
        tuple(mean.tolist()),
        tuple(std.clamp_min(1e-3).tolist()),
        x.shape[-1] // 8,
    )


def _from_folders(recipe: Recipe) -> Data:
    root = _needed(recipe.data, recipe.root, "a folder")
    imagenet = recipe.data == "imagenet"
    train_folder, test_folder = layouts.parts(root, imagenet)
    classes, train = scan.scan(train_folder, damaged=recipe.damaged)
    if test_folder is None:
        train, test = (train.part(index) for index in hold_out(len(train), TEST_SHARE, None))
    else:
        test = scan.scan(test_folder, classes, recipe.damaged)[1]
    if imagenet:
        layouts.note_incomplete(len(classes), len(train), len(test))
    size = recipe.image_size or 224
    own: dict[str, Any] = {"size": size, "decoders": recipe.decoders, "damaged": recipe.damaged}
    kept, held = hold_out(len(train), recipe.validation, recipe.limit)
    return Data(
        recipe.data, classes, (3, size, size), folder.MEAN, folder.STD,
        replace(train.part(kept), augment=recipe.augment, **own), replace(train.part(held), **own), replace(test, **own),
        chance(test.y),
    )  # fmt: skip


def _needed(name: str, root: Path | None, what: str) -> Path:
    if root is None:
        raise ValueError(f"data={name!r} needs --root, {what}")
    return root

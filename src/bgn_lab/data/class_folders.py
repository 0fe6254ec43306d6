"""Data sets in class folders: ImageNet, and any other."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bgn_lab.data.folders import decode, layouts
from bgn_lab.data.folders.scan import scan
from bgn_lab.data.names import class_names
from bgn_lab.data.sources import Data, chance, hold_out, needed_root

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

SIZE = 224
TEST_SHARE = 0.2  # of a folder that does not divide its images into parts


def imagenet(recipe: Recipe) -> Data:
    """ImageNet: ``train`` and ``val`` with class folders; its ``test`` has no labels."""
    return _load(recipe, imagenet=True)


def data(recipe: Recipe) -> Data:
    """Class folders alone, of which a share is for testing, or in ``train`` and ``test``."""
    return _load(recipe, imagenet=False)


def _load(recipe: Recipe, imagenet: bool) -> Data:
    root, size = needed_root(recipe, "a folder"), recipe.image_size or SIZE
    decode.refuse_size(size, recipe.decoders, recipe.batch_size)
    train_folder, test_folder = layouts.parts(root, imagenet)
    classes, train = scan(train_folder, damaged=recipe.damaged)
    if test_folder is None:
        train, test = (train.part(index) for index in hold_out(len(train), TEST_SHARE, None))
    else:
        test = scan(test_folder, classes, recipe.damaged)[1]
    if imagenet:
        layouts.note_incomplete(len(classes), len(train), len(test))
    kept, held = hold_out(len(train), recipe.validation, recipe.limit)
    parts = (train.part(kept), train.part(held), test)
    settings: dict[str, Any] = {
        "size": size,
        "decoders": recipe.decoders,
        "damaged": recipe.damaged,
    }
    train, validation, test = (replace(part, **settings) for part in parts)
    return Data(
        recipe.data,
        class_names(classes),
        (3, size, size),
        decode.MEAN,
        decode.STD,
        replace(train, augment=recipe.augment),
        validation,
        test,
        chance(test.y),
    )

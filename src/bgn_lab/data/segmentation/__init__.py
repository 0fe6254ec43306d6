"""Data sets for segmentation: images with a class for every pixel.

To add one: a function that returns classes and pairs by part, and a line in ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bgn_lab.data import images
from bgn_lab.data.folders.decode import MEAN, STD
from bgn_lab.data.names import printable
from bgn_lab.data.segmentation import archives, layouts, reading, scenes, volumes
from bgn_lab.data.segmentation.pairs import Crops, Pairs, SegmentationData, constant_iou
from bgn_lab.data.sources import hold_out, needed_root

if TYPE_CHECKING:
    from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe

TEST = 0.2
"""Share of the images for testing, where they come without a division."""
LARGEST = {2: 512, 3: 64}
"""Of a side of the default crop, by the number of spatial dimensions."""
Images = list[tuple[Tensor, Tensor]]


class Found(NamedTuple):
    """What a data set has."""

    classes: tuple[str, ...]
    parts: Mapping[str, Images]
    """By "train", "test" and perhaps "val"."""
    made_up: bool = False


def load(recipe: SegmentationRecipe) -> SegmentationData:
    """The recipe's data; validation images are held out of the training images where the data has
    none of its own, the same ones for every seed."""
    if recipe.data not in FORMS:
        raise ValueError(
            f"data={recipe.data!r} has no labels of pixels; expected {scenes.NAME},"
            f" {volumes.NAME}, a folder of images and masks, or an .npz of them"
        )
    found = FORMS[recipe.data](recipe)
    train, test = found.parts["train"], found.parts["test"]
    own = found.parts.get("val")
    kept, held = hold_out(len(train), recipe.validation if own is None else 0.0, recipe.limit)
    validation = [train[i] for i in held.tolist()] if own is None else own
    train = [train[i] for i in kept.tolist()]
    if not train:
        raise ValueError(
            f"data={recipe.data!r} leaves no training images; expected a smaller validation="
            f"{recipe.validation}"
        )
    channels = train[0][0].shape[0]
    crop = _crop(recipe, train)
    mean, std = (MEAN, STD) if channels == 3 else ((0.5,) * channels, (0.25,) * channels)
    fill = (torch.tensor(mean) * 255).round().to(torch.uint8)
    crops = Crops(crop, recipe.scale, recipe.augment, recipe.neighbors)

    def pairs(name: str, part: Images) -> Pairs:
        xs, ys = tuple(x for x, _ in part), tuple(y for _, y in part)
        made = Pairs(xs, ys, len(found.classes), crops, fill)
        if len(made) and not int(made.counts.sum()):
            raise ValueError(f"none of the {len(made):,} {name} images has a pixel of a class")
        return made

    tested = pairs("test", test)
    return SegmentationData(
        recipe.data,
        found.classes,
        (channels, *crop),
        mean,
        std,
        pairs("training", train),
        pairs("validation", validation),
        tested,
        constant_iou(tested.counts.sum(0)),
        found.made_up,
    )


def _crop(recipe: SegmentationRecipe, train: Images) -> tuple[int, ...]:
    """Size of training windows: the recipe's, or what all images have, if that is not large."""
    spatial = train[0][1].dim()
    if recipe.crop is not None:
        if len(recipe.crop) != spatial:
            axes = "height and width" if spatial == 2 else "depth, height and width"
            raise ValueError(
                f"crop={recipe.crop} has {len(recipe.crop)} numbers; expected {axes} for"
                f" data={recipe.data!r}"
            )
        return recipe.crop
    shapes = torch.tensor([tuple(y.shape) for _, y in train])
    return tuple(min(int(side), LARGEST[spatial]) for side in shapes.min(0).values)


def _scenes(recipe: SegmentationRecipe) -> Found:
    _refuse_size(recipe)
    parts = {
        name.replace("validation", "val"): [(scene.x, scene.y) for scene in own]
        for name, own in scenes.load(recipe.root).items()
    }
    return Found(scenes.CLASSES, parts, made_up=True)


def _volumes(recipe: SegmentationRecipe) -> Found:
    _refuse_size(recipe)
    parts = {
        name.replace("validation", "val"): [(volume.x, volume.y) for volume in own]
        for name, own in volumes.load().items()
    }
    return Found(volumes.CLASSES, parts, made_up=True)


def _refuse_size(recipe: SegmentationRecipe) -> None:
    if recipe.image_size is not None:
        raise ValueError(
            f"image_size={recipe.image_size} is for image files; data={recipe.data!r} is used as"
            " it is"
        )


def _folder(recipe: SegmentationRecipe) -> Found:
    root = needed_root(recipe, "a folder of images and masks")
    return _folders(root, recipe.image_size, recipe.damaged)


@lru_cache(maxsize=1)  # runs of one process share the images
def _folders(root: Path, size: int | None, damaged: str) -> Found:
    layout = layouts.find(root)
    parts = {
        part: reading.read(pairs, layout.labels, size, damaged)
        for part, pairs in layout.parts.items()
    }
    classes = layout.labels.classes or reading.count_classes(
        (y for own in parts.values() for _, y in own), root
    )
    return Found(classes, _divided(parts, root))


def _archive(recipe: SegmentationRecipe) -> Found:
    root = needed_root(recipe, "an .npz of images and masks")
    return _archived(root, images.stamp(root), recipe.image_size, recipe.damaged)


@lru_cache(maxsize=1)
def _archived(root: Path, _: object, size: int | None, damaged: str) -> Found:
    labels, parts = archives.read(root, size, damaged)
    classes = labels.classes or reading.count_classes(
        (y for own in parts.values() for _, y in own), root
    )
    return Found(classes, _divided(parts, root))


def _divided(parts: Mapping[str, Images], root: Path) -> Mapping[str, Images]:
    """With images for testing."""
    if "test" in parts:
        return parts
    own = parts["train"]
    train, test = hold_out(len(own), TEST, None)
    if not len(train) or not len(test):
        raise ValueError(
            f"{printable(root)} has {len(own)} images in all, too few to hold some out for testing"
        )
    return {"train": [own[i] for i in train.tolist()], "test": [own[i] for i in test.tolist()]}


FORMS: dict[str, Callable[[SegmentationRecipe], Found]] = {
    scenes.NAME: _scenes,
    volumes.NAME: _volumes,
    "folder": _folder,
    "arrays": _archive,
}

"""Folders of images and masks: the usual layouts, and what is wrong with others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from bgn_lab.data.folders.listing import Seen, few, look, some
from bgn_lab.data.names import printable
from bgn_lab.data.segmentation.reading import Labels, Pair, class_file, counted, named
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.system.printable import shorten
from bgn_lab.system.reading import read_text

PARTS = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid"),
    "test": ("test", "testing"),
}
IMAGES = ("images", "image", "imgs", "img")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "targets")
ENDINGS = ("", "_mask", "-mask", "_label", "_labels", "_gt", "_seg", "_L", "_P")  # of names
CAMVID = ("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car",
          "pedestrian", "bicyclist", "void")  # fmt: skip
VOC = ("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
       "cow", "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa",
       "train", "tvmonitor")  # fmt: skip
CITYSCAPES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole",
    19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky",
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train", 32: "motorcycle",
    33: "bicycle",
}  # fmt: skip
EXPECTED = (
    "expected one of these layouts: images and masks, of the same names, alone or with train, val "
    "and test in them; train, val and test, with images and masks in each; CamVid's train, "
    "trainannot, val, valannot, test, testannot; Cityscapes' leftImg8bit and gtFine; VOC's "
    "JPEGImages, SegmentationClass and ImageSets"
)


class Layout(NamedTuple):
    """What a folder holds."""

    name: str
    labels: Labels
    parts: dict[str, list[Pair]]
    """By "train", "val" and "test"; "train" alone is to be divided."""


def find(root: Path) -> Layout:
    """The layout of a folder; a ValueError says what is wrong with it."""
    try:
        seen = look(root)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"root={printable(root)} does not exist; expected a folder"
        ) from None
    for layout in (_cityscapes, _voc, _camvid, _pairs):
        if (found := layout(seen)) is not None:
            return found
    for explain in (_camvid_in_colors, _too_high, _masks_missing):
        if message := explain(seen):
            raise ValueError(printable(message))
    raise ValueError(f"{printable(root)} has {printable(seen.found)}; {EXPECTED}")


def _cityscapes(seen: Seen) -> Layout | None:
    ours, masks = "leftImg8bit", "gtFine"
    if ours not in seen.folders and masks not in seen.folders:
        return None
    for name in (ours, masks):
        if name not in seen.folders:
            raise ValueError(
                f"{printable(seen.path)} has no {name}; Cityscapes needs both: unpack"
                f" {name}_trainvaltest.zip there"
            )
    table = torch.full((256,), IGNORED, dtype=torch.uint8)
    table[torch.tensor(list(CITYSCAPES))] = torch.arange(len(CITYSCAPES), dtype=torch.uint8)
    by_id = Labels(tuple(CITYSCAPES.values()), table)
    by_train_id = named(tuple(CITYSCAPES.values()))
    parts: dict[str, list[Pair]] = {}
    for part in ("train", "val"):  # the test images' masks are secret
        parts[part] = []
        for city in look(seen.path / ours / part).folders:
            folder = seen.path / masks / part / city
            for name in look(seen.path / ours / part / city).images:
                stem = name.removesuffix(f"_{ours}.png")
                options = [f"{stem}_{masks}_label{kind}.png" for kind in ("TrainIds", "Ids")]
                mask = next((one for one in options if (folder / one).is_file()), None)
                if mask is None:
                    raise ValueError(
                        f"{printable(folder)} has no {options[1]}; expected a mask of ids for every"
                        " image (those ending in _color show the same in colors)"
                    )
                image = seen.path / ours / part / city / name
                parts[part].append(_pair(image, folder / mask))
    mixed = {"TrainIds" in str(pair.mask) for own in parts.values() for pair in own}
    if len(mixed) > 1:
        raise ValueError(
            f"{printable(seen.path)} has labelTrainIds for some images and labelIds for others;"
            " expected one kind for all"
        )
    _refuse_empty(parts, seen.path)
    labels = by_train_id if mixed == {True} else by_id
    return Layout("cityscapes", labels, _val_as_test(parts))


def _voc(seen: Seen) -> Layout | None:
    inner = [seen.path, *(seen.path / name for name in seen.folders)]
    devkit = seen.path / "VOCdevkit"
    if devkit.is_dir():
        inner += [devkit / name for name in look(devkit).folders]
    root = next((path for path in inner if (path / "SegmentationClass").is_dir()), None)
    if root is None:
        return None
    lists = root / "ImageSets" / "Segmentation"
    parts: dict[str, list[Pair]] = {}
    for part in ("train", "val"):
        path = lists / f"{part}.txt"
        if not path.is_file():
            raise ValueError(
                f"{printable(root)} has SegmentationClass, but no {path.relative_to(root)}; VOC's"
                " lists say which images are for training"
            )
        parts[part] = []
        for stem in read_text(path).split():
            if Path(stem).name != stem or len(stem.encode()) > 250:  # as long as names may be
                raise ValueError(
                    f"{printable(path)} has the line {shorten(stem, 60)}; expected names of images"
                )
            image = root / "JPEGImages" / f"{stem}.jpg"
            mask = root / "SegmentationClass" / f"{stem}.png"
            for file in (image, mask):
                if not file.is_file():
                    raise ValueError(
                        f"{printable(file)} is not there, and {path.relative_to(root)} names it"
                    )
            parts[part].append(_pair(image, mask))
    _refuse_empty(parts, root)
    return Layout("voc", named(VOC), _val_as_test(parts))


def _camvid(seen: Seen) -> Layout | None:
    if not any(name.endswith("annot") for name in seen.folders):
        return None
    parts = {}
    for part in PARTS:
        if part not in seen.folders and f"{part}annot" not in seen.folders:
            continue
        for name in (part, f"{part}annot"):
            if name not in seen.folders:
                raise ValueError(
                    f"{printable(seen.path)} has no {name}; expected images in {part} and their"
                    f" masks in {part}annot"
                )
        parts[part] = _matched(seen.path / part, seen.path / f"{part}annot")
    if "train" not in parts:
        raise ValueError(f"{printable(seen.path)} has no train; found {printable(seen.found)}")
    labels = class_file(seen.path) or named(CAMVID)
    return Layout("camvid", labels, _val_as_test(parts) if "test" not in parts else parts)


def _pairs(seen: Seen) -> Layout | None:
    """Images and masks, above or below their parts."""
    labels = class_file(seen.path) or counted()
    both = _both(seen.folders)
    if both is not None:
        images, masks = (seen.path / name for name in both)
        inside = look(images)
        named_parts = _parts(inside.folders)
        if not named_parts:
            if not inside.images:
                return None
            return Layout("pairs", labels, {"train": _matched(images, masks)})
        parts = {}
        for part, name in named_parts.items():
            own = next((n for n in PARTS[part] if (masks / n).is_dir()), None)
            if own is None:
                raise ValueError(
                    f"{printable(images)} has {name}, but {printable(masks)} has not; expected the"
                    " same folders in both"
                )
            parts[part] = _matched(images / name, masks / own)
        return Layout("pairs", labels, _checked(parts, seen))
    named_parts = _parts(seen.folders)
    parts = {}
    for part, name in named_parts.items():
        inside = look(seen.path / name)
        both = _both(inside.folders)
        if both is None:
            return None
        parts[part] = _matched(inside.path / both[0], inside.path / both[1])
    return Layout("pairs", labels, _checked(parts, seen)) if parts else None


def _checked(parts: dict[str, list[Pair]], seen: Seen) -> dict[str, list[Pair]]:
    if "train" not in parts:
        raise ValueError(
            f"{printable(seen.path)} has {few(parts)} without train; expected training images"
        )
    return parts if "test" in parts else _val_as_test(parts)


def _val_as_test(parts: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Where nobody has masks of test images, those of val are tested on."""
    return {"test" if part == "val" else part: own for part, own in parts.items()}


def _parts(folders: Iterable[str]) -> dict[str, str]:
    found = {*folders}
    return {
        part: name
        for part, names in PARTS.items()
        if (name := next((n for n in names if n in found), None)) is not None
    }


def _both(folders: Sequence[str]) -> tuple[str, str] | None:
    lower = {name.casefold(): name for name in folders}
    images = next((lower[name] for name in IMAGES if name in lower), None)
    masks = next((lower[name] for name in MASKS if name in lower), None)
    return None if images is None or masks is None else (images, masks)


def _matched(images: Path, masks: Path) -> list[Pair]:
    """Pairs of the same name but for its ending."""
    ours, theirs = look(images), look(masks)
    if not ours.images:
        raise ValueError(f"{printable(images)} has no images; found {printable(ours.found)}")
    by_stem = {os.path.splitext(name)[0]: name for name in theirs.images}
    pairs, without = [], []
    for name in ours.images:
        stem = os.path.splitext(name)[0]
        own = next((by_stem[stem + e] for e in ENDINGS if stem + e in by_stem), None)
        if own is None:
            without.append(name)
        else:
            pairs.append(_pair(images / name, masks / own))
    if without:
        raise ValueError(
            f"{len(without):,} of {len(ours.images):,} images in {printable(images)} have no mask"
            f" in {printable(masks)} ({few(without)}); expected a mask of the same name, which has"
            f" {printable(theirs.found)}"
        )
    return pairs


def _pair(image: Path, mask: Path) -> Pair:
    return Pair(str(image), str(mask), str(image))


def _refuse_empty(parts: dict[str, list[Pair]], root: Path) -> None:
    for part, own in parts.items():
        if not own:
            raise ValueError(f"{printable(root)} has no images for {part}")


def _camvid_in_colors(seen: Seen) -> str | None:
    raw = [name for name in seen.folders if "labeledapproved" in name.casefold()]
    raw += [name for name in seen.folders if "stillsraw" in name.casefold()]
    if not raw:
        return None
    return (
        f"{seen.path} has CamVid with masks in colors ({few(raw)}); expected masks of class numbers"
        ", as in the copy with train, trainannot, val, valannot, test and testannot"
    )


def _too_high(seen: Seen) -> str | None:
    """A folder that is right, one level down."""
    inner = next((p for n in seen.folders[:100] if _is_right(p := seen.path / n)), None)
    return f"{seen.path} is no such folder, but {inner} is; did you mean that?" if inner else None


def _is_right(path: Path) -> bool:
    layouts: tuple[Callable[[Seen], Layout | None], ...] = (_cityscapes, _voc, _camvid, _pairs)
    try:
        seen = look(path)
        return any(layout(seen) is not None for layout in layouts)
    except (ValueError, OSError):
        return False


def _masks_missing(seen: Seen) -> str | None:
    lower = [name.casefold() for name in seen.folders]
    if any(name in lower for name in IMAGES):
        return f"{seen.path} has images, but no masks beside them; found {seen.found}; {EXPECTED}"
    if seen.images:
        return (
            f"{seen.path} has {some('image', seen.images)} directly in it; expected them in a"
            " folder images, and their masks in a folder masks"
        )
    return None

"""Trees of class folders: where each part is, and what is wrong with common other trees.

A check gets the listing of a folder and returns what is wrong with it and what to do, or None.
"""

from __future__ import annotations

import difflib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from bgn_lab.data.folders.listing import ARCHIVES, ENDINGS, Seen, few, look, some
from bgn_lab.data.names import printable

TESTS = ("test", "val", "validation")
IMAGENET = (1000, 1_281_167, 50_000)  # classes, training and validation images
PER_CLASS = "a folder of images per class"
Check = Callable[[Seen], "str | None"]


def parts(root: Path, imagenet: bool) -> tuple[Path, Path | None]:
    """Folders of the training and of the test images.

    The second is None if there are class folders alone, which are to be split.
    """
    try:
        seen = look(root)
    except FileNotFoundError:
        raise FileNotFoundError(
            printable(f"root={root} does not exist; expected a folder{_near(root)}")
        ) from None
    except NotADirectoryError:
        remedy = "; unpack it and give the folder" if root.name.lower().endswith(ARCHIVES) else ""
        raise NotADirectoryError(
            f"root={printable(root)} is a file; expected a folder{remedy}"
        ) from None
    if "train" not in seen.folders:
        refuse(seen, NO_TRAIN if imagenet else NO_PARTS)
        return root, None
    tests = [
        name for name in (("val",) if imagenet else TESTS) if name in seen.folders
    ]  # ImageNet's test has no labels
    if not tests:
        refuse(seen, NO_VAL if imagenet else NO_TEST)
    return root / "train", root / tests[0]


def refuse(seen: Seen, checks: Iterable[Check], more: str = "") -> None:
    """Raise the message of the first check that has one, and more."""
    for check in checks:
        if message := check(seen):
            raise ValueError(printable(message + more))


def plain(name: str) -> str:
    """A name without case and spaces, which are easily mistaken."""
    return "".join(name.split()).casefold()


def note(seen: Seen) -> None:
    """Warn of classes that only case or spaces distinguish, and of images without a class."""
    alike: dict[str, list[str]] = {}
    for name in seen.folders:
        alike.setdefault(plain(name), []).append(name)
    for names in alike.values():
        if len(names) > 1:
            warnings.warn(
                f"{printable(seen.path)} has class folders that differ only in case or spaces, "
                f"{' and '.join(map(repr, names))}; they are different classes here: merge them "
                "if they should not be",
                stacklevel=3,
            )
    if seen.images:
        warnings.warn(
            f"{printable(seen.path)} has {some('image', seen.images)} beside its class folders; "
            "they are not used: move each into the folder of its class if it should be",
            stacklevel=3,
        )


def note_incomplete(classes: int, train: int, test: int) -> None:
    """Warn of an ImageNet of all classes, but not all images."""
    if classes == IMAGENET[0] and (train, test) != IMAGENET[1:]:
        warnings.warn(
            f"ImageNet has {IMAGENET[1]:,} training and {IMAGENET[2]:,} validation images in "
            f"{classes:,} classes, here are {train:,} and {test:,}: is the copy complete?",
            stacklevel=3,
        )


def _near(root: Path) -> str:
    """A suggestion, if there is a folder of a similar name."""
    parent = next(path for path in root.parents if os.path.exists(path))
    with suppress(OSError):
        near = difflib.get_close_matches(
            root.relative_to(parent).parts[0], look(parent, most=1000).folders, n=1
        )
        return (
            f"; did you mean {parent / near[0]}?"
            if near
            else f". What exists of that path is {parent}"
        )
    return ""


def _tree(root: Path) -> str:
    return f"{root / 'train'} and {root / 'val'}, each with {PER_CLASS}"


def _any_image(path: Path, depth: int = 0) -> bool:
    """Whether there are images in a folder, or so many levels below in one of the first folders."""
    with suppress(OSError):
        seen = look(path, most=100)
        return bool(seen.images) or (
            depth > 0 and any(_any_image(path / name, depth - 1) for name in seen.folders[:3])
        )
    return False


def _has_train(seen: Seen) -> bool:
    """Whether there is a train folder with images or archives.

    ImageNet's annotations come in folders of the same names.
    """
    train = seen.path / "train"
    with suppress(OSError):
        return "train" in seen.folders and (
            _any_image(train, 2) or bool(look(train, most=100).archives)
        )
    return False


def _has_classes(seen: Seen) -> bool:
    return len(seen.folders) > 1 and not seen.images and _any_image(seen.path / seen.folders[0])


def _deeper(seen: Seen, wanted: Callable[[Seen], bool]) -> Path | None:
    """The first folder that is right, at most three levels down.

    A hundred folders of each level are looked at.
    """
    level = [seen.path / name for name in seen.folders]
    for _ in range(3):
        below: list[Path] = []
        for path in level[:100]:
            with suppress(OSError):
                inside = look(path, most=1000)
                if wanted(inside):
                    return path
                below += [path / name for name in inside.folders]
        level = below
    return None


def _too_high(seen: Seen) -> str | None:
    path = _deeper(seen, _has_train)
    return f"root={seen.path} has no train, but {path} has; did you mean that?" if path else None


def _classes_deeper(seen: Seen) -> str | None:
    path = _deeper(seen, _has_classes) if len(seen.folders) < 2 else None
    return (
        f"root={seen.path} has no class folders, but {path} has; did you mean that?"
        if path
        else None
    )


def _is_a_part(seen: Seen) -> str | None:
    if not _has_classes(seen):
        return None
    remedy = (
        "Move them into train, and the validation images into val; "
        "or --data folder holds a part of them out for testing"
    )
    with suppress(OSError):
        if {"train", "val"} <= {*look(seen.path.parent, most=1000).folders}:
            remedy = f"Did you mean {seen.path.parent}?"
    return (
        f"root={seen.path} has class folders directly in it ({few(seen.folders)}); "
        f"expected {_tree(seen.path)}. {remedy}"
    )


def _packed(seen: Seen) -> str | None:
    if not seen.archives:
        return None
    return (
        f"root={seen.path} has archives ({few(seen.archives)}), but no train; "
        f"expected {_tree(seen.path)}. Unpack the training images into train, the archive of each "
        "class into a folder of its name, and the validation images into val"
    )


def _misnamed(part: str, *words: str) -> Check:
    """Check for folders that may be meant as a part.

    A folder with images directly in it is meant as a class, not as train.
    """

    def check(seen: Seen) -> str | None:
        alike = [
            name
            for name in seen.folders
            if any(word in name.lower() for word in words) and name != "train"
        ]
        alike = [name for name in alike if part != "train" or not _any_image(seen.path / name)]
        return (
            f"root={seen.path} has no {part}, but {few(alike)}; "
            f"if that is what is meant, rename it to {part}"
            if alike
            else None
        )

    return check


def _packed_val(seen: Seen) -> str | None:
    packed = [name for name in seen.archives if "val" in name.lower()]
    remedy = "and move each image into a folder of its class, named as in train"
    return (
        f"root={seen.path} has train, but no val; "
        f"unpack {few(packed)} into {seen.path / 'val'}, {remedy}"
        if packed
        else None
    )


def _no_train(seen: Seen) -> str | None:
    return f"root={seen.path} has no train; found {seen.found}; expected {_tree(seen.path)}"


def _test_alone(seen: Seen) -> str | None:
    return _no_train(seen) if seen.folders and {*seen.folders} <= {*TESTS} else None


def _no_val(seen: Seen) -> str | None:
    return (
        f"root={seen.path} has train, but no val; found {seen.found}; expected {_tree(seen.path)}"
    )


def _class_named_train(seen: Seen) -> str | None:
    others = [name for name in seen.folders if name != "train"]
    if not others or not _any_image(seen.path / "train"):
        return None
    return (
        f"{seen.path / 'train'} has images directly in it; "
        f"if it is a class, as {few(others)}, give it another name"
    )


def _no_test(seen: Seen) -> str | None:
    return (
        f"root={seen.path} has train, but beside it no {' or '.join(TESTS)}; put the test images "
        f"there, in class folders as those of train. Or give {seen.path / 'train'} instead: of "
        "class folders alone, a part is held out for testing"
    )


def _tars(seen: Seen) -> str | None:
    packed = [name for name in seen.archives if name.split(".")[0] not in seen.folders]
    if not packed:
        return None
    return (
        f"{seen.path} has {some('archive', packed)} not unpacked; expected {PER_CLASS}. "
        "Unpack each into a folder of its name: mkdir NAME && tar -xf NAME.tar -C NAME"
    )


def _tiny_val(seen: Seen) -> str | None:
    if "val_annotations.txt" not in seen.others or seen.folders != ("images",):
        return None
    return (
        f"{seen.path} has the layout of Tiny ImageNet, with the images of all classes in one "
        f"folder; expected {PER_CLASS}. Move each out of {seen.path / 'images'} into a folder of "
        "its class, as val_annotations.txt says"
    )


def _flat(seen: Seen) -> str | None:
    if not seen.images or len(seen.folders) > 1:
        return None
    remedy = "Move each into a folder of its class"
    if seen.images[0].startswith("ILSVRC2012_val_"):
        remedy += (
            ", named as in train. The ground truth says which class that is: "
            "ILSVRC2012_validation_ground_truth.txt, with meta.mat, in the development kit, or "
            "LOC_val_solution.csv in Kaggle's copy"
        )
    elif seen.path.name == "test":
        remedy += "; if nobody knows its class, move the folder away"
    return (
        f"{seen.path} has {some('image', seen.images)} directly in it; "
        f"expected {PER_CLASS}. {remedy}"
    )


def _level_too_many(seen: Seen) -> str | None:
    if len(seen.folders) != 1 or not _has_classes(look(seen.path / seen.folders[0])):
        return None
    inner = seen.path / seen.folders[0]
    return (
        f"{seen.path} has only {inner.name!r}, and the class folders are in that; "
        f"move them from {inner} up into {seen.path}"
    )


def _too_few(seen: Seen) -> str | None:
    if len(seen.folders) > 1:
        return None
    found = f"only {seen.folders[0]!r}" if seen.folders else "none"
    others = f", but {some('other file', seen.others)}" if seen.others else ""
    return (
        f"{seen.path} has too few class folders: {found}{others}; "
        "expected at least two, each with images"
    )


def _tiny_class(seen: Seen) -> str | None:
    if (
        seen.images
        or "images" not in seen.folders
        or not any(name.endswith("_boxes.txt") for name in seen.others)
    ):
        return None
    return (
        f"{seen.path} has the layout of Tiny ImageNet, with the images one level deeper; expected "
        f"them directly in the class folder. Move them out of {seen.path / 'images'}, and so for "
        "every class; those of val go into class folders as val_annotations.txt says"
    )


def _folder_like_an_image(seen: Seen) -> str | None:
    named = [name for name in seen.folders if name.lower().endswith(ENDINGS)]
    return (
        f"{seen.path / named[0]} is a folder, though named like an image; rename it or move it away"
        if named
        else None
    )


def _nested(seen: Seen) -> str | None:
    inner = next((name for name in seen.folders if _any_image(seen.path / name, 1)), None)
    if inner is None:
        return None
    return (
        f"{seen.path} has images in folders of its own ({seen.path / inner}); expected those of a "
        "class directly in its folder. Move them up; or, if these folders are the classes, give "
        "the folder that they are in"
    )


def _no_images(seen: Seen) -> str | None:
    if seen.images:
        return None
    endings = Counter(os.path.splitext(name)[1] or "no ending" for name in seen.others).most_common(
        3
    )
    found = ", ".join(f"{count:,} x {ending}" for ending, count in endings) or seen.found
    return f"{seen.path} has no images; expected files ending in {' '.join(ENDINGS)}; found {found}"


# checks of a folder, in this order
NO_TRAIN = (
    _is_a_part,
    _too_high,
    _misnamed("train", "train"),
    _packed,
    _no_train,
)  # the root of ImageNet
NO_VAL = (_misnamed("val", "val"), _packed_val, _no_val)
NO_PARTS = (_too_high, _misnamed("train", "train"), _test_alone, _classes_deeper)  # any other root
NO_TEST = (_misnamed("test", "val", "test"), _packed_val, _class_named_train, _no_test)
PART = (_tars, _tiny_val, _flat, _level_too_many, _too_few)
CLASS = (_tiny_class, _folder_like_an_image, _nested, _no_images)

"""Wrong folders: each is named, with what was found in it and what to do about that."""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from bgn_lab.data import load
from bgn_lab.data.folders import layouts
from bgn_lab.data.folders.listing import few, look
from bgn_lab.data.folders.scan import scan
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe

CLASSES = ("n01440764", "n01443537", "n01484850")
Change = Callable[[Path], object]


def files(folder: Path, *names: str) -> None:
    """Files with something in them; what, does not matter here."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(b"x")


def classes(folder: Path, names: tuple[str, ...] = CLASSES) -> None:
    for name in names:
        files(folder / name, f"{name}_1.JPEG", f"{name}_2.JPEG")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """As it should be."""
    classes(tmp_path / "data" / "train")
    classes(tmp_path / "data" / "val")
    return tmp_path / "data"


def again(folder: Path) -> Path:
    """An empty folder in the place of one."""
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


def moved(part: str, to: str) -> Change:
    def change(root: Path) -> None:
        (root / to).parent.mkdir(parents=True, exist_ok=True)
        (root / part).rename(root / to)

    return change


def one_level_too_high(root: Path) -> None:
    classes(again(root) / "ILSVRC" / "Data" / "CLS-LOC" / "train")
    files(
        root / "ILSVRC" / "Annotations" / "CLS-LOC" / "train" / CLASSES[0], "n01440764_1.xml"
    )  # comes first, but is another tree


def file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_bytes(b"x")


def flat_val(root: Path) -> None:
    files(again(root / "val"), *(f"ILSVRC2012_val_{i:08}.JPEG" for i in range(1, 1235)))


def tiny_train(root: Path) -> None:
    for name in CLASSES:
        files(again(root / "train" / name), f"{name}_boxes.txt")
        files(root / "train" / name / "images", f"{name}_0.JPEG")


def tiny_val(root: Path) -> None:
    files(again(root / "val"), "val_annotations.txt")
    files(root / "val" / "images", "val_0.JPEG")


def renamed_classes(root: Path) -> None:
    for name in CLASSES[:2]:
        (root / "val" / name).rename(root / "val" / name.upper())


def link_to_nothing(root: Path) -> None:
    (root / "train" / CLASSES[1] / "a.JPEG").symlink_to(root / "nowhere.JPEG")


def zero_bytes(root: Path) -> None:
    for name in CLASSES:
        (root / "val" / name / f"{name}_1.JPEG").write_bytes(b"")


def doubled(root: Path) -> None:
    classes(again(root / "train") / "train")


def few_classes(root: Path) -> None:
    for part in ("train", "val"):
        for name in CLASSES[1:]:
            shutil.rmtree(root / part / name)


WRONG: dict[
    str, tuple[Change, str, str]
] = {  # what is wrong, the path that is named, what is said about it
    "missing": (
        moved("", "../date"),
        "",
        r"does not exist; expected a folder; did you mean .*/date\?",
    ),
    "missing, nothing near": (
        shutil.rmtree,
        "",
        "does not exist; expected a folder. What exists of that path is",
    ),
    "a file": (file, "", "is a file; expected a folder$"),
    "an empty folder": (
        again,
        "",
        "has no train; found nothing; "
        "expected .*train and .*val, each with a folder of images per class",
    ),
    "too high, Kaggle": (
        one_level_too_high,
        "",
        "has no train, but .*/data/ILSVRC/Data/CLS-LOC has; did you mean that",
    ),
    "too high": (
        lambda root: (moved("train", "in/train")(root), moved("val", "in/val")(root)),
        "",
        "but .*/data/in has; did you mean",
    ),
    "the train folder, alone": (
        lambda root: (shutil.rmtree(root / "val"), classes(again(root))),
        "",
        r"has class folders directly in it \(n01440764, "
        ".*expected .*Move them into train, .*--data folder",
    ),
    "archives": (
        lambda root: files(again(root), "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"),
        "",
        r"has archives \(ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar\), but no train; "
        ".*Unpack",
    ),
    "train of another name": (
        moved("train", "ILSVRC2012_img_train"),
        "",
        "no train, but ILSVRC2012_img_train; .*rename it to train",
    ),
    "val alone": (
        lambda root: shutil.rmtree(root / "train"),
        "",
        r"has no train; found 1 folder \(val\); expected .*/data/train",
    ),
    "train alone": (
        lambda root: shutil.rmtree(root / "val"),
        "",
        r"train, but no val; found 1 folder \(train\); expected .*/data/val",
    ),
    "val of another name": (
        moved("val", "validation"),
        "",
        "has no val, but validation; .*rename it to val",
    ),
    "val in an archive": (
        lambda root: (shutil.rmtree(root / "val"), files(root, "ILSVRC2012_img_val.tar")),
        "",
        "no val; unpack ILSVRC2012_img_val.tar into .*/data/val, "
        "and move each image into a folder of its class",
    ),
    "val flat": (
        flat_val,
        "val",
        r"has 1,234 images \(ILSVRC2012_val_00000001.JPEG, .* directly in it; "
        ".*folder of its class, named as in train.*ILSVRC2012_validation_ground_truth.txt"
        ".*development kit.*LOC_val_solution.csv",
    ),
    "train flat": (
        lambda root: files(again(root / "train"), "cat.0.jpg", "dog.0.jpg"),
        "train",
        r"has 2 images \(cat.0.jpg, dog.0.jpg\) directly in it; "
        "expected a folder of images per class. Move each into",
    ),
    "train packed": (
        lambda root: files(again(root / "train"), *(f"{name}.tar" for name in CLASSES)),
        "train",
        r"has 3 archives \(n01440764.tar, .*\) not unpacked; "
        ".*Unpack each into a folder of its name: mkdir",
    ),
    "train partly packed": (
        lambda root: files(root / "train", f"{CLASSES[0]}.tar", "n09.tar"),
        "train",
        r"1 archive \(n09.tar\)",
    ),
    "Tiny ImageNet, train": (
        tiny_train,
        f"train/{CLASSES[0]}",
        "Tiny ImageNet.*one level deeper; .*Move them out of .*/images,",
    ),
    "Tiny ImageNet, val": (
        tiny_val,
        "val",
        "Tiny ImageNet.*Move each out of .*/val/images .*val_annotations.txt",
    ),
    "one level too many": (
        doubled,
        "train",
        "has only 'train', and the class folders are in that; move them from .*/train/train up",
    ),
    "an empty part": (
        lambda root: again(root / "train"),
        "train",
        "too few class folders: none; expected at least two",
    ),
    "one class": (
        few_classes,
        "train",
        "too few class folders: only 'n01440764'; expected at least two, each with images",
    ),
    "records": (
        lambda root: files(again(root / "train"), "train-0.tfrecord"),
        "train",
        r"too few class folders: none, but 1 other file \(train-0.tfrecord\)",
    ),
    "an empty class": (
        lambda root: again(root / "train" / CLASSES[1]),
        f"train/{CLASSES[1]}",
        "has no images; expected files ending in .jpg .*; found nothing",
    ),
    "empty classes": (
        lambda root: (again(root / "train" / CLASSES[0]), again(root / "train" / CLASSES[2])),
        f"train/{CLASSES[0]}",
        r"found nothing \(2 of 3 class folders have no images\)",
    ),
    "a class without images": (
        lambda root: files(again(root / "train" / CLASSES[2]), "a.xml", "b.xml", "c"),
        f"train/{CLASSES[2]}",
        r"has no images; .*; found 2 x .xml, 1 x no ending",
    ),
    "images in folders of a class": (
        lambda root: files(root / "train" / CLASSES[0] / "more", "a.JPEG"),
        f"train/{CLASSES[0]}",
        r"has images in folders of its own \(.*/n01440764/more\); expected .*Move them up",
    ),
    "a folder like an image": (
        lambda root: (root / "val" / CLASSES[0] / "a.JPEG").mkdir(),
        f"val/{CLASSES[0]}/a.JPEG",
        "is a folder, though named like an image; rename it or move it away",
    ),
    "classes missing in val": (
        lambda root: shutil.rmtree(root / "val" / CLASSES[1]),
        "val",
        r"other classes than the training images: 1 missing \(n01443537\); "
        "expected folders of the same names",
    ),
    "classes extra in val": (
        lambda root: classes(root / "val", tuple("abcd")),
        "val",
        r"other classes than the training images: 4 extra \(a, b, c, ...\)",
    ),
    "classes spelt otherwise in val": (
        renamed_classes,
        "val",
        r"2 missing .*2 extra \(N01440764, N01443537\); "
        ".*Some differ only in case or spaces: rename",
    ),
    "a link to nothing": (
        link_to_nothing,
        "train",
        "1 of 7 images in .* cannot be read: .*/n01443537/a.JPEG is a link to nothing; "
        ".*--damaged skip",
    ),
    "files of zero bytes": (
        zero_bytes,
        "val",
        "3 of 6 images in .* cannot be read: .*_1.JPEG is of zero bytes, .*copy them again",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_imagenet(root: Path, name: str) -> None:
    change, path, message = WRONG[name]
    change(root)
    with pytest.raises((ValueError, OSError)) as error:
        load(Recipe(data="imagenet", root=root))
    assert re.search(message, str(error.value)), error.value
    assert str(root / path) in str(error.value)


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_part_as_the_root_of_imagenet(root: Path, part: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"root={root / part} has class folders directly in it .*Did you mean {root}\?",
    ):
        load(Recipe(data="imagenet", root=root / part))


PHOTOS: dict[str, tuple[Change, str, str]] = {
    "too high": (
        moved("train", "mine/photos"),
        "",
        "has no class folders, but .*/mine/photos has; did you mean that",
    ),
    "too high, with parts": (
        moved("train", "mine/photos/train"),
        "",
        "has no train, but .*/mine/photos has; did you mean that",
    ),
    "train of another name": (
        moved("train", "Training"),
        "",
        "has no train, but Training; .*rename it to train",
    ),
    "test alone": (moved("train", "test"), "", r"has no train; found 1 folder \(test\)"),
    "train alone": (
        lambda _: None,
        "",
        "has train, but beside it no test or val or validation; .*Or give .*/data/train instead",
    ),
    "test of another name": (
        lambda root: classes(root / "Testing"),
        "",
        "has no test, but Testing; .*rename it to test",
    ),
    "a class named train": (
        lambda root: (files(again(root / "train"), "a.jpg"), classes(root, ("bus", "car"))),
        "train",
        "has images directly in it; if it is a class, as bus, car, give it another name",
    ),
    "test without classes": (
        lambda root: files(root / "test", "1.jpg", "2.jpg"),
        "test",
        "has 2 images .* directly in it; .*move each into a folder of its class; "
        "if nobody knows its class, move the folder away",
    ),
    "images alone": (
        lambda root: files(again(root), "a.jpg"),
        "",
        r"has 1 image \(a.jpg\) directly in it; expected a folder of",
    ),
    "domains of classes": (
        lambda root: (classes(again(root) / "amazon"), classes(root / "webcam")),
        "amazon",
        "has images in folders of its own .*; "
        "or, if these folders are the classes, give the folder that they are in",
    ),
}


@pytest.mark.parametrize("name", PHOTOS)
def test_a_wrong_folder(root: Path, name: str) -> None:
    shutil.rmtree(root / "val")
    change, path, message = PHOTOS[name]
    change(root)
    with pytest.raises((ValueError, OSError)) as error:
        load(Recipe(data="folder", root=root))
    assert re.search(message, str(error.value), re.IGNORECASE), error.value
    assert str(root / path) in str(error.value)


def test_an_archive_as_root(tmp_path: Path) -> None:
    files(tmp_path, "ILSVRC2012_img_train.tar")
    with pytest.raises(
        NotADirectoryError,
        match=r"root=.*_train.tar is a file; expected a folder; unpack it and give the folder",
    ):
        load(Recipe(data="imagenet", root=tmp_path / "ILSVRC2012_img_train.tar"))


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0,
    reason="nothing is forbidden to root, nor by modes on Windows",
)
@pytest.mark.parametrize("path", ["", "train", f"val/{CLASSES[0]}"])
def test_a_folder_that_may_not_be_read(root: Path, path: str) -> None:
    (root / path).chmod(0)
    try:
        with pytest.raises(
            PermissionError,
            match=f"{root / path} cannot be read .*ermission denied.*that you may list",
        ):
            load(Recipe(data="imagenet", root=root))
    finally:
        (root / path).chmod(0o700)


def test_a_refusal_of_the_system_is_passed_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(
        PermissionError,
        match=rf"^{root} cannot be read \(Permission denied\); expected a folder that exists and",
    ):
        load(Recipe(data="imagenet", root=root))


@pytest.mark.parametrize("kind", ["imagenet", "folder"])
def test_a_right_tree(root: Path, kind: str) -> None:
    for part in ("train", "val"):  # what is left behind does no harm
        files(root / part / "__MACOSX" / "more", "._a.JPEG")
        files(root / part / CLASSES[0], "._a.JPEG", ".DS_Store", "Thumbs.db", "notes.txt")
        files(root / part / CLASSES[0] / "notes", "notes.txt")
        files(root / part, f"{CLASSES[0]}.tar", "words.txt")
    (root / "val" / CLASSES[0] / "link.JPEG").symlink_to(
        root / "val" / CLASSES[0] / f"{CLASSES[0]}_1.JPEG"
    )
    data = load(Recipe(data=kind, root=root, validation=0))
    assert data.classes == CLASSES
    assert (len(data.train), len(data.test)) == (6, 7)


def test_a_tree_of_links(root: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / "some" / part).mkdir(parents=True)
        for name in CLASSES[:2]:
            (tmp_path / "some" / part / name).symlink_to(root / part / name)
    assert load(Recipe(data="imagenet", root=tmp_path / "some")).classes == CLASSES[:2]


def test_files_that_are_skipped_may_be_empty_or_missing(root: Path) -> None:
    for path in root.glob("*/*/*_2.JPEG"):
        Image.new("RGB", (4, 4)).save(path)
    link_to_nothing(root)
    zero_bytes(root)
    data = load(Recipe(data="imagenet", root=root, damaged="skip", validation=0))
    assert (len(data.train), len(data.test)) == (7, 6)


def test_labels_are_ranks_whatever_the_order_on_disk(tmp_path: Path) -> None:
    classes(tmp_path, ("b", "C", "a10", "a9", "_"))
    found, images = scan(tmp_path)
    assert found == ("C", "_", "a10", "a9", "b")
    assert [Path(path).parent.name for path in images.paths] == [
        found[label] for label in images.y.tolist()
    ]


@pytest.mark.parametrize("names", [("guinea pig", "guineapig"), ("ant", "ant "), ("ANT", "ant")])
def test_classes_that_hardly_differ_are_noted(tmp_path: Path, names: tuple[str, str]) -> None:
    classes(tmp_path, names)
    if len(list(tmp_path.iterdir())) < 2:
        pytest.skip("this file system does not tell them apart")
    with pytest.warns(
        UserWarning,
        match=f"differ only in case or spaces, {names[0]!r} and {names[1]!r}; .*merge them",
    ):
        scan(tmp_path)


def test_images_beside_the_classes_are_noted(root: Path) -> None:
    files(root / "val", "a.JPEG", "b.JPEG")
    with pytest.warns(
        UserWarning,
        match=rf"{root / 'val'} has 2 images \(a.JPEG, b.JPEG\) beside its class folders; "
        ".*not used",
    ):
        load(Recipe(data="imagenet", root=root))


def test_an_incomplete_imagenet_is_noted() -> None:
    with pytest.warns(
        UserWarning, match="here are 1,281,166 and 50,000: is the copy complete"
    ) as noted:
        layouts.note_incomplete(1000, 1_281_166, 50_000)
    assert len(noted) == 1


@pytest.mark.parametrize("counts", [(1000, 1_281_167, 50_000), (100, 130_000, 5_000)])
def test_a_complete_imagenet_and_a_part_of_the_classes_are_not(
    counts: tuple[int, int, int],
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layouts.note_incomplete(*counts)


def test_a_thousand_classes_are_counted(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for i in range(1000):
            files(tmp_path / part / f"n{i:08}", "a.JPEG")
    with pytest.warns(
        UserWarning,
        match="ImageNet has 1,281,167 .* here are 1,000 and 1,000: is the copy complete",
    ):
        load(Recipe(data="imagenet", root=tmp_path))


def test_the_look_for_a_better_root_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b/c/d").mkdir(parents=True)
    classes(tmp_path / "a/b/c/d/train")
    for i in range(300):
        (tmp_path / f"z{i:03}").mkdir()
    looks = []
    monkeypatch.setattr(
        layouts, "look", lambda path, **options: looks.append(path) or look(path, **options)
    )  # type: ignore[func-returns-value]
    with pytest.raises(ValueError, match="has no train; found 301 folders"):
        load(Recipe(data="imagenet", root=tmp_path))
    assert len(looks) < 120
    assert tmp_path / "a/b/c/d" not in looks


def test_few() -> None:
    assert few([]) == ""
    assert few("abc") == "a, b, c"
    assert few("abcd") == "a, b, c, ..."

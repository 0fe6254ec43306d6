"""Data by name: three parts that share no image, and refusals that name what is wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bgn_lab.data import fashion_mnist, load
from bgn_lab.data.folders.decode import Files
from bgn_lab.data.folders.scan import scan
from bgn_lab.data.sources import Data, InMemory
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.test_data_cifar10 import archives as archives  # a fixture
from tests.lab.test_data_folder import CLASSES, fill, joined, noise


def sizes(data: Data) -> list[int]:
    return [len(part) for part in (data.train, data.validation, data.test)]


def images(part: object) -> list[bytes]:
    assert isinstance(part, InMemory)
    return [image.numpy().tobytes() for image in part.x]


def test_fashion_mnist_is_there_without_a_word() -> None:
    data = load(Recipe())
    assert data.name == "fashion-mnist"
    assert data.classes == fashion_mnist.CLASSES
    assert data.shape == (1, 28, 28)
    assert sizes(data) == [5400, 600, 2000]
    assert data.chance == pytest.approx(0.1)
    x, _ = fashion_mnist.load(None)["train"]
    assert sorted(images(data.train) + images(data.validation)) == sorted(
        image.numpy().tobytes() for image in x
    )
    assert isinstance(data.train, InMemory)
    assert (data.train.pad, data.train.flip) == (2, True)


def test_parts_do_not_depend_on_the_seed_but_on_the_limit() -> None:
    one, other, limited = (load(Recipe(seed=0)), load(Recipe(seed=1)), load(Recipe(limit=100)))
    assert images(one.validation) == images(other.validation)
    assert sizes(limited) == [90, 10, 2000]
    assert set(images(limited.train)) <= set(images(one.train)) | set(images(one.validation))


@pytest.mark.parametrize(("share", "expected"), [(0.0, [6000, 0, 2000]), (0.5, [3000, 3000, 2000])])
def test_the_share_of_validation(share: float, expected: list[int]) -> None:
    data = load(Recipe(validation=share))
    assert sizes(data) == expected
    assert sum(len(y) for _, y in data.validation.evaluation(250)) == expected[1]


def test_without_augmentation_images_stay_as_they_are() -> None:
    data = load(Recipe(augment=False, limit=300))
    x, _ = joined(data.train.training(270, 0, 0))
    assert sorted(image.numpy().tobytes() for image in x) == sorted(images(data.train))


def test_cifar10_from_the_cache_or_a_root(
    archives: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load(Recipe(data="cifar10", root=archives["BINARY"].parent, validation=0.25))
    assert sizes(data) == [15, 5, 4]
    assert data.shape == (3, 32, 32)
    assert len(data.classes) == 10
    assert not set(images(data.train)) & set(images(data.validation))
    home = archives["PICTURES"].parents[1]
    (home / "cifar10").mkdir()
    shutil.copy(archives["PICTURES"], home / "cifar10")
    monkeypatch.setenv("BGN_HOME", str(home))
    cached = load(Recipe(data="cifar10", validation=0.25))
    assert images(cached.train) == images(data.train)


def test_cifar10_that_was_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BGN_HOME", str(tmp_path))
    with pytest.raises(
        FileNotFoundError,
        match=f"root={tmp_path / 'cifar10'} has no CIFAR-10.*bgn data get cifar10",
    ):
        load(Recipe(data="cifar10"))


def test_arrays_bring_their_own_mean(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    x = (draws.random((60, 16, 16, 3)) * [50, 100, 200]).astype(np.uint8)
    y = draws.integers(0, 2, 60)
    np.savez(
        tmp_path / "own.npz",
        x_train=x[:40],
        y_train=y[:40],
        x_test=x[40:],
        y_test=y[40:],
        class_names=["cat", "dog"],
    )
    data = load(Recipe(data=str(tmp_path / "own.npz")))
    assert (data.name, data.classes, data.shape) == ("arrays", ("cat", "dog"), (3, 16, 16))
    assert sizes(data) == [36, 4, 20]
    assert data.mean == pytest.approx(x[:40].mean((0, 1, 2)) / 255)
    assert data.std == pytest.approx(x[:40].std((0, 1, 2)) / 255)
    assert isinstance(data.train, InMemory)
    assert data.train.pad == 2
    prepared = (
        next(data.test.evaluation(20))[0] / 255 - torch.tensor(data.mean).view(3, 1, 1)
    ) / torch.tensor(data.std).view(3, 1, 1)
    assert prepared.std((0, 2, 3)).tolist() == pytest.approx([1, 1, 1], abs=0.05)


def test_arrays_of_one_color_do_not_divide_by_zero(tmp_path: Path) -> None:
    x, y = np.full((4, 8, 8), 7, np.uint8), np.arange(4)
    np.savez(tmp_path / "flat.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    assert load(Recipe(data=str(tmp_path / "flat.npz"))).std[0] > 0


@pytest.mark.parametrize(
    ("name", "near"),
    [("fashion_mnist", "fashion-mnist"), ("cifar", "cifar10"), ("ImageNet", "imagenet")],
)
def test_an_unknown_name_gets_a_suggestion(name: str, near: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"data='{name}' is not known; accepted: fashion-mnist, .*did you mean '{near}'\?",
    ):
        load(Recipe(data=name))


@pytest.mark.parametrize(
    ("kind", "what"), [("imagenet", "a folder"), ("folder", "a folder"), ("arrays", "an .npz file")]
)
def test_a_root_is_needed(kind: str, what: str) -> None:
    with pytest.raises(ValueError, match=f"data='{kind}' needs --root, {what}"):
        load(Recipe(data=kind))


def test_too_few_images_to_test(tmp_path: Path) -> None:
    data = load(Recipe(data=str(fill(tmp_path, 1, ("a", "b")))))
    assert sizes(data) == [2, 0, 0]
    assert data.chance == 0


def test_folders_with_parts(tmp_path: Path) -> None:
    fill(tmp_path / "train", 10)
    fill(tmp_path / "val", 2)
    fill(tmp_path / "test", 3)
    data = load(Recipe(data=str(tmp_path), image_size=8, decoders=0, validation=0.2))
    assert data.classes == CLASSES
    assert data.shape == (3, 8, 8)
    assert sizes(data) == [24, 6, 9]
    assert data.chance == pytest.approx(1 / 3)
    shutil.rmtree(tmp_path / "test")
    data = load(Recipe(data=str(tmp_path), image_size=8, decoders=0))
    assert len(data.test) == 6
    x, _ = joined(data.test.evaluation(4))
    assert x.shape == (6, 3, 8, 8)


def test_folders_as_the_recipe_says(tmp_path: Path) -> None:
    data = load(
        Recipe(
            data=str(fill(tmp_path, 10)),
            image_size=9,
            decoders=3,
            damaged="skip",
            augment=False,
            limit=20,
            validation=0.2,
        )
    )
    assert sizes(data) == [16, 4, 6]  # the limit is for training
    for part in (data.train, data.validation, data.test):
        assert isinstance(part, Files)
        assert (part.size, part.decoders, part.damaged) == (9, 3, "skip")
    assert isinstance(data.train, Files)
    assert not data.train.augment


def test_imagenet_is_tested_on_its_validation_images(tmp_path: Path) -> None:
    fill(tmp_path / "train", 3)
    fill(tmp_path / "val", 1)
    (tmp_path / "test").mkdir()  # ImageNet's has images without labels
    noise(0, (8, 8)).save(tmp_path / "test" / "1.png")
    data = load(Recipe(data="imagenet", root=tmp_path))
    assert len(data.test) == 3
    assert data.shape == (3, 224, 224)


def test_class_folders_alone_are_split(tmp_path: Path) -> None:
    photos = fill(tmp_path, 25)
    data = load(Recipe(data=str(photos), image_size=8, decoders=0, damaged="skip"))
    assert sizes(data) == [54, 6, 15]
    parts = [
        part.paths for part in (data.train, data.validation, data.test) if isinstance(part, Files)
    ]
    assert sorted(path for part in parts for path in part) == sorted(scan(photos)[1].paths)
    again = load(Recipe(data=str(photos), image_size=8, seed=5))
    assert isinstance(again.test, Files)
    assert again.test.paths == parts[2]


def without_class(root: Path) -> None:
    shutil.rmtree(root / "val" / "cow")


def other_class(root: Path) -> None:
    (root / "val" / "cow").rename(root / "val" / "dog")


def empty_class(root: Path) -> None:
    shutil.rmtree(root / "train" / "bee")
    (root / "train" / "bee").mkdir()


def one_class(root: Path) -> None:
    shutil.rmtree(root / "train" / "bee")
    shutil.rmtree(root / "train" / "cow")


def no_class(root: Path) -> None:
    shutil.rmtree(root / "train")
    (root / "train").mkdir()


def no_validation(root: Path) -> None:
    shutil.rmtree(root / "val")


@pytest.mark.parametrize(
    ("spoil", "named", "message"),
    [
        (shutil.rmtree, "", "does not exist; expected a folder"),
        (no_class, "train", "too few class folders: none; expected at least two"),
        (one_class, "train", "too few class folders: only 'ant'"),
        (empty_class, "train/bee", "has no images; expected files ending in .jpg"),
        (without_class, "val", "other classes than the training images: 1 missing .cow.; expected"),
        (
            other_class,
            "val",
            "other classes than the training images: 1 missing .cow., 1 extra .dog.; expected",
        ),
        (no_validation, "", "has train, but beside it no test or val"),
    ],
)
def test_a_wrong_folder_is_named(
    tmp_path: Path, spoil: Callable[[Path], None], named: str, message: str
) -> None:
    root = tmp_path / "photos"
    fill(root / "train", 1)
    fill(root / "val", 1)
    spoil(root)
    with pytest.raises((FileNotFoundError, ValueError), match=f"{root / named} .*{message}"):
        load(Recipe(data="folder", root=root))


@pytest.mark.parametrize("kind", ["imagenet", "folder"])
def test_a_folder_without_anything(tmp_path: Path, kind: str) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=str(tmp_path)):
        load(Recipe(data=kind, root=tmp_path))

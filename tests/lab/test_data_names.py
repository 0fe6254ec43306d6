"""Names that are not UTF-8, or that would control a terminal."""

import os
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from bgn_lab.data import domains, few_shot, load
from bgn_lab.data.names import printable
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.test_data_folder import fill, noise

BAD = "caf\udce9"  # Latin-1 bytes
RED = "\x1b[31mred\n"


def rename(root: Path, old: str, new: str) -> None:
    try:
        (root / old).rename(root / new)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")


@pytest.fixture(params=[BAD, RED])
def photos(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The root, a class and an image have such a name."""
    fill(tmp_path / "photos", 5)
    rename(tmp_path / "photos", "ant", request.param)
    rename(tmp_path / "photos" / request.param, "000.png", f"{request.param}.png")
    rename(tmp_path, "photos", f"photos{request.param}")
    return tmp_path / f"photos{request.param}"


def is_safe(text: str) -> bool:
    text.encode()
    return text.isprintable()


def test_printable_leaves_ordinary_names_alone() -> None:
    assert printable("größe 日本 n01440764_1.JPEG") == "größe 日本 n01440764_1.JPEG"
    assert printable(Path("/a/b")) == "/a/b"
    assert is_safe(printable("".join(map(chr, range(0xD7F0, 0xE010))) + "\u202e\x7f\x9b"))


def test_such_folders_load(photos: Path) -> None:
    data = load(Recipe(data=str(photos), image_size=8, decoders=0))
    assert len(data.classes) == 3
    assert all(map(is_safe, data.classes))
    assert {r"caf\xe9", r"\x1b[31mred\n"} & {*data.classes}
    assert sum(len(y) for _, y in data.train.evaluation(4)) == len(data.train)
    assert is_safe(data.fingerprint)


def test_a_damaged_image_of_such_a_name(photos: Path) -> None:
    folder = next(path for path in photos.iterdir() if path.name not in ("bee", "cow"))
    for path in folder.iterdir():
        path.write_bytes(b"no image")
    data = load(Recipe(data=str(photos), image_size=8, decoders=0, validation=0))
    with pytest.raises(ValueError, match="cannot be read as an image") as error:
        list(data.train.evaluation(4))
    assert is_safe(str(error.value))
    with pytest.raises(ValueError, match="none of the 5 images") as error:
        load(Recipe(data=str(photos), image_size=8, decoders=0, damaged="skip"))
    assert is_safe(str(error.value))


@pytest.mark.parametrize("kind", ["folder", "imagenet"])
def test_refusals_are_printable(photos: Path, kind: str) -> None:
    fill(photos / "train", 1, ("a", RED))
    with pytest.raises(ValueError, match="has train, but") as error:
        load(Recipe(data=kind, root=photos))
    assert is_safe(str(error.value))
    with pytest.raises(OSError, match="does not exist") as missing:
        load(Recipe(data=kind, root=photos / "x" / "y"))
    assert is_safe(str(missing.value))


def test_domains_and_few_shot(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        fill(tmp_path / part, 1)
        rename(tmp_path / part, "ant", BAD)
    found = few_shot.load(Recipe(data=str(tmp_path), image_size=8, validation=0), 2)
    assert found.classes == found.new_classes == ("bee", r"caf\xe9", "cow")
    rename(tmp_path, "val", "val" + RED)
    data = domains.load(Recipe(data=str(tmp_path), image_size=8), "test-val")
    assert (data.source, data.target) == ("test", r"val\x1b[31mred\n")
    with pytest.raises(ValueError, match="does not name two") as error:
        domains.load(Recipe(data=str(tmp_path), image_size=8), "x")
    assert is_safe(str(error.value))


def test_class_names_of_arrays(tmp_path: Path) -> None:
    x, y = np.zeros((4, 8, 8), np.uint8), np.arange(4) % 2
    path = tmp_path / "own.npz"
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y, class_names=[RED, "b"])
    assert load(Recipe(data=str(path))).classes == (r"\x1b[31mred\n", "b")
    np.savez(path, **{RED: x})
    with pytest.raises(ValueError, match=re.escape(r"found \x1b[31mred\n")) as error:
        load(Recipe(data=str(path)))
    assert is_safe(str(error.value))


def test_an_archive_of_such_a_name(tmp_path: Path) -> None:
    file = BytesIO()
    noise(0, (8, 8)).save(file, "PNG")
    path = tmp_path / f"{BAD}.npz"
    try:
        path.write_bytes(file.getvalue())
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with pytest.raises(ValueError, match="cannot be read as an .npz file") as error:
        load(Recipe(data=str(path)))
    assert is_safe(str(error.value))
    os.unlink(path)
    with pytest.raises(FileNotFoundError) as missing:
        load(Recipe(data=str(path)))
    assert is_safe(str(missing.value))

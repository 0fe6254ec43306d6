"""tools/class_folders.py: JPEGs of an .npz file as a tree that the laboratory reads."""

import random
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bgn_lab.data import load
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab import scripts

WNIDS = ("n03", "n01", "n02")  # two classes for training, one for validation


@pytest.fixture(scope="module")
def script() -> Any:
    return scripts.load("class_folders")


def jpeg(number: int) -> bytes:
    file = BytesIO()
    Image.frombytes("RGB", (9, 8), random.Random(number).randbytes(9 * 8 * 3)).save(file, "JPEG")
    return file.getvalue()


JPEGS = [jpeg(i) for i in range(18)]  # image i is of class i % 3


def packed(path: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {
        "jpeg": np.frombuffer(b"".join(JPEGS), np.uint8),
        "offsets": np.cumsum([0, *map(len, JPEGS)]),
        "labels": np.arange(18, dtype=np.uint8) % 3,
        "split": (np.arange(18) % 3 == 2).astype(np.uint8),
        "split_names": np.array(["train", "val"]),
        "class_names": np.array(["cow", "ant", "bee"]),
        "wnids": np.array(WNIDS),
    }
    np.savez(
        path, **{name: array for name, array in {**arrays, **changes}.items() if array is not None}
    )
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return packed(tmp_path / "images.npz")


def tree(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file()
    }


def test_the_last_images_of_each_class_are_for_testing(
    script: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.main([str(file), str(tmp_path / "out"), "--test-share", "0.33"])
    expected = {
        f"{'val' if i >= 12 else 'train'}/{WNIDS[i % 3]}/{WNIDS[i % 3]}_{i}.JPEG": JPEGS[i]
        for i in range(18)
        if i % 3 < 2
    }
    assert tree(tmp_path / "out") == expected
    assert (
        capsys.readouterr().out == f"{tmp_path / 'out'}: 2 classes, 8 images in train, 4 in val\n"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images.npz", "out"]


def test_the_laboratory_reads_it(script: Any, file: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()  # an empty folder is as good as none
    script.main([str(file), str(tmp_path / "out"), "--classes", "2"])
    data = load(
        Recipe(data="imagenet", root=tmp_path / "out", image_size=8, decoders=0, validation=0)
    )
    assert data.classes == ("n01", "n03")
    assert (len(data.train), len(data.test)) == (10, 2)
    assert next(data.train.evaluation(10))[0].shape == (10, 3, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--classes", "3"], "--classes 3 is out of range; expected 2 to 2, the classes of train"),
        (["--split", "test"], "--split test is not known; accepted: train, val"),
        (
            ["--test-share", "1"],
            "--test-share 1.0 of a class of 6 images; expected a share between 0 and 1",
        ),
    ],
)
def test_a_wrong_option(
    script: Any,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit, match="2"):
        script.main([str(file), str(tmp_path / "out"), *options])
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wnids": None}, "has no wnids; expected jpeg, offsets,"),
        (
            {"wnids": np.array(["n01", "../n02", "n03"])},
            "has the wnid '../n02'; expected the name of a folder",
        ),
        (
            {"wnids": np.array([object()])},
            ": wnids is an array of type object; expected numbers or strings",
        ),
        ({"labels": np.zeros(17, np.uint8)}, ": labels is uint8 (17,); expected integers (18,)"),
        (
            {"labels": np.full(18, 3)},
            ": labels has the value 3; expected 0 to 2",
        ),
        ({"wnids": np.array(["n01", "n01", "n02"])}, "has two wnids of the same name"),
        (
            {"split": np.zeros(0), "labels": np.zeros(0, int), "offsets": np.zeros(1, int)},
            ": split is float64 (0,); expected integers (0,)",
        ),
        ({"offsets": np.arange(19)}, ": offsets does not rise from file to file"),
        (
            {"offsets": 100 + np.cumsum([0, *map(len, JPEGS)])},
            f": offsets has the value {100 + sum(map(len, JPEGS))}; expected 0 to",
        ),
        ({"offsets": np.arange(2, 40, 2)}, "is no JPEG: it begins with ffe0, expected ffd8"),
    ],
)
def test_a_wrong_file(
    script: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    message: str,
) -> None:
    file = packed(tmp_path / "images.npz", **changes)
    with pytest.raises(SystemExit, match="2"):
        script.main([str(file), str(tmp_path / "out")])
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [file]  # no draft is left


def test_a_file_that_is_missing_or_damaged(script: Any, file: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="other.npz is not there; expected an .npz file"):
        script.jpegs.read(tmp_path / "other.npz")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match="images.npz cannot be read as an .npz file"):
        script.jpegs.read(file)


def test_what_is_there_stays(
    script: Any, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        script.main([str(file), str(tmp_path / "out")])
    assert f"{tmp_path / 'out'} is there and not empty" in capsys.readouterr().err
    assert tree(tmp_path / "out") == {"mine.txt": b"mine"}

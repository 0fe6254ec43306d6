"""Fingerprints: the same for the same content anywhere, different for any other content."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgn_lab.data import domains, few_shot, load
from bgn_lab.data.folders import decode
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.test_data_domains import archive as archive  # fixtures
from tests.lab.test_data_domains import folder as folder
from tests.lab.test_data_folder import fill

SCRIPT = """
import sys
from pathlib import Path
from bgn_lab.data import load
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
print(load(Recipe(data="folder", root=Path(sys.argv[1]), image_size=8)).fingerprint)
"""


def of(root: Path, **changes: Any) -> str:
    settings: dict[str, Any] = {"image_size": 8} if root.is_dir() else {}
    return load(Recipe(data=str(root), **{**settings, **changes})).fingerprint


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    fill(tmp_path / "photos" / "train", 12)
    fill(tmp_path / "photos" / "test", 4)
    return tmp_path / "photos"


def test_the_same_files_elsewhere(photos: Path, tmp_path: Path) -> None:
    before = of(photos)
    assert len(before) == 16
    assert int(before, 16) >= 0
    assert before == of(photos), "it is repeatable"
    moved = tmp_path / "other" / "name"
    for path in sorted(photos.rglob("*.*"), reverse=True):  # another order on the disk
        to = moved / path.relative_to(photos)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
        os.utime(to, (1, 1))
    assert of(moved) == before
    assert of(moved, decoders=0, augment=False, seed=3) == before, "content alone"


def other_bytes(root: Path) -> None:
    path = root / "train" / "bee" / "000.png"
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


def other_size(root: Path) -> None:
    with (root / "test" / "bee" / "000.png").open("ab") as file:
        file.write(b"x")


def other_label(root: Path) -> None:
    (root / "test" / "ant" / "000.png").rename(root / "test" / "bee" / "zzz.png")


def other_name(root: Path) -> None:
    path = root / "train" / "ant" / "000.png"
    path.rename(path.with_name("000a.png"))


def other_class(root: Path) -> None:
    for part in ("train", "test"):
        (root / part / "cow").rename(root / part / "cox")


def one_less(root: Path) -> None:
    (root / "train" / "ant" / "000.png").unlink()


@pytest.mark.parametrize(
    "change", [other_bytes, other_size, other_label, other_name, other_class, one_less]
)
def test_other_files(photos: Path, change: Callable[[Path], None]) -> None:
    before = of(photos)
    change(photos)
    assert of(photos) != before


def test_the_image_size(photos: Path) -> None:
    assert of(photos, image_size=9) != of(photos)


def test_large_folders_are_sampled_evenly(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = load(Recipe(data=str(photos), validation=0)).train
    read: list[str] = []
    monkeypatch.setattr(decode, "SAMPLE", 4)
    monkeypatch.setattr(decode, "_add_bytes", lambda _, path: read.append(path))
    assert isinstance(files, decode.Files)
    assert files.fingerprint
    assert [files.paths.index(path) for path in read] == [0, 11, 23, 35]


def test_it_does_not_depend_on_the_locale(photos: Path) -> None:
    names = ("kö", "日", "zz")
    for part in ("train", "test"):
        for old, new in zip(("ant", "bee", "cow"), names, strict=True):
            (photos / part / old).rename(photos / part / new)
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT, str(photos)],
            env={**os.environ, "LC_ALL": locale, "PYTHONUTF8": utf8, "PYTHONCOERCECLOCALE": "0"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for locale, utf8 in (("C", "0"), ("C", "1"))
    }
    assert found == {of(photos)}


def write(path: Path, x: Any, y: Any, names: list[str]) -> Path:
    np.savez(path, x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:], class_names=names)
    return path


def test_arrays(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3)).astype(np.uint8)
    y, names = np.arange(9) % 3, ["a", "b", "c"]
    path = write(tmp_path / "one.npz", x, y, names)
    before = of(path)
    (tmp_path / "elsewhere").mkdir()
    shutil.copyfile(path, tmp_path / "elsewhere" / "two.npz")
    assert of(tmp_path / "elsewhere" / "two.npz") == before
    found = {before, of(path, limit=4), of(path, validation=0)}
    for i in (0, 8):
        pixel, label = x.copy(), y.copy()
        pixel[i, 3, 3, 2] ^= 1
        label[i] = (label[i] + 1) % 3
        found |= {of(write(tmp_path / f"pixel{i}.npz", pixel, y, names))}
        found |= {of(write(tmp_path / f"label{i}.npz", x, label, names))}
    found |= {of(write(tmp_path / "name.npz", x, y, ["a", "b", "d"]))}
    assert len(found) == 8


def test_a_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (9, 4, 4, 3)).astype(np.uint8)
    path = write(tmp_path / "one.npz", x, np.arange(9) % 3, ["a", "b", "c"])
    before = of(path)
    write(path, 255 - x, np.arange(9) % 3, ["a", "b", "c"])
    os.utime(path, (1, 1))
    assert of(path) != before


def test_domains(folder: Path, archive: Path) -> None:
    def of(path: Path, task: str) -> str:
        return domains.load(Recipe(data=str(path), image_size=14), task).fingerprint

    assert of(folder, "wd") == of(archive, "wd"), "the same images"
    assert len({of(folder, task) for task in ("wd", "dw", "da", "wa")}) == 4


def test_few_shot() -> None:
    data = few_shot.load(Recipe(), 2)
    assert data.fingerprint == few_shot.load(Recipe(seed=1), 2).fingerprint
    assert data.fingerprint not in (
        few_shot.load(Recipe(limit=100), 2).fingerprint,
        load(Recipe()).fingerprint,
    )

"""A sheet of JPEGs per class in an .npz file.

BGN_MINI100 names the real file, mini100_32.npz.
"""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bgn_lab.data import images, load, sheets
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe

SIDE = 8


def color(label: int, number: int) -> tuple[int, int, int]:
    return 100 * label, 6 * number, 30


def sheet(label: int, rows: int, side: int = SIDE) -> bytes:
    """Image ``number`` of class ``label`` has one color throughout."""
    found = Image.new("RGB", (20 * side, rows * side))
    for number in range(20 * rows):
        place = (number % 20 * side, number // 20 * side)
        found.paste(Image.new("RGB", (side, side), color(label, number)), place)
    file = BytesIO()
    found.save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def write(path: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {"wnids": ["n1", "n2"]}
    for part, rows in (("train", 2), ("test", 1)):
        files = [sheet(label, rows) for label in range(2)]
        arrays[f"{part}_sheets"] = np.frombuffer(b"".join(files), np.uint8)
        arrays[f"{part}_offsets"] = np.cumsum([0, *map(len, files)])
    np.savez(path, **{**arrays, **changes})
    return path


def test_images_of_a_sheet_are_in_their_order(tmp_path: Path) -> None:
    parts, classes = sheets.load(write(tmp_path / "sheets.npz"))
    assert classes == ("n1", "n2")
    for part, count in (("train", 40), ("test", 20)):
        x, y = parts[part]
        assert x.shape == (2 * count, 3, SIDE, SIDE)
        assert y.tolist() == [0] * count + [1] * count
        wanted = np.array([color(label, i) for label in range(2) for i in range(count)])
        middle = x[:, :, 2:-2, 2:-2].double().mean((2, 3)).numpy()
        assert np.abs(middle - wanted).max() < 4


def test_they_are_a_data_set_for_classification(tmp_path: Path) -> None:
    path = write(tmp_path / "sheets.npz", class_names=["cat", "dog"])
    data = load(Recipe(data=str(path), validation=0.25))
    assert (data.classes, data.shape) == (("cat", "dog"), (3, SIDE, SIDE))
    assert [len(part) for part in (data.train, data.validation, data.test)] == [60, 20, 40]
    assert data.chance == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_offsets": [0, 10]}, r"train_offsets is int64 \(2,\); expected integers \(3,\)"),
        ({"train_offsets": [0, 9, 5]}, "train_offsets does not rise from file to file"),
        ({"test_offsets": [0, 9, 10**9]}, "test_offsets has the value 1000000000; expected 0 to"),
        ({"test_offsets": [0.0, 9.0, 20.0]}, "test_offsets is float64"),
        ({"train_sheets": np.zeros(9999)}, r"train_sheets is float64 \(9999,\); expected uint8"),
        ({"train_sheets": np.zeros(99999, np.uint8)}, "the train sheet of n1 .*cannot be read"),
        ({"wnids": ["n1"]}, r"1 names for 1 wnids; expected as many, two or more"),
        ({"class_names": ["cat"]}, "1 names for 2 wnids"),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "sheets.npz", **changes)
    with pytest.raises(ValueError, match=message):
        sheets.load(path)


@pytest.mark.parametrize("size", [(21 * SIDE + 1, SIDE), (20 * SIDE, SIDE + 1), (19, 8)])
def test_a_sheet_without_full_rows(tmp_path: Path, size: tuple[int, int]) -> None:
    file = BytesIO()
    Image.new("RGB", size).save(file, "JPEG")
    raw = np.frombuffer(2 * file.getvalue(), np.uint8)
    offsets = [0, len(raw) // 2, len(raw)]
    path = write(tmp_path / "sheets.npz", test_sheets=raw, test_offsets=offsets)
    with pytest.raises(ValueError, match=f"is {size[0]} x {size[1]} pixels; expected full rows"):
        sheets.load(path)


def test_sheets_of_different_widths(tmp_path: Path) -> None:
    files = [sheet(0, 1, 8), sheet(1, 1, 16)]
    raw, offsets = np.frombuffer(b"".join(files), np.uint8), np.cumsum([0, *map(len, files)])
    path = write(tmp_path / "sheets.npz", test_sheets=raw, test_offsets=offsets)
    with pytest.raises(ValueError, match="sheets 160 to 320 pixels wide; expected one width"):
        sheets.load(path)


def test_images_that_memory_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "sheets.npz")
    monkeypatch.setattr(sheets, "available_memory", lambda: 1000)
    monkeypatch.setattr(images, "rgb", lambda _: pytest.fail("decoded"))
    with pytest.raises(ValueError, match="its images need .* of memory, 0 MB are available"):
        sheets.load(path)


def test_the_real_file() -> None:
    path = os.environ.get("BGN_MINI100")
    if not path:
        pytest.skip("BGN_MINI100 does not name mini100_32.npz")
    data = load(Recipe(data=path, validation=0))
    assert (len(data.classes), data.shape) == (100, (3, 32, 32))
    assert data.train.y.bincount().tolist() == [400] * 100
    assert data.test.y.bincount().tolist() == [60] * 100

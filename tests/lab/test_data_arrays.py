"""Images in .npz files: what is accepted, and refusals that name the file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bgn_lab.data.arrays import load

X = np.arange(5 * 4 * 6 * 3, dtype=np.uint8).reshape(5, 4, 6, 3)
GOOD: dict[str, Any] = {"x_train": X[:3], "y_train": [2, 0, 1], "x_test": X[3:], "y_test": [1, 1]}


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def write(folder: Path, **changes: Any) -> Path:
    """A file of good arrays but for the changes; None leaves one out."""
    path = folder / "own.npz"
    arrays: dict[str, Any] = {
        name: value for name, value in {**GOOD, **changes}.items() if value is not None
    }
    np.savez(path, **arrays)
    return path


def test_color(tmp_path: Path) -> None:
    parts, classes = load(write(tmp_path))
    assert classes == ("0", "1", "2")
    for (x, y), mine, labels in zip(
        parts.values(), (X[:3], X[3:]), ([2, 0, 1], [1, 1]), strict=True
    ):
        assert x.is_contiguous()
        assert y.dtype == torch.int64
        assert np.array_equal(x.numpy(), mine.transpose(0, 3, 1, 2))
        assert y.tolist() == labels


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 1)])
def test_grey(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = X[..., 0].reshape(5, *shape)
    parts, _ = load(write(tmp_path, x_train=x[:3], x_test=x[3:]))
    assert np.array_equal(parts["train"][0].numpy(), X[:3, None, ..., 0])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.uint64])
def test_labels_of_any_integer_type(tmp_path: Path, dtype: Any) -> None:
    parts, _ = load(write(tmp_path, y_train=np.array([2, 0, 1], dtype)))
    assert parts["train"][1].tolist() == [2, 0, 1]


@pytest.mark.parametrize(
    "names",
    [["cat", "dog", "emu"], np.array([b"cat", b"dog", b"emu"]), ["cat", "dog", "emu", "fox"]],
)
def test_names_of_classes(tmp_path: Path, names: Any) -> None:
    _, classes = load(write(tmp_path, class_names=names))
    assert classes == ("cat", "dog", "emu", "fox")[: len(names)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x_train": X[:3].astype(np.float32)},
            r"x_train is float32 \(3, 4, 6, 3\); expected uint8 \(M, H, W, C\)",
        ),
        ({"x_test": X[3:].astype(np.int8)}, "x_test is int8"),
        ({"x_train": X[:3].reshape(3, -1)}, r"x_train is uint8 \(3, 72\)"),
        ({"x_train": X[:3, None]}, r"x_train is uint8 \(3, 1, 4, 6, 3\)"),
        ({"y_train": [0.0, 1.0, 2.0]}, r"y_train is float64 \(3,\)"),
        ({"y_train": [True, False, True]}, r"y_train is bool \(3,\)"),
        ({"y_test": [0, 1, 2]}, r"y_test is int64 \(3,\); expected integers \(2,\)"),
        ({"y_test": [[0], [1]]}, r"y_test is int64 \(2, 1\)"),
        ({"y_test": [0, -1]}, "y_test has the value -1; expected 0 to"),
        ({"x_test": X[:0], "y_test": np.zeros(0, int)}, r"x_test is empty, \(0, 4, 6, 3\)"),
        ({"x_train": X[:3, :0]}, r"x_train is empty, \(3, 0, 6, 3\)"),
        (
            {"x_test": X[3:, :, :5]},
            r"training images are \(C, H, W\) = \(3, 4, 6\), test images \(3, 4, 5\)",
        ),
        ({"class_names": ["cat", "dog"]}, "y_train has the value 2; expected 0 to 1"),
        ({"class_names": "cat"}, "y_train has the value 2; expected 0 to 0"),
        (
            {"x_test": None, "y_train": None},
            "has no y_train, x_test; expected x_train, .*, found x_train, y_test",
        ),
    ],
)
def test_arrays_that_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"{path}.*{message}"):
        load(path)


@pytest.mark.parametrize("name", ["x_train", "y_test", "class_names"])
def test_nothing_is_unpickled(tmp_path: Path, name: str) -> None:
    touched = tmp_path / "touched"
    path = write(tmp_path, **{name: np.array([Trap(touched)], dtype=object)})
    with pytest.raises(
        ValueError, match=f"{path}: {name} is an array of type object; expected numbers or strings"
    ):
        load(path)
    assert not touched.exists()
    np.load(path, allow_pickle=True)[name]
    assert touched.exists()  # the trap works


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, share: float) -> None:
    path = write(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[: int(share * len(raw))])
    with pytest.raises(ValueError, match=f"{path} cannot be read as an .npz file"):
        load(path)


def test_a_changed_byte(tmp_path: Path) -> None:
    path = write(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[raw.index(X[:3].tobytes()) + 9] ^= 1
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{path} cannot be read as an .npz file: .*CRC"):
        load(path)


def test_another_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    path.write_text("x_train: none")
    with pytest.raises(ValueError, match=f"{path} cannot be read"):
        load(path)
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(ValueError, match=f"{path} cannot be read"):
        load(path)


@pytest.mark.parametrize("name", ["nowhere.npz", ""])
def test_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(
        FileNotFoundError, match=f"{tmp_path / name} is not there; expected an .npz file"
    ):
        load(tmp_path / name)

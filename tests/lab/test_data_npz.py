"""Archives that lie about their size, shape or labels: refused before memory is taken."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgn_lab.data import arrays, jpegs, npz
from tests.lab.test_class_folders import packed
from tests.lab.test_data_arrays import GOOD, write

HEADER = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }"


def member(dtype: str, shape: tuple[int, ...], body: bytes, version: int = 1) -> bytes:
    """An .npy file with a header of any content."""
    header = (HEADER % (dtype, shape)).encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header + body


def replace_member(path: Path, name: str, raw: bytes, how: int = zipfile.ZIP_STORED) -> Path:
    """Put another file into an archive."""
    with zipfile.ZipFile(path) as archive:
        content = {other: archive.read(other) for other in archive.namelist()}
    with zipfile.ZipFile(path, "w", how) as archive:
        for other, old in {**content, f"{name}.npy": raw}.items():
            archive.writestr(other, old)
    return path


@pytest.mark.parametrize("label", [10**9, 2**62, 2**63])
def test_a_label_far_beyond_the_others(tmp_path: Path, label: int) -> None:
    rows = {"y_train": np.array([0, 1, label], np.uint64)}
    with pytest.raises(ValueError, match=rf"own.npz: y_train .*{label}.*; expected 0"):
        npz.labels(tmp_path / "own.npz", rows, {"y_train": 3}, None)


def test_memory_stays_bounded_whatever_the_labels(tmp_path: Path) -> None:
    """In a process that may take 4 GB; counting up to the label would take 80 GB."""
    path = write(tmp_path, y_train=[0, 1, 10**10], y_test=[2, 2])
    resource, limit = pytest.importorskip("resource"), 4 << 30
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from bgn_lab.data import load\n"
            "from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe\n"
            "try: load(Recipe(data=sys.argv[1]))\n"
            "except ValueError as error: print(error)",
            str(path),
        ],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "labels up to 10000000000, but none is 3; expected 0, 1, 2, ..." in done.stdout


@pytest.mark.parametrize("y", [[0, 2, 2], [1, 2, 3]])
def test_labels_with_a_gap(tmp_path: Path, y: list[int]) -> None:
    path = write(tmp_path, y_train=y, y_test=[3, 3])
    with pytest.raises(ValueError, match="labels up to 3, but none is [01]; .*or class_names"):
        arrays.load(path)
    parts, classes = arrays.load(
        write(tmp_path, y_train=y, y_test=[3, 3], class_names=["a", "b", "c", "d"])
    )
    assert len(classes) == 4
    assert parts["train"][1].tolist() == y


def test_an_archive_that_unpacks_to_more_than_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    body = member("|u1", (50, 1000, 1000), bytes(50_000_000))
    replace_member(path, "x_train", body, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 200_000
    monkeypatch.setattr(npz, "available_memory", lambda: 80_000_000)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(
        ValueError,
        match=r"need 100 MB of memory .*largest is x_train, 50 MB\), 80 MB are available",
    ):
        arrays.load(path)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("|u1", (1 << 40, 4, 6, 3)),
        ("|u1", (1 << 62, 1 << 62, 6, 3)),
        ("|u1", (3, 4, 6, 2)),
        ("|u1", (-3, 4, 6, -3)),
        ("<f8", (3, 4, 6, 3)),
        ("<U9999999", (1 << 20,)),
    ],
)
def test_a_shape_that_does_not_fit(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = replace_member(
        write(tmp_path), "x_train", member(dtype, shape, GOOD["x_train"].tobytes())
    )
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("read"))
    with pytest.raises(ValueError, match=f"{path}: x_train is damaged: .* 216 are there"):
        arrays.load(path)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (member("|O", (3,), b"x" * 24), "x_train is an array of type object"),
        (member("<M8[s]", (3,), bytes(24)), "x_train is an array of type datetime64"),
        (member("|V8", (3,), bytes(24)), "x_train is an array of type"),
        (member("<c16", (3,), bytes(48)), "x_train is an array of type complex128"),
        (member("|u1", (3,), bytes(3), version=3), r"x_train is in version \(3, 0\)"),
        (b"", "cannot be read as an .npz file"),
        (b"\x93NUMPY\x01\x00", "cannot be read as an .npz file"),
        (b"\x93NUMPY\x01\x00\xff\xff{}", "cannot be read as an .npz file"),
    ],
)
def test_other_content(tmp_path: Path, raw: bytes, message: str) -> None:
    path = replace_member(write(tmp_path), "x_train", raw)
    with pytest.raises(ValueError, match=f"{path}.*{message}"):
        arrays.load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": np.full(18, 10**9)}, "labels has the value 1000000000; expected 0 to 2"),
        ({"labels": np.full(18, -1)}, "labels has the value -1; expected 0 to 2"),
        ({"labels": np.zeros(18)}, r"labels is float64 \(18,\); expected integers \(18,\)"),
        ({"split": np.full(18, 7)}, "split has the value 7; expected 0 to 1"),
        ({"offsets": np.array(5)}, r"offsets is int64 \(\); expected integers \(M,\)"),
        ({"offsets": np.zeros(0, int)}, "offsets does not rise"),
        (
            {"jpeg": np.zeros((9, 9), np.uint8)},
            r"jpeg is uint8 \(9, 9\); expected uint8 \(bytes,\)",
        ),
        ({"class_names": np.array(["a"])}, "has 1 class_names for 3 wnids; expected as many"),
    ],
)
def test_archives_of_jpegs(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = packed(tmp_path / "images.npz", **changes)
    with pytest.raises(ValueError, match=message):
        jpegs.read(path)

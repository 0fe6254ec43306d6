"""Fashion-MNIST: the part that ships, the format of its files, and the script that cut it out.

BGN_FASHION_MNIST names a folder with the four files of the whole data set.
"""

import gzip
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bgn_lab.data import fashion_mnist
from bgn_lab.data.fashion_mnist import CLASSES, FILES, load, read_idx
from tests.lab import scripts

SHIPPED = Path(fashion_mnist.__file__).parent / "fashion_mnist_part"
NAMES = [name for names in FILES.values() for name in names]


@pytest.fixture(scope="module")
def script() -> Any:
    return scripts.load("embed_fashion_mnist")


@pytest.fixture
def folder(tmp_path: Path, script: Any) -> Path:
    """Twenty training images and ten test images.

    The value of every pixel is the place of its image.
    """
    for names, count in zip(FILES.values(), (20, 10), strict=True):
        places = torch.arange(count, dtype=torch.uint8)
        for name, array in zip(
            names, (places[:, None, None].expand(-1, 28, 28), places % 10), strict=True
        ):
            (tmp_path / name).write_bytes(script.idx(array))
    return tmp_path


def repack(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw))


@pytest.mark.parametrize(("part", "count"), [("train", 600), ("test", 200)])
def test_the_shipped_part(part: str, count: int) -> None:
    x, y = load(None)[part]
    assert x.shape == (10 * count, 1, 28, 28)
    assert x.dtype == torch.uint8
    assert y.dtype == torch.int64
    assert y.bincount().tolist() == [count] * 10
    assert len({image.numpy().tobytes() for image in x}) > 0.99 * len(x)
    assert (x.double() / 255).mean().item() == pytest.approx(fashion_mnist.MEAN[0], abs=0.005)
    assert (x.double() / 255).std().item() == pytest.approx(fashion_mnist.STD[0], abs=0.005)


def test_the_parts_share_no_image() -> None:
    train, test = ({image.numpy().tobytes() for image in x} for x, _ in load(None).values())
    assert not train & test


def test_classes_look_like_what_they_are_called() -> None:
    x, y = load(None)["train"]
    means = {name: x[y == k, 0].double().mean(0) for k, name in enumerate(CLASSES)}
    assert (
        means["trouser"][:, 13].mean() < means["pullover"][:, 13].mean()
    )  # a gap between the legs
    assert (
        means["ankle boot"][:10].mean() > 4 * means["sneaker"][:10].mean()
    )  # a shaft above the shoe


def test_the_license_ships_beside_it() -> None:
    text = (SHIPPED / "LICENSE").read_text()
    assert "The MIT License" in text
    assert "Copyright (c) 2017 Zalando SE" in text
    assert "Permission is hereby granted, free of charge" in text


def test_a_folder_of_ones_own(folder: Path) -> None:
    parts = load(folder)
    assert [len(y) for _, y in parts.values()] == [20, 10]
    x, y = parts["train"]
    assert x.shape == (20, 1, 28, 28)
    assert x[:, 0, 0, 0].tolist() == list(range(20))
    assert y.tolist() == [*range(10), *range(10)]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"root={folder} has no {name}; expected a folder with {NAMES[0]}, "
    ):
        load(folder)


@pytest.mark.parametrize("root", ["nowhere", NAMES[0]])
def test_a_root_that_is_no_folder(folder: Path, root: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"root={folder / root} has no"):
        load(folder / root)


@pytest.mark.parametrize("length", [0, 5, 60, -4])
def test_a_truncated_file_is_named(folder: Path, length: int) -> None:
    path = folder / NAMES[0]
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match=str(path)):
        read_idx(path)


@pytest.mark.parametrize("place", [0, 12, 30])
def test_a_damaged_file_is_named(folder: Path, place: int) -> None:
    path = folder / NAMES[0]
    raw = bytearray(path.read_bytes())
    raw[place] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=str(path)):
        read_idx(path)


def test_every_cut_of_the_array_is_refused(tmp_path: Path) -> None:
    whole = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])
    path = tmp_path / "array.gz"
    repack(path, whole)
    assert read_idx(path).tolist() == [[1, 2, 3], [4, 5, 6]]
    for length in range(len(whole)):
        repack(path, whole[:length])
        with pytest.raises(ValueError, match=f"{path} is"):
            read_idx(path)
    repack(path, whole + b"7")
    with pytest.raises(
        ValueError, match=r"damaged: more than 6 bytes for an array of shape \[2, 3\]"
    ):
        read_idx(path)


@pytest.mark.parametrize("magic", [b"\x00\x00\x0d\x01", b"\x89PNG", b"\x00\x01\x08\x01"])
def test_another_format_is_refused(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "array.gz"
    repack(path, magic + bytes([0, 0, 0, 1, 5]))
    with pytest.raises(ValueError, match=f"{path} is not an idx file of bytes"):
        read_idx(path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(5, 2, 2), torch.zeros(4), r"has shape \(5, 2, 2\), .*labels.* \(4,\)"),
        (torch.zeros(5), torch.zeros(5), r"expected \(M, H, W\)"),
        (torch.zeros(5, 2, 2), torch.zeros(5, 1), r"expected \(M, H, W\) and \(M,\)"),
        (torch.zeros(3, 2, 2), torch.tensor([0, 10, 3]), "labels up to 10; expected 0 to 9"),
    ],
)
def test_arrays_that_do_not_fit(
    folder: Path, script: Any, images: Tensor, labels: Tensor, message: str
) -> None:
    for name, array in zip(FILES["test"], (images, labels), strict=True):
        (folder / name).write_bytes(script.idx(array.to(torch.uint8)))
    with pytest.raises(ValueError, match=f"{folder}.*{message}"):
        load(folder)


def test_the_script_keeps_the_first_of_each_class_in_order(script: Any) -> None:
    labels = torch.tensor([*range(10), 3, 3, *range(10)])
    assert script.first_of_each(labels, 1).tolist() == list(range(10))
    assert script.first_of_each(labels, 2).tolist() == [
        *range(11),
        *(k for k in range(12, 22) if k != 15),
    ]


def test_the_script_writes_the_same_bytes_for_the_same_images(script: Any, tmp_path: Path) -> None:
    array = torch.arange(24, dtype=torch.uint8).view(2, 3, 4)
    (tmp_path / "array.gz").write_bytes(script.idx(array))
    assert torch.equal(read_idx(tmp_path / "array.gz"), array)
    assert script.idx(array)[4:8] == bytes(4)  # no date


def test_the_shipped_files_are_what_the_script_makes(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.environ.get("BGN_FASHION_MNIST")
    if not whole:
        pytest.skip("BGN_FASHION_MNIST does not name a folder with the whole data set")
    monkeypatch.setattr(script, "TO", tmp_path)
    monkeypatch.setattr("sys.argv", ["embed_fashion_mnist.py", whole])
    script.main()
    unpacked = (
        gzip.decompress if "ng" in zlib.ZLIB_RUNTIME_VERSION else bytes
    )  # zlib-ng compresses to other bytes
    for name in NAMES:
        assert unpacked((tmp_path / name).read_bytes()) == unpacked(
            (SHIPPED / name).read_bytes()
        ), name

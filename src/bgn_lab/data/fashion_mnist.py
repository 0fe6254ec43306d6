"""Fashion-MNIST (Xiao et al. 2017): ten kinds of clothes, 28x28, gray.

A part of it ships with the package.
"""

from __future__ import annotations

import gzip
import math
import zlib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bgn_lab.data.names import printable
from bgn_lab.data.sources import Data, Parts, split
from bgn_lab.system.memory import available_memory, gigabytes

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

CLASSES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
MEAN, STD = (0.286,), (0.353,)
PAD = 2  # pixels by which training crops move
FILES = {"train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
          "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")}  # fmt: skip


def data(recipe: Recipe) -> Data:
    """The recipe's data."""
    return split(recipe, _shared(recipe.root), CLASSES, MEAN, STD, PAD)


@lru_cache(maxsize=1)  # runs of one process share the images
def _shared(root: Path | None) -> Parts:
    return load(root)


def load(root: Path | None) -> Parts:
    """Images (M, 1, 28, 28) and labels of the parts "train" and "test".

    They come from the idx files in a folder, or from those that ship with the package.
    """
    folder = Path(str(files("bgn_lab.data"))) / "fashion_mnist_part" if root is None else root
    parts = {}
    for part, names in FILES.items():
        images, labels = (read_idx(folder / name) for name in names)
        if images.dim() != 3 or labels.shape != images.shape[:1]:
            shapes = f"{names[0]} has shape {tuple(images.shape)}, {names[1]} {tuple(labels.shape)}"
            raise ValueError(f"root={printable(folder)}: {shapes}; expected (M, H, W) and (M,)")
        if int(labels.max()) >= len(CLASSES):
            raise ValueError(
                f"{printable(folder / names[1])} has labels up to {int(labels.max())}; "
                f"expected 0 to {len(CLASSES) - 1}"
            )
        parts[part] = images[:, None], labels.long()
    return parts


def read_idx(path: Path) -> Tensor:
    """An array of bytes in the idx format, compressed by gzip.

    Two zeros, 8 for bytes, the number of dimensions, their sizes (high byte first), and the data.
    """
    name = printable(path)
    if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
        raise ValueError(f"{name} is not a file")
    try:
        with gzip.open(path) as file:
            start = file.read(4)
            if len(start) < 4 or start[:3] != b"\x00\x00\x08":
                raise ValueError(f"{name} is not an idx file of bytes")
            sizes = file.read(4 * start[3])
            shape = [int.from_bytes(sizes[i : i + 4], "big") for i in range(0, len(sizes), 4)]
            count, available = math.prod(shape), available_memory()
            if available is not None and 2 * count > available:
                raise ValueError(
                    f"{name} has an array of shape {shape}, {gigabytes(2 * count)} when loaded; "
                    f"{gigabytes(available)} of memory are available"
                )
            body = bytearray(file.read(count + 1))  # never more, whatever it would unpack to
    except (FileNotFoundError, NotADirectoryError):
        wanted = ", ".join(name for names in FILES.values() for name in names)
        raise FileNotFoundError(
            f"root={printable(path.parent)} has no {path.name}; expected a folder with {wanted}"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{name} cannot be read: {printable(error)}") from None
    if not body or len(body) != count:
        have = f"{len(body)} bytes" if len(body) <= count else f"more than {count} bytes"
        raise ValueError(f"{name} is damaged: {have} for an array of shape {shape}")
    return torch.frombuffer(body, dtype=torch.uint8).view(shape)

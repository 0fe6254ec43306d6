"""Fashion-MNIST (Xiao et al. 2017): ten kinds of clothes, 28x28, grey. A part of it ships with the package."""

from __future__ import annotations

import gzip
import math
import zlib
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

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
FILES = {"train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
          "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")}  # fmt: skip


def load(root: Path | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Images (M, 1, 28, 28) and labels of the parts "train" and "test", of what is shipped or of a folder with the idx files."""
    folder = Path(str(files("bgn_lab.data"))) / "fashion_mnist_part" if root is None else root
    parts = {}
    for part, names in FILES.items():
        images, labels = (read_idx(folder / name) for name in names)
        if images.dim() != 3 or labels.shape != images.shape[:1]:
            shapes = f"{names[0]} has shape {tuple(images.shape)}, {names[1]} {tuple(labels.shape)}"
            raise ValueError(f"root={folder}: {shapes}; expected (M, H, W) and (M,)")
        if int(labels.max()) >= len(CLASSES):
            raise ValueError(
                f"{folder / names[1]} has labels up to {int(labels.max())}; expected 0 to {len(CLASSES) - 1}"
            )
        parts[part] = images[:, None], labels.long()
    return parts


def read_idx(path: Path) -> Tensor:
    """An array in the idx format: two zeros, 8 for bytes, the number of dimensions, their sizes (high byte first), data."""
    try:
        raw = gzip.decompress(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        wanted = ", ".join(name for names in FILES.values() for name in names)
        raise FileNotFoundError(
            f"root={path.parent} has no {path.name}; expected a folder with {wanted}"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of bytes")
    dims = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims)]
    body = raw[4 + 4 * dims :]
    if not body or len(body) != math.prod(shape):
        raise ValueError(f"{path} is damaged: {len(body)} bytes for an array of shape {shape}")
    return torch.frombuffer(bytearray(body), dtype=torch.uint8).view(shape)

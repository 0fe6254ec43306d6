"""Cut the part of Fashion-MNIST that ships with the package out of the whole.

    apt-get download dataset-fashion-mnist && dpkg-deb -x dataset-fashion-mnist_*.deb unpacked
    python tools/embed_fashion_mnist.py unpacked/usr/share/datasets/fashion-mnist

It takes the first images of every class, the same number of each, in their order: training images
from the training set, test images from the test set. The files have the original's names and
format, without a date, so that the same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import torch
from torch import Tensor

from bgn_lab.data.fashion_mnist import FILES, read_idx
from bgn_lab.system import files

PER_CLASS = {"train": 600, "test": 200}
TO = Path(__file__).parent.parent / "src" / "bgn_lab" / "data" / "fashion_mnist_part"


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """The places of the first images of every class, in order."""
    return torch.cat([(labels == c).nonzero()[:count, 0] for c in range(10)]).sort().values


def idx(array: Tensor) -> bytes:
    """An array of bytes in the idx format, compressed."""
    head = bytes([0, 0, 8, array.dim()]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return gzip.compress(head + array.numpy().tobytes(), 9, mtime=0)


def main() -> None:
    """Write the four files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="folder with the four idx.gz files of Fashion-MNIST"
    )
    whole = parser.parse_args().folder
    TO.mkdir(exist_ok=True)
    for part, names in FILES.items():
        images, labels = (read_idx(whole / name) for name in names)
        kept = first_of_each(labels, PER_CLASS[part])
        for name, array in zip(names, (images, labels), strict=True):
            files.write(TO / name, idx(array[kept]))
            print(f"{TO / name}: {len(kept)} entries, {(TO / name).stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""The inputs of the normalizers in the networks of the paper: (C, H, W) and how often it occurs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """One normalizer input, ``count`` times in its network."""

    C: int
    H: int
    W: int
    count: int

    def __str__(self) -> str:
        return f"{self.C}x{self.H}x{self.W}"


def _square(C: int, side: int, count: int) -> Shape:
    return Shape(C, side, side, count)


NETWORKS: dict[str, list[Shape]] = {
    # stride on the 3x3 convolution; 53 normalizers
    "resnet50": [
        _square(64, 112, 1),
        _square(64, 56, 6),
        _square(256, 56, 4),
        _square(128, 56, 1),
        _square(128, 28, 7),
        _square(512, 28, 5),
        _square(256, 28, 1),
        _square(256, 14, 11),
        _square(1024, 14, 7),
        _square(512, 14, 1),
        _square(512, 7, 5),
        _square(2048, 7, 4),
    ],
    # WRN-10-2 on 32x32 images; 7 normalizers
    "wrn10-2": [_square(16, 32, 1), _square(32, 32, 2), _square(64, 16, 2), _square(128, 8, 2)],
    # the three widths of DARTS' evaluation network and its stem; each cell has many of them
    "darts": [_square(108, 32, 1), _square(36, 32, 1), _square(72, 16, 1), _square(144, 8, 1)],
    # channels that do not fill vectors: images, first maps of U-Nets and of small networks
    "narrow": [_square(3, 64, 1), _square(8, 32, 1), _square(12, 32, 1), _square(20, 16, 1)],
}

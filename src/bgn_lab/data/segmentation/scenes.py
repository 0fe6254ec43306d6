"""Made-up scenes: clothes of Fashion-MNIST before textures, with a label for every pixel.

Nobody took these pictures. They are there so that segmentation and detection can be tried without
data at hand. Training scenes show training images of Fashion-MNIST, test scenes test images.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bgn_lab.data import fashion_mnist
from bgn_lab.data.segmentation.windows import IGNORED, resized
from bgn_lab.data.sources import generator

NAME = "scenes"
CLASSES = ("background", "top or dress", "trousers", "shoe", "bag")
_CLASS = (1, 2, 1, 1, 1, 3, 1, 3, 4, 3)  # of each class of Fashion-MNIST
SIZE = 64
COUNTS = {"train": 600, "validation": 60, "test": 200}
ITEMS = (2, 5)
"""Fewest and most items of a scene."""
SIDES = (24, 40)
"""Shortest and longest side of an item, in pixels."""
CLEAR, FAINT = 40, 8
"""Brightness from which on a pixel belongs to an item, and from which on it may."""


class Scene(NamedTuple):
    """An image, its labels, and the boxes of its items."""

    x: Tensor  # (3, SIZE, SIZE), bytes
    y: Tensor  # (SIZE, SIZE), bytes
    boxes: Tensor  # (items, 4): left, top, right, bottom
    kinds: Tensor  # (items,): the classes


@lru_cache(maxsize=2)
def load(root: Path | None) -> dict[str, tuple[Scene, ...]]:
    """The scenes of each part: the same at every call."""
    parts = fashion_mnist.load(root)
    M = len(parts["train"][0])
    held = M // 8  # images that validation scenes show, and training scenes do not
    x, y = parts["train"]
    sources = {
        "train": (x[held:], y[held:]),
        "validation": (x[:held], y[:held]),
        "test": parts["test"],
    }
    return {
        name: tuple(
            compose(images, _by_class(kinds), generator(71, part, number))
            for number in range(COUNTS[name])
        )
        for part, (name, (images, kinds)) in enumerate(sources.items())
    }


def _by_class(kinds: Tensor) -> list[Tensor]:
    """For each class but the background the places of its images."""
    own = torch.tensor(_CLASS)[kinds]
    return [(own == k).nonzero().flatten() for k in range(1, len(CLASSES))]


def compose(images: Tensor, places: Sequence[Tensor], draws: Generator) -> Scene:
    """A scene with some of the images (M, 1, 28, 28); ``places`` are those of each class."""
    x = texture(draws)
    y = torch.zeros(SIZE, SIZE, dtype=torch.uint8)
    boxes: list[Tensor] = []
    shown: list[int] = []
    for _ in range(_between(*ITEMS, draws)):
        kind, side = _between(1, len(places), draws), _between(*SIDES, draws)
        own_kind = places[kind - 1]
        i = int(own_kind[_between(0, len(own_kind) - 1, draws)])
        top, left = (_between(0, SIZE - side, draws) for _ in range(2))
        item = resized(images[i], (side, side))[0]  # (side, side)
        color = 0.35 + 0.65 * torch.rand(3, 1, 1, generator=draws)
        clear, faint = item >= CLEAR, item >= FAINT
        place = (slice(top, top + side), slice(left, left + side))
        opaque = (item.float() / CLEAR).clamp(max=1.0)
        shade = color * item.float() + 25
        below = x[:, place[0], place[1]]
        below.copy_((1 - opaque) * below + opaque * shade)
        own = y[place]
        own[faint & ~clear] = IGNORED
        own[clear] = kind
        rows, columns = clear.any(1).nonzero(), clear.any(0).nonzero()
        if len(rows):
            corners = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
            offsets = (left, top, left, top)
            boxes.append(
                torch.tensor([float(a) + b for a, b in zip(corners, offsets, strict=True)])
            )
            shown.append(kind)
    found = torch.stack(boxes) if boxes else torch.zeros(0, 4)
    return Scene(x.round().clamp(0, 255).to(torch.uint8), y, found, torch.tensor(shown))


def texture(draws: Generator) -> Tensor:
    """A background (3, SIZE, SIZE): two colors in coarse and fine patterns, and noise."""
    colors = 40 + 170 * torch.rand(2, 3, 1, 1, generator=draws)
    mixture = torch.zeros(1, 1, SIZE, SIZE)
    for cells in (3, 8, 21):
        coarse = torch.rand(1, 1, cells, cells, generator=draws)
        mixture += F.interpolate(coarse, (SIZE, SIZE), mode="bicubic", align_corners=False) / 3
    noise = 8 * torch.randn(3, SIZE, SIZE, generator=draws)
    share = ((mixture[0] - 0.5) * 2 + 0.5).clamp(0, 1)
    return colors[0] * share + colors[1] * (1 - share) + noise


def _between(low: int, high: int, draws: Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=draws))

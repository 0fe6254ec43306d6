"""Made-up volumes: an organ, a vessel through it and small lesions in noise, labeled.

No scanner took them. They are there so that volumes can be tried without data at hand. Brightness
alone does not tell the classes apart: a lesion is as bright as the vessel, and some blobs outside
of the organ are as bright as lesions, but belong to the background.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from bgn_lab.data.sources import generator

NAME = "volumes"
CLASSES = ("background", "organ", "vessel", "lesion")
SIZE = 32
COUNTS = {"train": 60, "validation": 20, "test": 40}
_BRIGHT = (70.0, 110.0, 165.0, 160.0)  # of each class
_NOISE = 18.0


class Volume(NamedTuple):
    """A volume and its labels."""

    x: Tensor  # (1, SIZE, SIZE, SIZE), bytes
    y: Tensor  # (SIZE, SIZE, SIZE), bytes


@lru_cache(maxsize=1)
def load() -> dict[str, tuple[Volume, ...]]:
    """The volumes of each part: the same at every call."""
    return {
        name: tuple(compose(generator(73, part, number)) for number in range(count))
        for part, (name, count) in enumerate(COUNTS.items())
    }


def compose(draws: Generator) -> Volume:
    """One volume."""
    axes = torch.meshgrid(*[torch.arange(SIZE).float()] * 3, indexing="ij")
    points = torch.stack(axes)  # (3, D, H, W)
    center = SIZE / 2 + 4 * (torch.rand(3, generator=draws) - 0.5)
    radii = SIZE * (0.28 + 0.1 * torch.rand(3, generator=draws))
    organ = (((points - _spread(center)) / _spread(radii)) ** 2).sum(0) < 1
    y = organ.to(torch.uint8)
    y[_tube(points, center, draws)] = 2
    bright = torch.tensor(_BRIGHT)[y.long()]
    for _ in range(int(torch.randint(2, 5, (), generator=draws))):
        ball = _ball(points, center, radii * 0.75, draws)
        y[ball & (y == 1)] = 3
        bright[ball & (y == 3)] = _BRIGHT[3]
    for _ in range(3):
        ball = _ball(points, torch.full((3,), SIZE / 2), torch.full((3,), SIZE / 2.0), draws)
        bright[ball & (y == 0)] = _BRIGHT[3]
    gain = 0.8 + 0.4 * torch.rand((), generator=draws)  # scanners differ
    slope = F.interpolate(
        torch.randn(1, 1, 2, 2, 2, generator=draws), (SIZE,) * 3, mode="trilinear"
    )[0, 0]
    noise = _NOISE * torch.randn(SIZE, SIZE, SIZE, generator=draws)
    x = gain * (bright + 8 * slope + noise)
    return Volume(x.round().clamp(0, 255).to(torch.uint8)[None], y)


def _spread(values: Tensor) -> Tensor:
    return values.view(3, 1, 1, 1)


def _tube(points: Tensor, center: Tensor, draws: Generator) -> Tensor:
    """A tube through a point, in a random direction."""
    direction = F.normalize(torch.randn(3, generator=draws), dim=0)
    away = points - _spread(center + 3 * torch.randn(3, generator=draws))
    along = (away * _spread(direction)).sum(0)
    across = ((away - along * _spread(direction)) ** 2).sum(0).sqrt()
    return across < 1.6 + float(torch.rand((), generator=draws))


def _ball(points: Tensor, center: Tensor, reach: Tensor, draws: Generator) -> Tensor:
    """A ball around a point that is at most so far away along each axis."""
    middle = center + reach * (2 * torch.rand(3, generator=draws) - 1)
    radius = 2 + 1.5 * float(torch.rand((), generator=draws))
    return ((points - _spread(middle)) ** 2).sum(0).sqrt() < radius

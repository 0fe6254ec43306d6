"""Random windows of an image and its labels: scaled, cut and flipped together.

Images are (C, H, W), or (C, D, H, W) of volumes; labels have the same shape without channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

IGNORED = 255
"""Label of pixels that count neither in the loss nor in a score."""
_MODES = {2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True)
class Window:
    """A part of an image, which may reach beyond it, and whether it is mirrored, by axis."""

    start: tuple[int, ...]
    size: tuple[int, ...]
    mirrored: tuple[bool, ...]

    def shifted(self, most: Sequence[int], within: Sequence[int], draws: Generator) -> Window:
        """A window of the same size, at most so far away along every axis, inside an image."""
        start = []
        for at, own, far, whole in zip(self.start, self.size, most, within, strict=True):
            moved = at + _between(-far, far, draws)
            start.append(moved if own > whole else min(max(moved, 0), whole - own))
        return replace(self, start=tuple(start))


def draw(
    whole: Sequence[int], crop: Sequence[int], scale: tuple[float, float], draws: Generator
) -> Window:
    """A random window that becomes ``crop`` when it is enlarged by a random factor.

    Factors are drawn evenly between the logarithms of ``scale``. A 2D window is mirrored from left
    to right at random, a 3D one along every axis. Where a window is larger than the image, the
    image lies at random in it.
    """
    low, high = scale
    share = float(torch.rand((), generator=draws))
    factor = low * (high / low) ** share
    size = tuple(max(1, round(own / factor)) for own in crop)
    start = []
    for own, length in zip(size, whole, strict=True):
        low_end, high_end = sorted((0, length - own))
        start.append(_between(low_end, high_end, draws))
    flips = torch.rand(len(size), generator=draws) < 0.5
    axes = [len(size) - 1] if len(size) == 2 else list(range(len(size)))
    return Window(tuple(start), size, tuple(bool(flips[i]) and i in axes for i in range(len(size))))


def middle(whole: Sequence[int], crop: Sequence[int]) -> Window:
    """The window in the middle of an image, as it is."""
    start = tuple((length - own) // 2 for own, length in zip(crop, whole, strict=True))
    return Window(start, tuple(crop), (False,) * len(crop))


def cut(
    x: Tensor, y: Tensor, window: Window, crop: Sequence[int], fill: Tensor
) -> tuple[Tensor, Tensor]:
    """The pixels (C, *crop) and labels (*crop) of a window, as bytes.

    Outside of the image, pixels are ``fill``, one value for each channel, and labels are ignored.
    Pixels are interpolated; labels are those of the nearest pixel.
    """
    inside, beyond = [], []
    for at, own, length in zip(window.start, window.size, y.shape, strict=True):
        first, last = max(at, 0), min(at + own, length)
        inside.append(slice(first, last))
        beyond.append((first - at, at + own - last))
    y = y[tuple(inside)]
    inside.insert(0, slice(None))
    x = x[tuple(inside)]
    if any(sum(pair) for pair in beyond):
        pad = [n for pair in reversed(beyond) for n in pair]
        within = F.pad(torch.ones_like(y, dtype=torch.bool), pad)
        y = F.pad(y, pad, value=IGNORED)
        x = torch.where(within, F.pad(x, pad), fill.view(-1, *[1] * y.dim()))
    x, y = resized(x, crop), nearest(y, crop)
    axes = [i for i, mirrored in enumerate(window.mirrored) if mirrored]
    return x.flip([i + 1 for i in axes]), y.flip(axes)


def resized(x: Tensor, size: Sequence[int]) -> Tensor:
    """An image of bytes at another size."""
    if tuple(x.shape[1:]) == tuple(size):
        return x
    spatial = len(size)
    smooth = {"antialias": True} if spatial == 2 else {}
    made = F.interpolate(
        x[None].float(), tuple(size), mode=_MODES[spatial], align_corners=False, **smooth
    )
    return made[0].round().clamp(0, 255).to(torch.uint8)


def nearest(y: Tensor, size: Sequence[int]) -> Tensor:
    """Labels at another size: those of the nearest pixel, none in between.

    >>> nearest(torch.tensor([[1, 2], [3, 4]]), (2, 4)).tolist()
    [[1, 1, 2, 2], [3, 3, 4, 4]]
    """
    for axis, (own, wanted) in enumerate(zip(y.shape, size, strict=True)):
        if own != wanted:
            places = ((torch.arange(wanted) + 0.5) * own / wanted).long()
            y = y.index_select(axis, places)
    return y


def _between(low: int, high: int, draws: Generator) -> int:
    return int(torch.randint(low, high + 1, (), generator=draws))

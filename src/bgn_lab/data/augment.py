"""Random crops and flips of many images at once.

A Python loop over the images would take as long as training a small network.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def crop(x: Tensor, pad: int, generator: Generator) -> Tensor:
    """Each (C, H, W) image of x, padded by zeros, cut back to H x W at a place of its own."""
    return cut(F.pad(x, (pad,) * 4), 2 * pad, generator)


def cut(x: Tensor, less: int, generator: Generator) -> Tensor:
    """Each (C, H, W) image of x, cut to so much less of H and W at a place of its own."""
    N, C, H, W = x.shape
    top, left = torch.randint(less + 1, (2, N, 1), generator=generator)
    rows = (top + torch.arange(H - less))[:, None, :, None]  # (N, 1, H, 1)
    columns = (left + torch.arange(W - less))[:, None, None, :]  # (N, 1, 1, W)
    samples, channels = torch.arange(N)[:, None, None, None], torch.arange(C)[:, None, None]
    return x[samples, channels, rows, columns]


def flip(x: Tensor, generator: Generator) -> Tensor:
    """Each image of x, or its mirror image."""
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], x.flip(-1), x)

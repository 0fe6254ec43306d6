"""Augmentation: every crop is a window of the padded image, every flip a mirror image.

All of them occur.
"""

from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bgn_lab.data import augment
from bgn_lab.data.sources import generator


def images(N: int, C: int, H: int, W: int) -> Tensor:
    return torch.randint(1, 256, (N, C, H, W), dtype=torch.uint8, generator=generator(7))


def offsets(image: Tensor, cut: Tensor, pad: int) -> list[tuple[int, int]]:
    """Where the padded image, shifted by (top, left), equals the cut."""
    H, W = image.shape[1:]
    padded = F.pad(image, (pad,) * 4)
    places = [(top, left) for top in range(2 * pad + 1) for left in range(2 * pad + 1)]
    return [
        (top, left)
        for top, left in places
        if torch.equal(padded[:, top : top + H, left : left + W], cut)
    ]


@pytest.mark.parametrize(("C", "H", "W", "pad"), [(3, 6, 5, 1), (1, 4, 7, 2)])
def test_a_crop_is_a_window_of_the_padded_image(C: int, H: int, W: int, pad: int) -> None:
    x = images(800, C, H, W)
    cut = augment.crop(x, pad, generator(0))
    assert cut.shape == x.shape
    assert cut.dtype == torch.uint8
    found = [offsets(image, own, pad) for image, own in zip(x, cut, strict=True)]
    assert all(len(places) == 1 for places in found)
    counts = Counter(places[0] for places in found)
    assert len(counts) == (2 * pad + 1) ** 2
    assert min(counts.values()) > 800 / len(counts) / 2  # as often as one another


def test_a_crop_without_padding_is_the_image() -> None:
    x = images(3, 2, 4, 4)
    assert torch.equal(augment.crop(x, 0, generator(0)), x)


def test_a_flip_is_the_image_or_its_mirror_image() -> None:
    x = images(1000, 3, 4, 5)
    flipped = augment.flip(x, generator(0))
    mirrored = (flipped == x.flip(-1)).flatten(1).all(1)
    same = (flipped == x).flatten(1).all(1)
    assert torch.equal(mirrored, ~same)
    assert 420 < int(mirrored.sum()) < 580  # five standard errors


def test_no_images_at_all() -> None:
    x = images(0, 3, 4, 4)
    assert augment.flip(augment.crop(x, 2, generator(0)), generator(0)).shape == x.shape

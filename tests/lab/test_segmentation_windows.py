"""Windows of images and labels: cut, scaled and flipped together; drawn the same at every call."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bgn_lab.data.segmentation import windows
from bgn_lab.data.segmentation.pairs import Crops, Pairs
from bgn_lab.data.segmentation.windows import IGNORED, Window
from bgn_lab.data.sources import generator

FILL = torch.tensor([9, 9, 9], dtype=torch.uint8)


def gradient(*shape: int) -> tuple[Tensor, Tensor]:
    """An image whose channels are its coordinates, and labels that are the last one."""
    axes = torch.meshgrid(*[torch.arange(n) for n in shape], indexing="ij")
    x = torch.stack([*axes, *[axes[0]] * (3 - len(shape))]).to(torch.uint8)
    return x, axes[-1].to(torch.uint8)


@pytest.mark.parametrize("shape", [(20, 30), (10, 12, 14)])
@pytest.mark.parametrize("seed", range(6))
def test_image_and_labels_stay_together(shape: tuple[int, ...], seed: int) -> None:
    x, y = gradient(*shape)
    crop = tuple(n // 2 for n in shape)
    window = windows.draw(shape, crop, (1.0, 1.0), generator(seed))
    cut_x, cut_y = windows.cut(x, y, window, crop, FILL)
    assert cut_x.shape == (3, *crop)
    assert cut_y.shape == crop
    assert torch.equal(cut_x[len(shape) - 1], cut_y)
    assert window.mirrored[-1] == bool(cut_y.flatten()[0] > cut_y.flatten()[-1])


def test_a_two_dimensional_image_is_mirrored_from_left_to_right_only() -> None:
    drawn = [windows.draw((8, 8), (4, 4), (1.0, 1.0), generator(k)).mirrored for k in range(20)]
    assert {own[0] for own in drawn} == {False}
    assert {own[1] for own in drawn} == {False, True}
    deep = [windows.draw((8, 8, 8), (4, 4, 4), (1, 1), generator(k)).mirrored for k in range(40)]
    assert {own[0] for own in deep} == {False, True}


def test_outside_of_the_image_nothing_counts() -> None:
    x, y = gradient(4, 4)
    cut_x, cut_y = windows.cut(x, y, Window((-1, 2), (6, 4), (False, False)), (6, 4), FILL)
    assert cut_y.tolist() == [
        [255, 255, 255, 255], *[[2, 3, 255, 255]] * 4, [255, 255, 255, 255],
    ]  # fmt: skip
    assert bool((cut_x[:, cut_y == IGNORED] == 9).all())
    assert torch.equal(cut_x[1][cut_y < IGNORED], cut_y[cut_y < IGNORED])


def test_labels_are_never_mixed() -> None:
    x, y = gradient(16, 16)
    y[:, 8:] = 7
    y[:, :8] = 0
    for seed in range(10):
        window = windows.draw((16, 16), (12, 12), (0.5, 2.0), generator(seed))
        _, cut_y = windows.cut(x, y, window, (12, 12), FILL)
        assert {*cut_y.unique().tolist()} <= {0, 7, IGNORED}


def test_factors_are_spread_over_their_range() -> None:
    sizes = [
        windows.draw((400, 400), (100, 100), (0.5, 2.0), generator(k)).size[0] for k in range(300)
    ]
    assert 50 <= min(sizes) < 55
    assert 185 < max(sizes) <= 200
    assert sum(size < 100 for size in sizes) == pytest.approx(150, abs=35), "evenly in logarithms"


def test_scaled_labels_match_scaled_pixels() -> None:
    """Both are read at the same places: a ramp's labels are its rounded values."""
    ramp = torch.arange(0, 200, 4, dtype=torch.uint8).expand(10, -1)
    x = windows.resized(ramp.expand(3, -1, -1).contiguous(), (10, 100))
    y = windows.nearest(ramp, (10, 100))
    assert (x[0].float() - y.float()).abs().max() <= 2


def pairs(count: int = 12, **settings: object) -> Pairs:
    made = [gradient(24, 30) for _ in range(count)]
    for i, (x, _) in enumerate(made):
        x[2] = i
    crops = replace(Crops((8, 10), (0.5, 2.0)), **settings)  # type: ignore[arg-type]
    return Pairs(tuple(x for x, _ in made), tuple(y for _, y in made), 30, crops, FILL)


def test_batches_depend_on_seed_and_epoch_alone() -> None:
    source = pairs()
    every = list(source.training(3, seed=1, epoch=2))
    assert len(every) == 4
    some = list(source.training(3, seed=1, epoch=2, wanted=[1, 3]))
    for (x, y), number in zip(some, (1, 3), strict=True):
        assert torch.equal(x, every[number][0])
        assert torch.equal(y, every[number][1])
    other = next(source.training(3, seed=1, epoch=3))
    assert not torch.equal(other[0], every[0][0])


def seen(batch: tuple[Tensor, Tensor]) -> list[int]:
    """Which image each window is of."""
    x, y = batch
    return [int(own[2][labels < IGNORED].median()) for own, labels in zip(x, y, strict=True)]


def test_neighbors_are_windows_of_one_image_beside_each_other() -> None:
    source = pairs(neighbors=2, scale=(1.0, 1.0))
    batches = list(source.training(4, seed=0, epoch=0))
    assert len(batches) == 3, "as many windows as images"
    found = [seen(batch) for batch in batches]
    assert all(a == b and c == d and a != c for a, b, c, d in found)
    flat = [own[0] for own in found] + [own[2] for own in found]
    assert len({*flat}) == 6, "no image twice in an epoch"
    for x, _ in batches:
        for first, second in ((0, 1), (2, 3)):
            for axis, far in ((0, 2), (1, 2)):
                a, b = (x[k, axis].float().mean() for k in (first, second))
                assert abs(a - b) <= far + 0.5, "at most a quarter of a window away"
    assert any(not torch.equal(x[0], x[1]) for x, _ in batches)


def test_images_without_augmentation_are_cut_from_the_middle() -> None:
    x, y = next(pairs(augment=False).training(2, 0, 0))
    assert torch.equal(y[0], torch.arange(10, 20, dtype=torch.uint8).expand(8, -1))
    assert torch.equal(y[0], y[1])
    assert x.shape == (2, 3, 8, 10)


def test_evaluation_has_whole_images_of_one_size_together() -> None:
    source = pairs(4)
    small = gradient(8, 8)
    mixed = replace(
        source,
        x=(*source.x[:3], small[0], source.x[3]),
        labels=(*source.labels[:3], small[1], source.labels[3]),
    )
    sizes = [tuple(x.shape) for x, _ in mixed.evaluation(2)]
    assert sizes == [(2, 3, 24, 30), (1, 3, 24, 30), (1, 3, 8, 8), (1, 3, 24, 30)]


def test_the_fingerprint_is_of_pixels_and_labels() -> None:
    source = pairs(3)
    changed = replace(source, labels=(*source.labels[:2], source.labels[2].clone()))
    assert changed.fingerprint == source.fingerprint
    changed.labels[2][0, 0] = 99
    assert replace(changed).fingerprint != source.fingerprint


def test_counts() -> None:
    source = pairs(2)
    source.labels[0][0] = IGNORED
    assert int(source.counts[0].sum()) == 23 * 30
    assert int(source.counts[1].sum()) == 24 * 30

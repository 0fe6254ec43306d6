"""Sources: every image once per epoch, in an order set by seed and epoch, in equal batches."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bgn_lab.data.sources import CHUNK, Batch, InMemory, chance, generator, hold_out, rebatch, seed


def numbered(count: int) -> InMemory:
    """Images that say which they are: image i and its label are i."""
    y = torch.arange(count)
    return InMemory(y[:, None, None, None].to(torch.int32).expand(-1, 1, 2, 3), y)


def order(batches: Iterator[Batch]) -> list[int]:
    pairs = list(batches)
    for x, y in pairs:
        assert torch.equal(x[:, 0, 0, 0].long(), y)
    return [i for _, y in pairs for i in y.tolist()]


@given(st.integers(0, 2**63 - 1))
def test_a_seed_for_every_batch_is_that_of_torch(number: int) -> None:
    torch.manual_seed(number)
    wanted = torch.randn(3)
    seed(number)
    assert torch.equal(torch.randn(3), wanted)


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12), st.booleans())
def test_pieces_of_any_size_become_batches_of_one(
    sizes: list[int], batch_size: int, rest: bool
) -> None:
    everything = numbered(sum(sizes))
    pieces = (
        zip(torch.split(everything.x, sizes), torch.split(everything.y, sizes), strict=True)
        if sizes
        else iter(())
    )
    batches = list(rebatch(pieces, batch_size, rest))
    whole, left = divmod(sum(sizes), batch_size)
    assert [len(x) for x, _ in batches] == [batch_size] * whole + [left] * (rest and left > 0)
    assert order(iter(batches)) == list(range(sum(sizes)))[: None if rest else whole * batch_size]


@pytest.mark.parametrize(
    ("count", "batch_size"), [(10, 3), (CHUNK + 40, 64), (2 * CHUNK + 1, CHUNK + 3), (5, 7)]
)
def test_an_epoch_has_every_image_once_but_for_the_rest(count: int, batch_size: int) -> None:
    batches = list(numbered(count).training(batch_size, seed=1, epoch=0))
    assert [len(y) for _, y in batches] == [batch_size] * (count // batch_size)
    seen = order(iter(batches))
    assert len(set(seen)) == len(seen)
    assert seen != sorted(seen) or not seen


def test_seed_and_epoch_decide_the_order() -> None:
    source, settings = numbered(50), [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
    orders = [order(source.training(50, *setting)) for setting in settings]
    assert len(set(map(tuple, orders))) == len(settings)
    torch.manual_seed(123)  # the global generator has no say
    before = torch.get_rng_state()
    assert [order(source.training(50, *setting)) for setting in settings] == orders
    assert torch.equal(torch.get_rng_state(), before)


def test_seed_and_epoch_decide_the_augmentation() -> None:
    images = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8, generator=generator(5))
    source = InMemory(images, torch.arange(40), pad=2, flip=True)

    def epoch(seed: int, epoch: int) -> dict[int, Tensor]:
        return {
            int(k): x
            for xs, ys in source.training(8, seed, epoch)
            for x, k in zip(xs, ys, strict=True)
        }

    first, again, other = epoch(3, 0), epoch(3, 0), epoch(3, 1)
    assert all(torch.equal(first[k], again[k]) for k in range(40))
    assert sum(torch.equal(first[k], other[k]) for k in range(40)) < 10  # 50 ways each
    assert sum(torch.equal(first[k], images[k]) for k in range(40)) < 10


@pytest.mark.parametrize("count", [0, 1, 7, 12])
def test_evaluation_has_every_image_as_it_is_in_order(count: int) -> None:
    batches = list(numbered(count).evaluation(4))
    assert order(iter(batches)) == list(range(count))
    assert all(0 < len(y) <= 4 for _, y in batches)


def test_generators_of_near_numbers_are_unrelated() -> None:
    numbers = [
        (),
        (0,),
        (1,),
        *((a, b) for a in range(12) for b in range(12)),
        (0, 0, 0),
        (1, 2, 3),
        (3, 2, 1),
    ]
    draws = torch.stack([torch.randn(1000, generator=generator(*n)) for n in numbers])
    assert len({tuple(row[:3].tolist()) for row in draws}) == len(numbers)
    off_diagonal = torch.corrcoef(draws) - torch.eye(len(numbers))
    assert off_diagonal.abs().max() < 0.16  # five standard errors of 1000 draws
    assert torch.equal(
        torch.randn(9, generator=generator(4, 2)), torch.randn(9, generator=generator(4, 2))
    )


@given(st.integers(0, 300), st.floats(0, 0.99), st.none() | st.integers(1, 400))
def test_held_out_images_are_no_training_images(
    count: int, share: float, limit: int | None
) -> None:
    train, held = (index.tolist() for index in hold_out(count, share, limit))
    used = min(count, limit or count)
    assert len(held) == round(share * used)
    assert len(set(train) | set(held)) == len(train) + len(held) == used
    assert train == sorted(train)
    assert held == sorted(held)
    assert set(train + held) <= set(range(count))
    assert [index.tolist() for index in hold_out(count, share, limit)] == [train, held]


def test_images_are_held_out_at_random() -> None:
    _, held = hold_out(10_000, 0.1, None)
    assert held.double().mean().item() == pytest.approx(5000, abs=300)
    limited = torch.cat(hold_out(10_000, 0.1, 1000))
    assert limited.double().mean().item() == pytest.approx(5000, abs=300)


@pytest.mark.parametrize(
    ("labels", "expected"), [([0, 1, 2, 3], 0.25), ([7, 7, 1], 2 / 3), ([4], 1.0), ([], 0.0)]
)
def test_chance_is_the_share_of_the_most_frequent_class(labels: list[int], expected: float) -> None:
    assert chance(torch.tensor(labels, dtype=torch.int64)) == pytest.approx(expected)

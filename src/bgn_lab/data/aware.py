"""Class-aware batches: a few classes, and of each as many images of one domain as of the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

EACH = 3  # images of a class in a batch, of each domain


def steps(ours: Tensor, theirs: Tensor, kept: Tensor, ways: int) -> int:
    """Number of batches that show each image once of the larger domain of every shared class.

    It is 0 if the domains share no class.
    """
    K = int(ours.max()) + 1
    counts = zip(
        ours.bincount(minlength=K).tolist(),
        theirs[kept].bincount(minlength=K).tolist(),
        strict=False,
    )
    shown = [int(max(a, b)) // EACH for a, b in counts if a and b]
    return math.ceil(sum(shown) / ways)


def pairs(
    ours: Tensor, theirs: Tensor, kept: Tensor, ways: int, draws: Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless pairs of (classes * 3,) indices, of the source and of the target.

    ``ours`` are the labels of the source, ``theirs`` those of the target where ``kept``. Classes
    are in the same order in both. Every class shows all its images, in an order of its own, before
    one comes twice. If the domains share no class, the indices are empty.
    """
    own = [torch.nonzero(ours == k).flatten() for k in range(int(ours.max()) + 1)]
    other = [torch.nonzero((theirs == k) & kept).flatten() for k in range(len(own))]
    able = torch.tensor(
        [k for k, (a, b) in enumerate(zip(own, other, strict=True)) if len(a) and len(b)],
        dtype=torch.long,
    )
    if not len(able):
        while True:
            yield able, able
    some = stream(able, min(ways, len(able)), draws)
    streams = {
        k: (stream(own[k], EACH, draws), stream(other[k], EACH, draws)) for k in able.tolist()
    }
    while True:
        chosen = [streams[k] for k in next(some).tolist()]
        yield torch.cat([next(a) for a, _ in chosen]), torch.cat([next(b) for _, b in chosen])


def stream(items: Tensor, size: int, draws: Generator) -> Iterator[Tensor]:
    """Endless batches of ``size`` items: shuffled, each item once before any comes twice.

    No batch has an item twice if there are at least ``size`` items.
    """
    rest = items[:0]
    while True:
        while len(rest) < size:
            fresh = items[torch.randperm(len(items), generator=draws)]
            left = torch.isin(fresh, rest)
            rest = torch.cat([rest, fresh[~left], fresh[left]])
        yield rest[:size]
        rest = rest[size:]

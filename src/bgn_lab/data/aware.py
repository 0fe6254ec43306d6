"""Class-aware batches: a few classes, and of each as many images of one domain as of the other."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Generator, Tensor

EACH = 3  # images of a class in a batch, of each domain


def steps(ours: Tensor, theirs: Tensor, kept: Tensor, ways: int) -> int:
    """Batches that show, of every class of both, each image of its larger domain once; 0 where there is no such class."""
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
    """Without end, indices (classes * 3,) of the source, labelled ``ours``, and the target, labelled ``theirs`` where ``kept``.

    Classes are in the same order in both. Every class goes through its images in an order of its own before one comes twice.
    Without any class that both have, indices of nothing.
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
    """So many of the items, again and again: shuffled, all before any comes twice, none twice at once if there are enough."""
    rest = items[:0]
    while True:
        while len(rest) < size:
            fresh = items[torch.randperm(len(items), generator=draws)]
            left = torch.isin(fresh, rest)
            rest = torch.cat([rest, fresh[~left], fresh[left]])
        yield rest[:size]
        rest = rest[size:]

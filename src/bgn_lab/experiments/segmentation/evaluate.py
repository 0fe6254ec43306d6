"""Answers of a network for whole images, in one piece or from windows that overlap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.data.segmentation.pairs import Pairs
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.data.sources import Batch
from bgn_lab.experiments.segmentation import confusion
from bgn_lab.experiments.segmentation.confusion import Scores

PIXELS = 2**19
"""Of a batch, about: few enough to stay in memory."""
STRIDE = 2 / 3
"""From one window to the next, of its size."""
Prepare = Callable[[Batch], Batch]


@torch.no_grad()
def evaluate(
    model: nn.Module,
    source: Pairs,
    prepare: Prepare,
    window: tuple[int, ...] | None = None,
    context: Callable[[], Any] | None = None,
) -> Scores:
    """Scores on all images of a source, in eval mode.

    Args:
        model: gives logits (N, K, H, W), at the size of its input.
        source: the images.
        prepare: makes the network's input from bytes.
        window: size of the windows that an image is cut into; None for whole images.
        context: for the network's forward pass, such as mixed precision.
    """
    model.eval()
    K = source.classes
    matrix, total = torch.zeros(K, K, dtype=torch.long), 0.0
    for x, y in map(prepare, source.evaluation(batch_size(source))):
        logs = log_probabilities(model, x, window, context)
        total += float(F.nll_loss(logs, y.long(), ignore_index=IGNORED, reduction="sum"))
        matrix += confusion.count(y, logs.argmax(1), K).cpu()
    pixels = int(matrix.sum())
    return Scores(matrix, total / pixels if pixels else math.nan)


def batch_size(source: Pairs) -> int:
    """Images of an evaluation batch, by the largest one."""
    return max(1, PIXELS // max((y.numel() for y in source.labels), default=1))


def log_probabilities(
    model: nn.Module,
    x: Tensor,
    window: tuple[int, ...] | None,
    context: Callable[[], Any] | None = None,
) -> Tensor:
    """(N, K, H, W), of whole images, or from the mean of the probabilities of windows."""

    def logits(part: Tensor) -> Tensor:
        if context is None:
            found: Tensor = model(part)
        else:
            with context():
                found = model(part)
        return found.float()

    if window is None:
        return logits(x).log_softmax(1)
    total: Tensor | None = None
    seen = x.new_zeros(1, 1, *x.shape[2:])
    for place in places(tuple(x.shape[2:]), window):
        part = (slice(None), slice(None), *place)
        own = logits(x[part]).softmax(1)
        if total is None:
            total = own.new_zeros(len(x), own.shape[1], *x.shape[2:])
        total[part] += own
        seen[part] += 1
    assert total is not None
    return (total / seen).clamp(min=1e-12).log()


def places(whole: tuple[int, ...], window: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Windows that cover an image, the last ones at its end; smaller ones where it is smaller.

    >>> [(p[0].start, p[0].stop) for p in places((10,), (6,))]
    [(0, 6), (4, 10)]
    """
    axes = []
    for length, size in zip(whole, window, strict=True):
        own = min(size, length)
        count = math.ceil((length - own) / max(1, round(own * STRIDE))) + 1
        starts = [round(k * (length - own) / max(count - 1, 1)) for k in range(count)]
        axes.append([slice(start, start + own) for start in starts])
    yield from product(*axes)

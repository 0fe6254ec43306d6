"""Time per element of BGN as the batch and the number of groups grow, beyond the caches."""

from __future__ import annotations

from typing import Any

import torch

import bgn
from benchmarks import rivals
from benchmarks.timing import interleaved

# (N, C) of 56 x 56 maps: the same number of elements, 12.8 MB
BY_BATCH = [(2, 512), (8, 128), (32, 32), (128, 8)]
GROUPS = [1, 4, 16, 64, 128, 512]


def compare(seconds: float) -> dict[str, dict[str, float]]:
    """Nanoseconds per element, forward and backward.

    By batch size N at the paper's G, and by G at batch 8.
    """
    cases = {f"N = {N}": (N, C, bgn.paper_groups(N)) for N, C in BY_BATCH} | {
        f"G = {G}": (8, 128, G) for G in GROUPS
    }
    steps: dict[str, Any] = {}
    for name, (N, C, G) in cases.items():
        x, gy = torch.randn(2, N, C, 56, 56)
        steps[name] = rivals.training_step(bgn.BatchGroupNorm2d(C, G), x, gy)
    elements = 8 * 128 * 56 * 56
    found = {
        name: 1e9 * times["median"] / elements
        for name, times in interleaved(steps, seconds).items()
    }
    return {sort: {k: v for k, v in found.items() if k.startswith(sort)} for sort in ("N", "G")}

"""Training steps of several simulated workers: in one pass, and in a pass for each.

    python -m benchmarks.workers --seconds 60

W workers of n images against one worker of W * n images, which is the same work with other
statistics: ResNet-20 of width 8 on 32 x 32 images, one thread, in turns. Convolutions are the
faster ones for each, as in a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from benchmarks.arguments import seconds
from benchmarks.timing import interleaved
from bgn_lab import models, norms
from bgn_lab.data.sources import Batch
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.training import loop
from bgn_lab.training.workers import Workers

SHAPE, CLASSES = (3, 32, 32), 10
SEPARATE, TOGETHER, LARGE = "a pass each", "one pass", "one worker"


def _step(recipe: Recipe, batches: Sequence[Batch], per_pass: int) -> Callable[[], None]:
    """One optimizer step, by the laboratory's own loop."""
    torch.manual_seed(0)
    build = norms.constructor(recipe)
    model = models.network(recipe.model, build, CLASSES, SHAPE[0], recipe.width, recipe.stride)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, recipe.momentum, fused=True)
    scaler = torch.amp.GradScaler(enabled=False)
    onednn = loop.onednn_is_faster(model, recipe, tuple(batches[0][0].shape))
    workers = Workers(recipe.simulate_workers)

    def step() -> None:
        with loop.convolutions(onednn):
            loop.train(
                model, optimizer, batches, recipe, loop.classify, lambda _: 1e-3, scaler,
                lambda *_: None, workers, per_pass=per_pass,
            )  # fmt: skip

    return step


def steps(norm: str, W: int, n: int) -> dict[str, Callable[[], None]]:
    """What is compared for one normalizer."""
    x, y = torch.randn(W * n, *SHAPE), torch.randint(CLASSES, (W * n,))
    recipe = Recipe(norm=norm, model="resnet20", width=8, batch_size=n, simulate_workers=W)
    parts = list(zip(torch.split(x, n), torch.split(y, n), strict=True))
    large = replace(recipe, batch_size=W * n, simulate_workers=1)
    if norm == "bgn":  # the same groups: the paper's depend on the batch size
        recipe, large = (replace(r, groups=1) for r in (recipe, large))
    return {
        SEPARATE: _step(recipe, parts, 1),
        TOGETHER: _step(recipe, [(x, y)], W),
        LARGE: _step(large, [(x, y)], 1),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=seconds, default=60.0, help="in all, about")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--images", type=int, default=2, help="of a worker")
    parser.add_argument("--norms", nargs="+", default=["bn", "bgn", "gbgn", "gn"])
    options = parser.parse_args(arguments)
    W, n = options.workers, options.images
    torch.set_num_threads(1)
    print(f"images/s of {W} workers of {n} images, and of one worker of {W * n}; best (median)\n")
    print("| norm | a pass each | one pass | one worker | one pass / a pass each | / one worker |")
    print("|---|---|---|---|---|---|")
    for norm in options.norms:
        times = interleaved(steps(norm, W, n), options.seconds / len(options.norms))
        rates = [
            f"{W * n / t['min']:.0f} ({W * n / t['median']:.0f})"
            for t in (times[name] for name in (SEPARATE, TOGETHER, LARGE))
        ]
        gains = [times[name]["min"] / times[TOGETHER]["min"] for name in (SEPARATE, LARGE)]
        print(f"| {norm} | {' | '.join(rates)} | {gains[0]:.2f} | {gains[1]:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What the laboratory's training loop costs beyond the network; at 2 images per step it matters.

    python -m benchmarks.loop

For each batch size, milliseconds per step of the network alone (forward, loss, backward, optimizer,
always on the same batch), of the whole loop (order, augmentation, normalization, learning rate,
accounting), and of the loader alone; in turns, the least of five. Then the images per second that
are decoded from a folder of JPEGs of ImageNet's usual size.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional as F

from bgn_lab import data, experiments
from bgn_lab.data.folders.scan import scan
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.training import loop, schedule

ROUNDS = 5
IMAGES = 1024  # per round: as many as are augmented at a time


def measure(recipe: Recipe, steps: int) -> dict[str, float]:
    """Seconds per step."""
    images = data.load(recipe)
    model = experiments.task(recipe, images).build()
    optimizer = torch.optim.SGD(
        model.parameters(), 1e-3, recipe.momentum, weight_decay=recipe.decay, fused=True
    )
    scaler = torch.amp.GradScaler(enabled=False)
    prepare = loop.Prepare(images, recipe)
    x, y = prepare(next(images.train.training(recipe.batch_size, 0, 0)))

    def bare() -> None:
        model.train()
        for _ in range(steps):
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

    def batches() -> list[object]:
        source = images.train.training(recipe.batch_size, 0, 0)
        return [prepare(batch) for batch, _ in zip(source, range(steps), strict=False)]

    def whole() -> None:
        source = (
            batch
            for batch, _ in zip(
                images.train.training(recipe.batch_size, 0, 0), range(steps), strict=False
            )
        )
        rate: Callable[[int], float] = lambda step: schedule.rate(recipe, step / steps) * 1e-3  # noqa: E731
        loop.train(
            model,
            optimizer,
            map(prepare, source),
            recipe,
            loop.classify,
            rate,
            scaler,
            lambda *_: None,
        )

    parts = {"network": bare, "loop": whole, "loader": batches}
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(ROUNDS):
        for name, part in parts.items():
            begin = time.perf_counter()
            part()
            times[name].append((time.perf_counter() - begin) / steps)
    return {name: min(values) for name, values in times.items()}


def decoding(folder: Path, decoders: int) -> float:
    """Images per second from a folder, cut at random to 224x224."""
    source = replace(scan(folder)[1], decoders=decoders)
    begin = time.perf_counter()
    count = sum(len(y) for _, y in source.training(32, 0, 0))
    return count / (time.perf_counter() - begin)


def photographs(folder: Path, count: int) -> None:
    """Write JPEGs of 500x375 in two classes: smooth noise, about as many bytes as a photograph."""
    from PIL import Image

    draws = torch.Generator().manual_seed(0)
    for i in range(count):
        noise = F.interpolate(
            torch.rand(1, 3, 94, 125, generator=draws), (375, 500), mode="bicubic"
        ).clamp(0, 1)[0]
        path = folder / f"class{i % 2}" / f"{i}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((255 * noise).byte().permute(1, 2, 0).numpy()).save(path, quality=90)


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)  # as one of several runs side by side
    print(
        "| batch | network, ms | loop, ms | loop / network | loader alone, images/s |"
        " images/s in training |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for size in (2, 8, 32):
        recipe = Recipe(batch_size=size, stride=2)
        images = data.load(recipe)
        model = experiments.task(recipe, images).build()
        with loop.convolutions(loop.onednn_is_faster(model, recipe, (size, *images.shape))):
            t = measure(recipe, IMAGES // size)
        rates = f"{size / t['loader']:.0f} | {size / t['loop']:.0f}"
        times = f"{1e3 * t['network']:.2f} | {1e3 * t['loop']:.2f}"
        print(f"| {size} | {times} | {t['loop'] / t['network']:.3f} | {rates} |")
    print("\n| processes that decode | images/s |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as name:
        photographs(Path(name), 512)
        for decoders in (0, 1, 2):
            who = decoders or "none: the training process"
            print(f"| {who} | {decoding(Path(name), decoders):.0f} |")


if __name__ == "__main__":
    main()

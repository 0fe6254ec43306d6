"""Train a network for classification with any normaliser; stop and go on at any epoch.

The weights come from the seed; order and augmentation of an epoch from the seed and the epoch. So a run that was killed and
goes on from its checkpoint ends with the same bits, on the CPU, as one that was not.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

import bgn
from bgn_lab import data as data_sets
from bgn_lab import files, norms
from bgn_lab.data.sources import Data
from bgn_lab.models.resnet import resnet
from bgn_lab.recipe import Recipe
from bgn_lab.training import checkpoint, loop, schedule
from bgn_lab.training.record import Record

FINISHED, NOT_CONVERGED = "finished", "did not converge"
WEIGHTS = "model.safetensors"


@dataclass
class Watcher:
    """What hears of a run's progress. ``step`` may raise :class:`bgn_lab.training.loop.Interrupted`."""

    begin: Callable[[int, int], None] = lambda epochs, steps: None  # noqa: ARG005
    step: Callable[[int, int], None] = lambda epoch, step: None  # noqa: ARG005
    epoch: Callable[[dict[str, Any]], None] = lambda metrics: None  # noqa: ARG005


def build(recipe: Recipe, data: Data) -> nn.Module:
    """The network with its first weights."""
    torch.manual_seed(recipe.seed)
    model = resnet(recipe.model, norms.constructor(recipe), len(data.classes), data.shape[0], recipe.width, recipe.stride)
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model.to(recipe.device)


def description(recipe: Recipe, data: Data) -> list[dict[str, Any]]:
    """What each normaliser amounts to in this network: :func:`bgn.describe`, as plain values."""
    found = bgn.describe(build(recipe, data), data.shape, recipe.batch_size)
    return [{"layer": r.layer, "shape": list(r.shape), "G": r.G, "instances": r.instances, "acts_as": r.acts_as} for r in found]


def floor(chance: float, images: int) -> float:
    """The accuracy that a run must exceed to count as converged: three standard errors above guessing, or half-way to 100 %."""
    return min(chance + 3 * math.sqrt(chance * (1 - chance) / max(images, 1)), (1 + chance) / 2)


def run(recipe: Recipe, folder: Path, watcher: Watcher | None = None) -> dict[str, Any]:
    """Train, or go on with training, in a folder of its own; the result, at once if there is one already."""
    data = data_sets.load(recipe)
    check(recipe, data)
    with Record(folder, recipe) as record:
        if (done := record.result()) is not None:
            return done
        with loop.convolutions(recipe, data):
            return _train(recipe, data, record, watcher or Watcher())


def _train(recipe: Recipe, data: Data, record: Record, watcher: Watcher) -> dict[str, Any]:
    folder = record.folder
    model = build(recipe, data)
    optimizer = torch.optim.SGD(
        model.parameters(), recipe.rate, recipe.momentum, weight_decay=recipe.decay, nesterov=recipe.nesterov,
        fused=recipe.device.startswith(("cpu", "cuda")),
    )  # fmt: skip
    scaler = torch.amp.GradScaler(enabled=recipe.amp and recipe.device.startswith("cuda"))
    path = folder / checkpoint.NAME
    progress = checkpoint.restore(path, recipe, model, optimizer) if path.exists() else checkpoint.Progress()
    if progress.scaler:
        scaler.load_state_dict(progress.scaler)
    history = record.rewind(progress.epoch)
    if not history:  # a damaged image shall not turn up after days; those for training turn up in the first epoch
        data.validation.check()
        data.test.check()
    network: nn.Module = torch.compile(model) if recipe.compile else model  # type: ignore[assignment]
    prepare = loop.Prepare(data, recipe)
    steps = len(data.train) // recipe.batch_size // recipe.accumulate
    watcher.begin(recipe.epochs, steps)
    board = _board(folder) if recipe.tensorboard else None
    for epoch in range(progress.epoch, recipe.epochs):
        if _trouble(history):
            break
        begin = time.perf_counter()
        torch.manual_seed(recipe.seed * 1_000_003 + epoch)  # for whatever in a network draws numbers
        batches = islice(data.train.training(recipe.batch_size, recipe.seed, epoch), steps * recipe.accumulate)
        rate, step = partial(_rate, recipe, epoch, steps), partial(watcher.step, epoch)
        trained = loop.train(network, optimizer, map(prepare, batches), recipe, rate, scaler, step)
        seconds = time.perf_counter() - begin
        metrics = {
            "epoch": epoch + 1, "lr": optimizer.param_groups[0]["lr"], "seconds": seconds,
            "images_per_second": trained.images / seconds, "train_loss": trained.loss, "train_accuracy": trained.accuracy,
        }  # fmt: skip
        if math.isfinite(trained.loss):
            if len(data.validation):
                held = loop.evaluate(network, map(prepare, data.validation.evaluation(loop.EVALUATION_BATCH)), recipe)
                metrics |= {"validation_loss": held.loss, "validation_accuracy": held.accuracy}
            if epoch >= recipe.epochs - recipe.median_of:
                tested = loop.evaluate(network, map(prepare, data.test.evaluation(loop.EVALUATION_BATCH)), recipe)
                metrics |= {"test_loss": tested.loss, "test_accuracy": tested.accuracy, "test_images": tested.images}
        metrics = {name: value if math.isfinite(value) else None for name, value in metrics.items()}  # JSON knows no others
        history.append(metrics)
        record.add(metrics)
        progress.epoch, progress.seconds = epoch + 1, progress.seconds + time.perf_counter() - begin
        progress.scaler = scaler.state_dict() if scaler.is_enabled() else None
        checkpoint.store(path, recipe, model, optimizer, progress)
        if board is not None:
            for name, value in metrics.items():
                if isinstance(value, float):
                    board.add_scalar(name, value, epoch + 1)
            board.flush()
        watcher.epoch(metrics)
    if board is not None:
        board.close()
    result = _result(recipe, data, model, history, progress.seconds)
    files.write(folder / WEIGHTS, save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))
    record.finish(result)
    path.unlink(missing_ok=True)
    return result


def _rate(recipe: Recipe, epoch: int, steps: int, step: int) -> float:
    return schedule.rate(recipe, epoch + step / steps)


def _trouble(history: list[dict[str, Any]]) -> str:
    """Why there is no use in going on: a loss of the last epoch that is not a finite number."""
    lost = [name for name, value in history[-1].items() if value is None] if history else []
    return f"{' and '.join(lost)} of epoch {history[-1]['epoch']} not finite" if lost else ""


def _result(recipe: Recipe, data: Data, model: nn.Module, history: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    tests = [m for m in history if "test_accuracy" in m]
    accuracy = statistics.median(m["test_accuracy"] for m in tests) if tests else None
    images = tests[-1]["test_images"] if tests else len(data.test)
    least, trouble = floor(data.chance, images), _trouble(history)
    if not trouble and accuracy is not None and accuracy <= least:
        trouble = f"{accuracy:.2%} of the test images right, guessing reaches {data.chance:.2%} and, by luck, {least:.2%}"
    return {
        "status": NOT_CONVERGED if trouble else FINISHED,
        "reason": trouble,
        "test_accuracy": accuracy,
        "validation_accuracy": history[-1].get("validation_accuracy"),
        "chance": data.chance,
        "floor": least,
        "classes": len(data.classes),
        "images": {
            "train": len(data.train),
            "validation": len(data.validation),
            "test": images,
        },
        "image": list(data.shape),
        "epochs": len(history),
        "seconds": seconds,
        "parameters": sum(p.numel() for p in model.parameters()),
        "normalisers": description(recipe, data),
    }


def check(recipe: Recipe, data: Data) -> None:
    """Refuse what would fail after minutes."""
    if len(data.train) < recipe.batch_size * recipe.accumulate:
        raise ValueError(
            f"batch_size={recipe.batch_size} times accumulate={recipe.accumulate} exceeds the {len(data.train)} training images"
        )
    if not len(data.test):
        raise ValueError(f"data={recipe.data!r} has no test images")
    try:
        torch.empty(0, device=recipe.device)
        known = torch.device(recipe.device).type in ("cpu", "cuda", "mps")
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={recipe.device!r} cannot be used: {str(error).splitlines()[0]}") from None
    if not known:
        raise ValueError(f"device={recipe.device!r} cannot be used; expected cpu, cuda or mps")
    if recipe.image_size is not None and recipe.data in ("fashion-mnist", "cifar10", "arrays"):
        raise ValueError(f"image_size={recipe.image_size} is for folders of images; those of {recipe.data} are used as they are")
    if recipe.channels_last and torch.device(recipe.device).type == "cpu" and (recipe.width or 8) < 8:
        raise ValueError(
            f"width={recipe.width} with channels_last: torch's convolutions crash there on the CPU; expected at least 8"
        )
    if recipe.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise ValueError("tensorboard=True needs the package tensorboard: pip install tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        description(recipe, data)  # groups that do not fit a layer raise here


def _board(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard")

"""How well a trained network does on validation images, by the statistics that it is given."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import bgn
from bgn_lab import experiments
from bgn_lab.data.sources import Batch
from bgn_lab.recipe import Recipe
from bgn_lab.system import files
from bgn_lab.training import loop
from bgn_lab.training.run import WEIGHTS
from bgn_lab.training.task import Task
from bgn_lab.training.workers import statistics_in_blocks
from studies.ledger import key, to_json

FIRST, ALL, EXACT, TRAINING = "first worker", "all workers", "recalibrated", "training mode"
STEPS = 50
"""Forward passes that the averages over all workers take."""


class Diagnoses:
    """Accuracies by kind of statistics, a line of a file for each run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.found = {
            key(experiments.recipe(values["recipe"])): values for values in map(json.loads, lines)
        }

    def __contains__(self, recipe: Recipe) -> bool:
        return key(recipe) in self.found

    def get(self, recipe: Recipe) -> dict[str, float] | None:
        """Those of a run, if it was diagnosed."""
        values = self.found.get(key(recipe))
        return None if values is None else values["accuracy"]

    def add(self, recipe: Recipe, folder: Path) -> None:
        """Diagnose the finished run in a folder."""
        accuracy = diagnose(recipe, folder)
        self.found[key(recipe)] = {"recipe": to_json(recipe), "accuracy": accuracy}
        files.make_folder(self.path.parent)
        rows = (json.dumps(values) for values in self.found.values())
        files.write(self.path, "".join(f"{row}\n" for row in rows))


def diagnose(recipe: Recipe, folder: Path) -> dict[str, float]:
    """Accuracy on the validation images with each kind of statistics."""
    task = experiments.task(recipe)
    model = task.build()
    model.load_state_dict(load_file(folder / WEIGHTS))
    prepare = loop.Prepare(task.data, recipe)
    found = {FIRST: _evaluated(model, task, prepare)}
    if not any(getattr(m, "running_mean", None) is not None for m in model.modules()):
        return found  # GN and LN use each image's own
    found[TRAINING] = _in_training_mode(model, task, prepare)
    found[ALL] = _evaluated(_averaged(model, task, prepare), task, prepare)
    n, own = recipe.batch_size, copy.deepcopy(model)
    batches = (prepare(batch)[0] for batch in task.data.train.training(n * 64, recipe.seed, 0))
    with statistics_in_blocks(own, 64):
        bgn.recalibrate(own, batches, progress=False)
    found[EXACT] = _evaluated(own, task, prepare)
    return found


def _evaluated(model: nn.Module, task: Task, prepare: loop.Prepare) -> float:
    batches = map(prepare, task.data.validation.evaluation(loop.EVALUATION_BATCH))
    return loop.evaluate(model, batches, task.recipe).accuracy


@torch.no_grad()
def _in_training_mode(model: nn.Module, task: Task, prepare: loop.Prepare) -> float:
    """Each n images by their own statistics, without corrections towards the running ones."""
    n, own = task.recipe.batch_size, copy.deepcopy(model).train()
    layers: list[Any] = [m for m in own.modules() if getattr(m, "renorm", None) is not None]
    for layer in layers:
        layer.set_renorm(None)
    right = images = 0
    for x, y in _full(map(prepare, _shuffled(task, n * 16)), n * 16):
        with statistics_in_blocks(own, 16):
            logits: Tensor = own(x)
        right += int((logits.argmax(1) == y).sum())
        images += len(y)
    return right / images


def _shuffled(task: Task, batch_size: int) -> Iterator[Batch]:
    """Validation images in random order: images of one class must not share statistics."""
    held: Any = task.data.validation
    order = torch.randperm(len(held), generator=torch.Generator().manual_seed(0))
    yield from held.part(order).evaluation(batch_size)


def _full(batches: Iterator[Batch], batch_size: int) -> Iterator[Batch]:
    yield from ((x, y) for x, y in batches if len(y) == batch_size)


@torch.no_grad()
def _averaged(model: nn.Module, task: Task, prepare: loop.Prepare) -> nn.Module:
    """Running statistics as they would be with those of all workers in every step."""
    own = copy.deepcopy(model).train()
    layers: list[Any] = [m for m in own.modules() if hasattr(m, "batch_blocks")]
    for layer in layers:
        layer.momentum = 0.1
    workers = task.recipe.simulate_workers
    batches = task.data.train.training(task.recipe.batch_size * workers, 0, 0, range(STEPS))
    for x, _ in map(prepare, batches):
        with statistics_in_blocks(own, workers):
            for layer in layers:
                layer.first_block = False
            own(x)
    return own

"""The training loop: which convolutions it runs on, and what comes before a step."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bgn_lab import data, experiments
from bgn_lab.data.sources import Batch
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.nas.darts import Darts, DartsRecipe
from bgn_lab.experiments.nas.manas import Manas, ManasRecipe
from bgn_lab.system.signals import Interrupted
from bgn_lab.training import loop
from bgn_lab.training import run as running
from bgn_lab.training.record import ABOUT
from bgn_lab.training.run import WEIGHTS, Watcher

SMALL = Recipe(norm="bn", width=4, limit=60, batch_size=4, epochs=2)


def small(recipe: Recipe) -> Any:
    images = data.load(recipe)
    return experiments.task(recipe, replace(images, test=images.test.part(torch.arange(20))))


@pytest.mark.parametrize("faster", [True, False])
def test_convolutions_are_timed_once_and_a_resumed_run_keeps_the_choice(
    faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[tuple[int, ...]] = []
    enabled: set[bool] = set()

    def choose(*arguments: Any) -> bool:
        timed.append(arguments[2])
        return faster

    def step(epoch: int, done: int) -> None:  # noqa: ARG001
        enabled.add(torch._C._get_mkldnn_enabled())
        if len(timed) == 1 and epoch == 1 and not stopped:
            stopped.append(True)
            raise Interrupted

    stopped: list[bool] = []
    monkeypatch.setattr(loop, "onednn_is_faster", choose)
    with pytest.raises(Interrupted):
        running.run(small(SMALL), tmp_path / "run", Watcher(step=step))
    assert timed == [(4, 1, 28, 28)]
    monkeypatch.setattr(loop, "onednn_is_faster", lambda *_: pytest.fail("timed again"))
    running.run(small(SMALL), tmp_path / "run", Watcher(step=step))
    assert enabled == {faster}
    assert json.loads((tmp_path / "run" / ABOUT).read_text())["onednn"] is faster
    assert torch._C._get_mkldnn_enabled(), "as it was"


def test_timing_changes_nothing() -> None:
    """The model, its running statistics and the random state stay as they are."""
    model = small(SMALL).build()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    model.eval()
    assert isinstance(loop.onednn_is_faster(model, SMALL, (4, 1, 28, 28)), bool)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("slow", "expected"), [(True, False), (False, True)])
def test_the_faster_convolutions_are_taken(
    slow: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock by which one of the two takes twice as long."""
    now = [0.0]

    class Network(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            now[0] += 0.02 if torch._C._get_mkldnn_enabled() is slow else 0.01
            return super().forward(x)

    monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
    assert loop.onednn_is_faster(Network(4, 4), SMALL, (2, 4)) is expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"onednn": True}, True),
        ({"onednn": False}, False),
        ({"amp": True}, True),
        ({"compile": True}, True),
        ({"device": "cuda"}, True),
    ],
)
def test_nothing_is_timed_where_the_choice_is_made(changes: dict[str, Any], expected: bool) -> None:
    model = nn.Module()  # has no forward
    assert loop.onednn_is_faster(model, replace(SMALL, **changes), (4, 1, 28, 28)) is expected


class InIterator:
    """Steps of the architecture as they were taken before: while a batch is made."""

    def example(self: Any, model: nn.Module, batch: Batch) -> Batch:
        super().before_step(model, batch)  # type: ignore[misc]
        return batch

    def before_step(self, model: nn.Module, batch: Batch) -> None:
        pass


class OldDarts(InIterator, Darts):
    pass


class OldManas(InIterator, Manas):
    pass


SEARCH: Any = {
    "width": 2, "cells": 3, "limit": 32, "batch_size": 4, "epochs": 1, "onednn": True,
    "channels_last": False, "data": "fashion-mnist", "norm": "bgn", "groups": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "new", "old"),
    [
        (DartsRecipe(**SEARCH, order="first"), Darts, OldDarts),
        (ManasRecipe(**SEARCH, window=4), Manas, OldManas),
    ],
)
def test_searches_step_before_the_weights_do(
    recipe: Recipe, new: Any, old: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are those of steps inside the iterator of batches."""
    monkeypatch.setattr(new, "illustrate", lambda *_: None)
    images = new.load(recipe)
    images = replace(images, test=images.test.part(torch.arange(8)))
    for name, kind in (("new", new), ("old", old)):
        running.run(kind(recipe, images), tmp_path / name)
    one, two = (load_file(tmp_path / name / WEIGHTS) for name in ("new", "old"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def test_before_step_is_called_once_for_each_step() -> None:
    recipe = replace(SMALL, accumulate=3, onednn=True)
    task = small(recipe)
    model = task.build()
    prepare = loop.Prepare(task.data, recipe)
    batches = [prepare(b) for b in task.data.train.training(4, 0, 0, range(6))]
    seen: list[Tensor] = []
    loop.train(
        model, torch.optim.SGD(model.parameters(), 0.1), batches, recipe, loop.classify,
        lambda _: 0.1, torch.amp.GradScaler(enabled=False), lambda *_: None,
        before_step=lambda batch: seen.append(batch[0]),
    )  # fmt: skip
    assert len(seen) == 2
    assert torch.equal(seen[0], batches[0][0])
    assert torch.equal(seen[1], batches[3][0])

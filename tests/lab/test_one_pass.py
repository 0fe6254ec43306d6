"""Workers in one pass: the same weights as a pass for each, whatever the other options are."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from bgn_lab import experiments
from bgn_lab.experiments.adversarial.task import AdversarialRecipe
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.nas.train import NasTrainRecipe
from bgn_lab.paper import NORMALIZERS
from bgn_lab.system.signals import Interrupted
from bgn_lab.training import run as running
from bgn_lab.training.run import WEIGHTS, Watcher
from bgn_lab.training.workers import statistics_in_blocks, workers_per_pass

SMALL = Recipe(width=4, limit=72, batch_size=2, epochs=2, lr=0.05, simulate_workers=4, onednn=True)


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def trained(recipe: Recipe, folder: Path, stop_at: int | None = None) -> dict[str, Tensor]:
    """Weights after a run, which is stopped after so many steps of the second epoch and resumed."""
    images = experiments.get(recipe.experiment).task.load(recipe)
    images = replace(images, test=images.test.part(torch.arange(20)))

    def step(epoch: int, done: int) -> None:
        if (epoch, done) == (1, stop_at):
            raise Interrupted

    if stop_at is not None:
        with pytest.raises(Interrupted):
            running.run(experiments.task(recipe, images), folder, Watcher(step=step))
    running.run(experiments.task(recipe, images), folder)
    return load_file(folder / WEIGHTS)


def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Images of each training pass from now on."""
    found: list[int] = []
    whole = nn.functional.cross_entropy

    def counted(logits: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if logits.requires_grad:
            found.append(len(logits))
        return whole(logits, *args, **kwargs)

    monkeypatch.setattr("torch.nn.functional.cross_entropy", counted)
    return found


@pytest.mark.parametrize(
    ("norm", "changes"),
    [
        *((norm, {}) for norm in NORMALIZERS),
        ("bn", {"accumulate": 2}),
        ("bgn", {"accumulate": 2, "channels_last": True, "width": 8}),
        ("gbgn", {"accumulate": 2}),
        ("bgn+renorm", {"renorm_warmup": 4}),
        ("bn+renorm", {"accumulate": 2, "renorm_warmup": 0}),
        ("gbgn+ws+renorm", {}),
        ("bgn+center", {"groups": 2}),
    ],
)
def test_one_pass_and_a_pass_for_each_worker_give_the_same_weights(
    norm: str, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(SMALL, norm=norm, **changes)
    images = forwards(monkeypatch)
    separate = trained(replace(recipe, images_per_pass=2), tmp_path / "separate")
    assert set(images) == {2}
    images.clear()
    together = trained(recipe, tmp_path / "together", stop_at=2)
    assert set(images) == {8}
    images.clear()
    halves = trained(replace(recipe, images_per_pass=5), tmp_path / "halves")
    assert set(images) == {4}
    for name, value in separate.items():
        for other in (together[name], halves[name]):
            torch.testing.assert_close(other, value, rtol=1e-12, atol=1e-12, msg=name)


def test_workers_are_no_large_batch(tmp_path: Path) -> None:
    recipe = replace(SMALL, norm="bn", epochs=1)
    workers = trained(recipe, tmp_path / "workers")
    large = trained(replace(recipe, simulate_workers=1, batch_size=8), tmp_path / "large")
    assert not torch.allclose(workers["conv1.weight"], large["conv1.weight"], rtol=1e-3)
    assert workers.keys() == large.keys(), "a checkpoint of BN, whatever the number of workers"


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (replace(SMALL, norm="bn"), True),
        (replace(SMALL, model="mobilenet-v2", width=None), False),
        (AdversarialRecipe(simulate_workers=2, limit=100), False),
        (AdversarialRecipe(simulate_workers=2, limit=100, attack_steps=0), True),
        (NasTrainRecipe(cells=3, width=4, limit=100), False),
        (NasTrainRecipe(cells=3, width=4, limit=100, drop_path=0, simulate_workers=2), True),
    ],
)
def test_what_draws_or_attacks_runs_worker_by_worker(recipe: Recipe, expected: bool) -> None:
    recipe = replace(recipe, data="fashion-mnist")
    task = experiments.task(recipe)
    assert task.supports_one_pass(task.build()) is expected


def test_workers_with_cutout_draw_as_in_separate_passes(tmp_path: Path) -> None:
    recipe = NasTrainRecipe(
        data="fashion-mnist", norm="bn", cells=3, width=4, limit=36, batch_size=4, epochs=1,
        drop_path=0, simulate_workers=2, channels_last=False, onednn=True, lr=1e-3,
    )  # fmt: skip
    one = trained(recipe, tmp_path / "one")
    two = trained(replace(recipe, images_per_pass=1), tmp_path / "two")
    for name, value in two.items():
        torch.testing.assert_close(one[name], value, rtol=1e-12, atol=1e-12)


def test_workers_per_pass() -> None:
    recipe = Recipe(batch_size=4)
    assert workers_per_pass(recipe, (3, 32, 32), 8) == 8
    assert workers_per_pass(recipe, (3, 224, 224), 8) == 1, "5 images of 224 x 224 on a CPU"
    assert workers_per_pass(replace(recipe, device="cuda"), (3, 224, 224), 8) == 4, "20 on a GPU"
    assert workers_per_pass(replace(recipe, images_per_pass=12), (3, 32, 32), 8) == 2
    assert workers_per_pass(replace(recipe, images_per_pass=1), (3, 32, 32), 8) == 1
    with pytest.raises(ValueError, match="images_per_pass=0"):
        Recipe(images_per_pass=0)
    assert Recipe(images_per_pass=3).identity() == Recipe().identity()


def test_blocks_end_with_the_context() -> None:
    task = experiments.task(replace(SMALL, norm="gbgn"))
    model: Any = task.build()
    with statistics_in_blocks(model, 3):
        assert (model.bn1.batch_blocks, model.bn1.first_block) == (3, True)
    with pytest.raises(TypeError), statistics_in_blocks(model, 3):
        model(None)
    assert (model.bn1.batch_blocks, model.bn1.first_block) == (1, False)
    model.bn1.batch_blocks = 2
    with (
        pytest.raises(ValueError, match="batch_blocks=2 of General"),
        statistics_in_blocks(model, 3),
    ):
        pass

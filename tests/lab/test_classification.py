"""One training run: that it learns, and what it says when it does not."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from PIL import Image
from torch import nn

from bgn.factory import NAMES
from bgn_lab import data, experiments
from bgn_lab.data.sources import InMemory
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.training import loop
from bgn_lab.training import run as running
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.record import ABOUT, DATA, METRICS, RECIPE, RESULT
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Images
from bgn_lab.training.run import WEIGHTS
from bgn_lab.training.task import floor

SMALL = Recipe(onednn=True, width=8, limit=1500, batch_size=8, epochs=2, lr=0.2)


@pytest.mark.parametrize("norm", NAMES)
def test_every_normalizer_learns(tmp_path: Path, norm: str) -> None:
    # at twice this rate PN learns with some seeds only, and rounding decides as seeds do
    recipe = replace(SMALL, norm=norm, stride=2, lr=0.1)
    result = experiments.run(recipe, tmp_path / "run")
    assert result.status == FINISHED
    assert result.test_accuracy > 0.25, "ten classes: guessing reaches 0.1, this 0.45 and more"
    metrics = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    assert [m["epoch"] for m in metrics] == [1, 2]
    assert metrics[1]["train_loss"] < metrics[0]["train_loss"]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        RECIPE,
        ABOUT,
        DATA,
        METRICS,
        RESULT,
        WEIGHTS,
    }
    about = json.loads((tmp_path / "run" / ABOUT).read_text())
    assert about["torch"] == torch.__version__
    assert Recipe.from_json(json.loads((tmp_path / "run" / RECIPE).read_text())).norm == norm


def test_weights_give_the_accuracy_that_is_reported(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    recipe = replace(SMALL, limit=600, epochs=1)
    result = experiments.run(recipe, tmp_path / "run")
    images = data.load(recipe)
    model = experiments.task(replace(recipe, seed=99), images).build()
    model.load_state_dict(load_file(tmp_path / "run" / WEIGHTS))
    prepare = loop.Prepare(images, recipe)
    score = loop.evaluate(model, map(prepare, images.test.evaluation(7)), recipe)
    assert score.accuracy == pytest.approx(result.test_accuracy, abs=0.002)
    assert score.images == 2000


def test_a_loss_that_explodes_did_not_converge(tmp_path: Path) -> None:
    result = experiments.run(replace(SMALL, norm="bn", limit=400, lr=1e30), tmp_path / "run")
    assert result.status == NOT_CONVERGED
    assert "train_loss of epoch 1 not finite" in result.reason
    assert result.test_accuracy is None
    last = json.loads((tmp_path / "run" / METRICS).read_text().splitlines()[-1])
    assert last["train_loss"] is None
    assert (
        experiments.run(replace(SMALL, norm="bn", limit=400, lr=1e30), tmp_path / "run") == result
    )


def test_a_loss_that_exploded_before_the_run_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(SMALL, norm="bn", limit=400, lr=1e30)
    whole = experiments.run(recipe, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(running, "_result", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            experiments.run(recipe, tmp_path / "killed")
    result = experiments.run(recipe, tmp_path / "killed")
    assert replace(result, seconds=whole.seconds) == whole


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_few_test_images_can_still_converge() -> None:
    assert floor(0.8, 5) == pytest.approx(0.9)
    assert floor(0.1, 2000) == pytest.approx(0.1 + 3 * math.sqrt(0.09 / 2000))


def test_guessing_did_not_converge(tmp_path: Path) -> None:
    recipe = replace(SMALL, limit=200, epochs=1, validation=0.5)
    images: Any = data.load(recipe)
    parts = {name: getattr(images, name) for name in ("train", "validation", "test")}
    blank = {name: replace(part, x=torch.zeros_like(part.x)) for name, part in parts.items()}
    result = running.run(experiments.task(recipe, replace(images, **blank)), tmp_path / "run")
    assert result.status == NOT_CONVERGED
    share = float(images.validation.y.bincount().max()) / 100
    assert f"of the validation images right, guessing reaches {share:.2%}" in result.reason
    assert result.test_accuracy == pytest.approx(0.1), "one class for all"
    assert result.floor == pytest.approx(floor(share, 100))


@pytest.mark.parametrize(
    ("validation", "part"), [(0.4, "validation"), (0.1, "train"), (0.0, "train")]
)
def test_test_images_do_not_decide_whether_a_run_converged(validation: float, part: str) -> None:
    """Validation images do if there are 50 or more, else training images."""
    task = experiments.task(replace(SMALL, limit=200, validation=validation))
    assert task.judged == part
    learned = {"epoch": 1, "train_accuracy": 0.1, "validation_accuracy": 0.1, "test_accuracy": 0.99}
    assert "images right" in task.failure([Metrics.from_json(learned)])
    learned |= {f"{part}_accuracy": 0.99, "test_accuracy": 0.0}
    assert task.failure([Metrics.from_json(learned)]) == ""


def test_without_test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For choices, as in `bgn tune`: nothing looks at them."""
    recipe = replace(SMALL, limit=200, epochs=1, stride=2, test=False)
    task = experiments.task(recipe)
    evaluation = InMemory.evaluation

    def watched(source: InMemory, batch_size: int) -> Any:
        assert source is not task.data.test
        return evaluation(source, batch_size)

    monkeypatch.setattr(InMemory, "evaluation", watched)
    result = running.run(task, tmp_path)
    assert result.test_accuracy is None
    assert result.validation_accuracy is not None
    assert "test_accuracy" not in json.loads((tmp_path / METRICS).read_text())


def test_median_of_the_last_epochs(tmp_path: Path) -> None:
    result = experiments.run(replace(SMALL, limit=300, epochs=4, median_of=3), tmp_path / "run")
    metrics = [json.loads(line) for line in (tmp_path / "run" / METRICS).read_text().splitlines()]
    tested = [m["test_accuracy"] for m in metrics if "test_accuracy" in m]
    assert len(tested) == 3
    assert result.test_accuracy == sorted(tested)[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch_size": 2000},
            "batch_size=2000 times simulate_workers=1 times accumulate=1 "
            "exceeds the 1350 training images",
        ),
        ({"groups": 100_000}, "num_groups=100000 exceeds the"),
        ({"model": "resnet9"}, "model='resnet9' is not known"),
        ({"data": "cifar"}, "data='cifar' is not known; .*did you mean 'cifar10'"),
        ({"device": "cuda:99"}, "device='cuda:99' cannot be used"),
        ({"device": "meta"}, "device='meta' cannot be used; expected cpu, cuda or mps"),
        ({"image_size": 14}, "image_size=14 is for folders of images"),
        ({"device": "abacus"}, "device='abacus' is not known; expected auto, cpu, cuda"),
        (
            {"width": 4, "channels_last": True},
            "width=4 with channels_last: torch's convolutions crash",
        ),
        ({"schedule": "cosines"}, "schedule='cosines' is not known; .*did you mean 'cosine'"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        experiments.run(replace(SMALL, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_accumulated_gradients_are_those_of_the_large_batch() -> None:
    """With a normalizer that sees each image alone, two batches of 8 make one step of 16."""
    images = data.load(Recipe(limit=200))
    steps = {}
    for size, accumulate in ((16, 1), (8, 2)):
        recipe = Recipe(norm="ln", width=4, batch_size=size, accumulate=accumulate)
        model = experiments.task(recipe, images).build().double()
        optimizer = torch.optim.SGD(model.parameters(), recipe.rate)
        batch = next(images.train.training(16, 0, 0))
        x, y = loop.Prepare(images, recipe)(batch)
        batches = list(zip(x.double().split(size), y.split(size), strict=True))
        scaler = torch.amp.GradScaler(enabled=False)
        loop.train(
            model, optimizer, batches, recipe, loop.classify, lambda _: 0.1, scaler, lambda *_: None
        )
        steps[size] = nn.utils.parameters_to_vector(model.parameters()).detach()
    torch.testing.assert_close(steps[8], steps[16], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("least", [64, 256, 10_000])
def test_as_many_groups_as_leave_enough_values(least: int) -> None:
    recipe = Recipe(norm="bgn", instances=least, batch_size=2, width=8, stride=2)
    rows = experiments.task(recipe).description()
    assert len(rows) == 9
    for row in rows:
        C, H, W = row.shape
        assert C % row.G == 0
        assert row.instances == 2 * C * H * W // row.G
        assert row.instances >= least or row.G == 1
        finer = [d for d in range(row.G + 1, C + 1) if C % d == 0]
        assert not finer or 2 * C * H * W // finer[0] < least, "no more groups would do"
    assert len({row.G for row in rows}) > 1 or least == 10_000


def test_images_reach_the_network_normalized() -> None:
    images = data.load(Recipe())
    prepare = loop.Prepare(images, Recipe(channels_last=True))
    x, _ = prepare((images.train.x, images.train.y))  # type: ignore[attr-defined]
    assert abs(float(x.mean())) < 0.02
    assert abs(float(x.std()) - 1) < 0.02
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("damaged", ["refuse", "skip"])
def test_a_damaged_test_image_turns_up_at_once(
    tmp_path: Path, damaged: Literal["refuse", "skip"]
) -> None:
    for part, count in (("train", 20), ("val", 5)):
        for name in ("light", "dark"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                color = 128 + i if name == "light" else 128 - i
                Image.new("RGB", (16, 16), (color,) * 3).save(tmp_path / part / name / f"{i}.png")
    (tmp_path / "val" / "dark" / "broken.png").write_bytes(b"no image")
    recipe = Recipe(
        data=str(tmp_path),
        width=4,
        image_size=16,
        batch_size=4,
        epochs=1,
        decoders=0,
        damaged=damaged,
    )
    if damaged == "refuse":
        with pytest.raises(ValueError, match="broken.png cannot be read as an image"):
            experiments.run(recipe, tmp_path / "run")
        assert not (tmp_path / "run" / METRICS).exists()
    else:
        with pytest.warns(UserWarning, match="broken.png cannot be read as an image .*: skipped"):
            result = experiments.run(recipe, tmp_path / "run")
        assert result.images.test == 10


def test_without_validation_images(tmp_path: Path) -> None:
    result = experiments.run(replace(SMALL, limit=200, validation=0.0, epochs=1), tmp_path / "run")
    assert result.images == Images(200, 0, 2000)
    assert result.validation_accuracy is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"compile": True}, {"amp": True}, {"amp": True, "channels_last": True}], ids=str
)
def test_other_ways_to_compute_learn_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    result = experiments.run(replace(SMALL, norm="bgn", groups=4, **changes), tmp_path / "run")
    assert result.test_accuracy > 0.25  # 0.47 and more, over two seeds


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the package tensorboard is not installed")
    experiments.run(replace(SMALL, limit=200, tensorboard=True), tmp_path / "run")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("validation_accuracy")] == [1, 2]

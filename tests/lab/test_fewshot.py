"""Few-shot learning: new classes from a few images, episodes that are the same for all."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab import experiments
from bgn_lab.data import few_shot
from bgn_lab.data.sources import InMemory
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.fewshot.recipe import FewShotRecipe
from bgn_lab.experiments.fewshot.task import FewShot, draw, features, predict
from bgn_lab.models.resnet12 import CosineClassifier, FewShotNetwork, ResNet12, imprint
from bgn_lab.report.collect import collect
from bgn_lab.report.write import write
from bgn_lab.training import loop, schedule
from bgn_lab.training.run import WEIGHTS

SMALL = FewShotRecipe(
    onednn=True,
    norm="bgn",
    width=8,
    batch_size=64,
    epochs=4,
    milestones=(2, 3, 4),
    limit=2000,
    episodes=100,
)


@pytest.mark.slow
def test_new_classes_are_recognized_and_imprinting_matches_training(tmp_path: Path) -> None:
    result = experiments.run(SMALL, tmp_path)
    assert result.chance == 0.25
    assert result.measures["test_1"] > 0.35, "at least ten points above guessing"
    assert result.measures["test_5"] > result.measures["test_1"]
    assert (
        result.test_accuracy
        == result.measures["test_1"]
        == pytest.approx(np.mean(result.episodes["test_1"]))
    )
    task = experiments.task(SMALL)
    model = task.build()
    assert isinstance(model, FewShotNetwork)
    model.load_state_dict(load_file(tmp_path / WEIGHTS))
    train, held = task.data.train, task.data.validation
    assert isinstance(train, InMemory)
    assert isinstance(held, InMemory)
    prepare = loop.Prepare(task.data, SMALL)
    few = torch.cat([torch.nonzero(train.y == k).flatten()[:50] for k in range(6)])
    weights = imprint(features(model, train.part(few), prepare), train.y[few], 6)
    f = features(model, held, prepare)
    imprinted = float((F.linear(F.normalize(f), weights).argmax(1) == held.y).float().mean())
    assert result.validation_accuracy > 0.7, "the base classes are learned"
    assert imprinted > result.validation_accuracy - 0.05


def test_episodes_are_the_same_at_every_call_and_have_no_image_twice() -> None:
    y = torch.arange(6).repeat_interleave(30)
    once, again = list(draw(y, 5, 20, 50)), list(draw(y, 5, 20, 50))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    for index in once:
        assert index.shape == (5, 20)
        assert len(set(index.flatten().tolist())) == 100
        assert bool((y[index] == y[index][:, :1]).all()), "a row is of one class"
        assert len(set(y[index][:, 0].tolist())) == 5
    assert not torch.equal(once[0], once[1])


def test_prediction_by_the_nearest_direction() -> None:
    torch.manual_seed(0)
    directions = F.normalize(torch.randn(3, 1, 8), dim=-1)
    f = directions * torch.rand(3, 20, 1).add(0.1) + 0.001 * torch.randn(
        3, 20, 8
    )  # lengths do not matter
    assert bool((predict(f, 5) == torch.arange(3)[:, None]).all())
    assert predict(f, 5).shape == (3, 15)


def test_the_classifier_is_the_formula() -> None:
    torch.manual_seed(0)
    classifier, f = CosineClassifier(8, 3), torch.randn(4, 8)
    with torch.no_grad():
        classifier.bias.fill_(0.5)
    wanted = torch.stack(
        [10 * (F.cosine_similarity(f, w[None]) + 0.5) for w in classifier.weight], 1
    )
    torch.testing.assert_close(classifier(f), wanted)


def test_the_networks_of_the_literature() -> None:
    network = ResNet12(nn.BatchNorm2d)
    assert sum(p.numel() for p in network.parameters()) == 7_996_800
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == 16
    with torch.no_grad():
        assert network(torch.randn(2, 3, 84, 84)).shape == (2, 512)
        assert float(ResNet12(nn.BatchNorm2d, width=8)(torch.randn(8, 3, 32, 32)).min()) >= 0
        free = ResNet12(nn.BatchNorm2d, width=8, activation="swish", last=False)
        assert float(free(torch.randn(50, 3, 16, 16)).min()) < 0


def test_the_learning_rates_of_the_paper() -> None:
    recipe = FewShotRecipe(epochs=60, milestones=(20, 40, 50))
    rates = [schedule.rate(recipe, epoch) for epoch in (0, 19.9, 20, 40, 50, 59)]
    assert rates == pytest.approx([0.1, 0.1, 0.006, 0.0012, 0.00024, 0.00024])


def test_an_epoch_of_iterations_draws_with_replacement() -> None:
    task = experiments.task(replace(SMALL, iterations=100, limit=300, batch_size=32))
    assert task.images() == 3200
    batches = list(task.batches(0, range(100)))
    assert len(batches) == 100
    assert all(x.shape[0] == 32 for x, _ in batches)
    again = list(task.batches(0, [99]))
    assert torch.equal(batches[99][0], again[0][0])


def test_running_statistics_stay_in_the_transductive_variant(tmp_path: Path) -> None:
    recipe = replace(
        SMALL, transductive=True, episodes=3, limit=200, epochs=1, schedule="constant", norm="bn"
    )
    task = experiments.task(recipe)
    assert isinstance(task, FewShot)
    model = task.build().eval()
    before = {name: value.clone() for name, value in model.named_buffers()}
    together = task._episodes(model, task.data.test)
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert not model.training
    alone = experiments.task(replace(recipe, transductive=False))
    assert isinstance(alone, FewShot)
    assert together != alone._episodes(model, task.data.test)
    result = experiments.run(recipe, tmp_path)
    assert "transductive" in task.result_line(result)


def _jpeg(value: int) -> bytes:
    content = io.BytesIO()
    Image.fromarray(np.full((30, 40, 3), value, np.uint8)).save(content, "JPEG", quality=95)
    return content.getvalue()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Two base classes, two for choosing, two new ones.

    The gray of an image is a multiple of its class plus its number.
    """
    files, labels, split = [], [], []
    for label in range(6):
        for number in range(4):
            files.append(_jpeg(40 * label + number))
            labels.append(label)
            split.append(label // 2)
    offsets = np.cumsum([0, *map(len, files)])
    np.savez(
        tmp_path / "few.npz",
        jpeg=np.frombuffer(b"".join(files), np.uint8),
        offsets=offsets,
        labels=np.array(labels, np.uint8),
        split=np.array(split, np.uint8),
        split_names=["train", "val", "test"],
        wnids=[f"n{k}" for k in range(6)],
    )
    return tmp_path / "few.npz"


def _grey(x: Tensor) -> list[int]:
    return [round(float(image.float().mean())) for image in x]


def test_classes_of_an_archive_and_of_folders_are_divided_alike(
    archive: Path, tmp_path: Path
) -> None:
    root = tmp_path / "folders"
    for label, part in enumerate(("train", "train", "val", "val", "test", "test")):
        (root / part / f"n{label}").mkdir(parents=True)
        for number in range(4):
            (root / part / f"n{label}" / f"{number}.jpg").write_bytes(_jpeg(40 * label + number))
    for path in (archive, root):
        data = few_shot.load(Recipe(data=str(path), image_size=16, validation=0), 2)
        assert (data.classes, data.new_classes, data.shape) == (
            ("n0", "n1"),
            ("n4", "n5"),
            (3, 16, 16),
        )
        assert data.test.y.tolist() == [0] * 4 + [1] * 4
        assert _grey(data.test.x) == pytest.approx([160, 161, 162, 163, 200, 201, 202, 203], abs=1)
        assert data.choice is not None
        assert _grey(data.choice.x) == pytest.approx([80, 81, 82, 83, 120, 121, 122, 123], abs=1)
        assert isinstance(data.train, InMemory)
        assert _grey(data.train.x) == pytest.approx([0, 1, 2, 3, 40, 41, 42, 43], abs=1)


def test_what_does_not_suffice_for_an_episode_is_refused(archive: Path) -> None:
    with pytest.raises(ValueError, match="ways=5 exceeds the 2 new classes"):
        experiments.task(FewShotRecipe(data=str(archive), width=8))
    with pytest.raises(
        ValueError, match="queries=15 and 5 shots exceed the 4 images of a new class"
    ):
        experiments.task(
            FewShotRecipe(data=str(archive), width=8, ways=2, image_size=32, batch_size=4)
        ).check()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ways": 1}, "ways=1 leaves nothing to decide"),
        ({"queries": 0}, "queries=0"),
        ({"iterations": 0}, "iterations=0"),
        ({"milestones": (1, 2)}, r"milestones=\(1, 2\) are 2 epochs; expected 3"),
        ({"activation": "tanh"}, "activation='tanh'"),
        ({"model": "resnet8"}, "model='resnet8'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


@pytest.mark.slow
def test_a_report_compares_normalizers_seed_by_seed(tmp_path: Path) -> None:
    """Episodes are the same for all, so an interval over them knows nothing of other seeds."""
    recipe = replace(
        SMALL, limit=400, epochs=2, batch_size=32, lr=0.02, schedule="constant", episodes=6
    )
    accuracies, errors = {}, []
    for norm in ("bn", "ln"):
        both = [replace(recipe, norm=norm, seed=seed) for seed in (0, 1)]
        results = [experiments.run(own, tmp_path / "runs" / own.key()) for own in both]
        accuracies[norm] = [result.measures["test_5"] for result in results]
        errors += [np.std(own, ddof=1) / 6**0.5 for r in results for own in r.episodes.values()]
    (found,) = write(collect([tmp_path / "runs"]), tmp_path / "report")
    difference = found.at("LN", 32, "test_5").difference
    apart = 100 * np.subtract(accuracies["ln"], accuracies["bn"])
    assert difference is not None
    assert difference.mean == pytest.approx(np.mean(apart))
    assert difference.deviation == pytest.approx(12.706 * np.std(apart, ddof=1) / 2**0.5, rel=1e-3)
    text = (tmp_path / "report" / "table.md").read_text()
    assert "| normalizer | 1-shot | to BN | 5-shot | to BN |" in text
    assert "not measured here" in text
    error = 100 * np.median(errors)
    assert f"the standard error of one accuracy over 6 episodes is about {error:.1f} points" in text
    assert (tmp_path / "report" / "accuracy.png").stat().st_size > 10_000

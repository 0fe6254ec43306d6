"""Adversarial training: learned, judged, resumed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bgn import layers
from bgn.surgery.kinds import identify, normalizers
from bgn_lab import experiments
from bgn_lab.experiments.adversarial.recipe import AdversarialRecipe
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.models.wide_resnet import wide_resnet
from bgn_lab.system.signals import Interrupted
from bgn_lab.training.run import Watcher, run
from tests.lab.small_images import few_test_images

SMALL = AdversarialRecipe(
    onednn=True,
    norm="bn", limit=1500, epochs=3, milestones=(2,), stride=2, batch_size=50, bound=0.1,
    step_size=0.04, test_steps=4, strong_images=100, strong_steps=(10,),
)  # fmt: skip


@pytest.mark.slow
def test_training_against_attacks_makes_robust(tmp_path: Path) -> None:
    bare = experiments.run(replace(SMALL, attack_steps=0), tmp_path / "undefended")
    hard = experiments.run(replace(SMALL, norm="bgn"), tmp_path / "defended")
    # 0.74, 0.66, and 0.42 more
    assert bare.test_accuracy > 0.4, "the undefended network has learned"
    assert hard.test_accuracy > 0.35
    assert hard.measures["test_robust"] > bare.measures["test_robust"] + 0.1
    assert hard.measures["test_robust_10"] <= hard.measures["test_robust"] + 0.05
    assert hard.measures["strong_images"] == 100
    assert hard.measures["best_test_robust"] is not None


TINY = replace(
    SMALL, limit=120, epochs=2, batch_size=40, strong_images=20, strong_steps=(2,), validation=0.2
)


def test_a_run_that_is_interrupted_ends_with_the_same_bits(tmp_path: Path) -> None:
    """The random starts of the attacks are those of the step, however often the run was stopped."""
    whole = run(few_test_images(TINY), tmp_path / "whole")

    def stop(epoch: int, step: int) -> None:
        if (epoch, step) == (1, 1):
            raise Interrupted

    with pytest.raises(Interrupted):
        run(few_test_images(TINY), tmp_path / "pieces", Watcher(step=stop))
    pieces = run(few_test_images(TINY), tmp_path / "pieces")
    with pytest.raises(ValueError, match="holds a run of bgn run adversarial, not classification"):
        experiments.run(Recipe(limit=100), tmp_path / "pieces")
    assert whole.test_accuracy == pieces.test_accuracy
    names = ("test_robust", "test_robust_2", "validation_robust", "best_epoch")
    assert [whole.measures[name] for name in names] == [pieces.measures[name] for name in names]


def test_the_best_epoch_is_chosen_on_validation_images(tmp_path: Path) -> None:
    result = run(few_test_images(replace(TINY, epochs=3, lr=0.03)), tmp_path)
    epochs = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    best = max(epochs, key=lambda m: m["validation_robust"])
    assert (result.measures["best_epoch"], result.measures["best_test_robust"]) == (
        best["epoch"],
        best["test_robust"],
    )
    assert result.measures["test_robust"] == epochs[-1]["test_robust"]


def test_the_paper_trains_on_all_images_and_reports_the_last_epoch(tmp_path: Path) -> None:
    paper = experiments.get("adversarial").presets["paper"].recipe
    assert (paper.data, paper.validation, paper.epochs) == ("cifar10", 0, 200)
    task = few_test_images(replace(TINY, validation=0.0, strong_images=0))
    result = run(task, tmp_path)
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert result.measures["test_robust"] == last["test_robust"]
    assert "best_epoch" not in result.measures, "there is nothing to choose it by"
    assert task.result_line(result).endswith("images, last epoch")
    assert "none was chosen" in experiments.get("adversarial").explain(task.recipe)


def test_statistics_move_while_crafting_in_train_mode_only() -> None:
    x, y = torch.rand(8, 1, 28, 28), torch.randint(10, (8,))
    for craft, moved in (("eval", False), ("train", True)):
        task = experiments.task(replace(TINY, craft=craft))  # type: ignore[arg-type]
        model = task.build().train()
        before = {name: value.clone() for name, value in model.named_buffers()}
        attacked, _ = task.example(model, (x, y))
        assert model.training
        assert not torch.equal(attacked, x)
        assert moved == any(
            not torch.equal(value, before[name]) for name, value in model.named_buffers()
        )


def test_values_are_used_as_they_are() -> None:
    data = experiments.task(TINY).data
    assert (data.mean, data.std) == ((0.0,), (1.0,))


def test_the_papers_network() -> None:
    model = wide_resnet("wrn-10-2", nn.BatchNorm2d, 10)
    assert sum(p.numel() for p in model.parameters()) == 303_706
    recipe = AdversarialRecipe(norm="bgn")
    rows = experiments.task(recipe).description()
    assert [row.shape[0] for row in rows] == [16, 32, 32, 64, 64, 128, 128]
    assert {row.G for row in rows} == {128}
    grouped = experiments.task(AdversarialRecipe(norm="gn")).build()
    kinds = [identify(layer) for layer in normalizers(grouped).values()]
    assert [(kind.name, kind.num_groups) for kind in kinds if kind] == [("gn", 128)] * 5 + [
        ("in", 128)
    ] * 2


@pytest.mark.parametrize("name", ["wrn-11-2", "wrn-4-2", "wrn-10-0", "resnet8"])
def test_other_networks_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"model='{name}' is unknown; expected wrn-DEPTH-WIDTH"):
        wide_resnet(name, nn.BatchNorm2d, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bound": 0.0}, "bound=0.0 is out of range"),
        ({"step_size": 2.0}, "step_size=2.0 is out of range"),
        ({"attack_steps": -1}, "attack_steps=-1 is negative"),
        ({"test_steps": 0}, "test_steps=0"),
        ({"strong_steps": (0,)}, "strong_steps=0"),
        ({"craft": "both"}, "craft='both'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_layers_that_the_paper_has_as_batch_normalization() -> None:
    """With G = 128 the last two layers have as many groups as channels."""
    model = experiments.task(AdversarialRecipe(norm="bgn")).build()
    same = [
        m.num_groups == m.num_features
        for m in model.modules()
        if isinstance(m, layers.BatchGroupNorm2d)
    ]
    assert same == [False] * 5 + [True] * 2

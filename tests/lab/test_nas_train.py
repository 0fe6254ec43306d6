"""Training the network of a genotype: what is published about it, and that it learns."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from bgn.surgery.kinds import normalizers
from bgn_lab import experiments
from bgn_lab.cli import main
from bgn_lab.experiments.nas.cells import cut_out
from bgn_lab.experiments.nas.genotype import NAMED, Genotype, find
from bgn_lab.experiments.nas.recipe import NasTrainRecipe
from bgn_lab.training.run import WEIGHTS, run
from tests.lab.interrupting import same_bits
from tests.lab.small_images import few_test_images

TINY = NasTrainRecipe(
    onednn=True,
    norm="bgn",
    width=4,
    channels_last=False,
    cells=3,
    epochs=2,
    batch_size=32,
    limit=200,
    groups=4,
    cutout=8,
)


def test_defaults_are_the_published_ones() -> None:
    recipe = NasTrainRecipe(norm="bgn")
    assert (recipe.cells, recipe.width, recipe.batch_size, recipe.epochs) == (20, 36, 96, 600)
    assert (recipe.cutout, recipe.drop_path, recipe.auxiliary, recipe.clip) == (16, 0.2, 0.4, 5.0)
    assert recipe.usual_groups == 256
    assert replace(recipe, norm="gn").usual_groups == 32


def test_groups_of_lists_of_cells(tmp_path: Path) -> None:
    v2 = NAMED["DARTS_V2"]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(Genotype(cells=(v2.normal,) * 3).to_json()))
    assert replace(TINY, genotype=str(file), groups=None).usual_groups == 64


def test_the_paper_s_in_cannot_learn() -> None:
    """DARTS_V2 has no pools in its last cell; where there are some, something is left."""
    plain = replace(TINY, norm="in", groups=None, auxiliary=0.0, cells=4)
    with pytest.warns(
        UserWarning, match=r"norm='in': the network's answer is the same for all images"
    ):
        experiments.task(plain).check()
    pool = [[["max_pool_3x3", 0]]] * 4
    own = json.dumps({"normal": pool, "reduction": pool})
    experiments.task(replace(plain, genotype=own)).check()
    experiments.task(replace(plain, norm="ln")).check()


def test_what_manas_found_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run", "nas-train"], ["compare", "--experiment", "nas-train"]):
        assert main([*words, "--preset", "paper-manas"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "--preset 'paper-manas' needs --genotype" in said
        assert main([*words, "--preset", "paper-manas", "--genotype", "DARTS_V1"]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "trains a list of cells, and --genotype 'DARTS_V1' is none" in said


@pytest.mark.parametrize(("norm", "groups"), [("bgn", 64), ("gn", 32)])
def test_the_papers_groups_for_manas(norm: str, groups: int) -> None:
    preset = experiments.get("nas-train").presets["paper-manas"].recipe
    assert isinstance(preset, NasTrainRecipe)
    recipe = replace(preset, norm=norm, genotype="random-0-of-20")
    assert (recipe.usual_groups, recipe.batch_size) == (groups, 64)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["bn", "bgn"])
def test_it_learns(norm: str, tmp_path: Path) -> None:
    recipe = replace(
        TINY,
        norm=norm,
        groups=None,
        width=8,
        channels_last=True,
        epochs=6,
        limit=1500,
        lr=0.1,
        drop_path=0.1,
    )
    result = experiments.run(recipe, tmp_path)
    assert result.test_accuracy > 0.3  # 0.58 and more; guessing reaches 0.1
    assert result.details["genotype"] == NAMED["DARTS_V2"].to_json()


def test_interrupted_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    same_bits(lambda: few_test_images(TINY), tmp_path, (1, 3))


def test_the_loss_has_both_classifiers() -> None:
    task = experiments.task(TINY)
    model = task.build()
    task.begin(0, model)
    x, y = torch.randn(4, 1, 32, 32), torch.arange(4)
    torch.manual_seed(0)
    loss, logits, _ = task.loss(model, (x, y))
    one, other = model(x, both=True)
    expected = F.cross_entropy(one, y) + 0.4 * F.cross_entropy(other, y)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(logits, one)
    without: Any = experiments.task(replace(TINY, auxiliary=0.0)).build()
    assert without.auxiliary is None


def test_more_paths_are_dropped_from_epoch_to_epoch() -> None:
    task = experiments.task(replace(TINY, epochs=10))
    model = task.build()
    dropped = []
    for epoch in (0, 5, 9):
        task.begin(epoch, model)
        dropped.append(float(task.plan["drop"]))
    assert dropped == pytest.approx([0, 0.1, 0.18])


def test_dropped_paths_reach_the_loss() -> None:
    task = experiments.task(replace(TINY, drop_path=0.9))
    model = task.build()
    batch = torch.randn(8, 1, 32, 32), torch.arange(8)
    losses = []
    for epoch in (0, 1):
        task.begin(epoch, model)
        losses.append(float(task.loss(model, batch)[0].detach()))
    assert losses[0] != losses[1]


def test_parts_of_training_images_are_hidden() -> None:
    task = experiments.task(TINY)
    x, _ = task.example(task.build(), (torch.ones(4, 1, 32, 32), torch.arange(4)))
    assert bool((x == 0).flatten(1).any(1).all())
    whole, _ = experiments.task(replace(TINY, cutout=0)).example(
        task.build(), (torch.ones(4, 1, 32, 32), torch.arange(4))
    )
    assert bool((whole == 1).all())


def test_every_normalizer_is_described() -> None:
    """The auxiliary classifier's too."""
    task = experiments.task(replace(TINY, groups=None, instances=64))
    assert len(task.description()) == len(normalizers(task.initial_network()))


def test_a_genotype_is_what_its_file_held(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NAMED["DARTS_V2"].to_json()))
    recipe = replace(TINY, genotype=str(file))
    file.write_text(json.dumps(NAMED["DARTS_V1"].to_json()))
    other = replace(TINY, genotype=str(file))
    assert recipe.key() != other.key()
    file.unlink()
    assert experiments.recipe(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert find(recipe.genotype) == NAMED["DARTS_V2"]


def test_images_of_another_size_have_no_auxiliary_classifier(tmp_path: Path) -> None:
    file = tmp_path / "large.npz"
    x, y = np.zeros((40, 40, 40, 3), np.uint8), np.arange(40) % 2
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    with pytest.raises(
        ValueError,
        match="maps of 8x8, and these are 10x10; expected images of 32x32, or auxiliary=0",
    ):
        experiments.task(replace(TINY, data=str(file))).check()
    experiments.task(replace(TINY, data=str(file), auxiliary=0.0)).check()


def test_gradients_are_clipped(tmp_path: Path) -> None:
    """With next to no gradient let through, weights stay where they began but for their decay."""
    task = few_test_images(replace(TINY, clip=1e-12, epochs=1, decay=0.0))
    before = {name: p.detach().clone() for name, p in task.build().named_parameters()}
    run(task, tmp_path)
    after = load_file(tmp_path / WEIGHTS)
    assert all(torch.allclose(after[name], p, atol=1e-9) for name, p in before.items())


def test_cutout() -> None:
    torch.manual_seed(0)
    x = torch.ones(400, 3, 32, 32)
    y = cut_out(x, 16)
    hidden = (y[:, 0] == 0).flatten(1).sum(1)
    assert int(hidden.max()) == 256
    assert 64 <= int(hidden.min()) < 256, "less at the border"
    assert torch.equal(y[:, 0], y[:, 2])
    rows = (y[:, 0] == 0).any(2).sum(1)
    assert int(rows.max()) == 16


def test_small_images_are_padded() -> None:
    data = experiments.task(TINY).data
    assert data.shape == (1, 32, 32)
    x, _ = next(data.test.evaluation(2))
    assert not x[:, :, :2].any()
    assert not x[:, :, :, -2:].any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": 2}, "cells=2 has no place"),
        ({"width": 5}, "width=5 cannot be halved"),
        ({"width": None}, "width=None cannot be halved"),
        ({"least_lr": 1.0}, "least_lr=1.0 is out of range; expected a number from 0 to lr=0.025"),
        ({"clip": 0.0}, "clip=0.0 is out of range"),
        (
            {"genotype": "nowhere.json"},
            "genotype='nowhere.json' is neither a file nor one of DARTS_V1",
        ),
        ({"genotype": '{"cells": 3}'}, "genotype holds no genotype: cells is a int"),
        ({"drop_path": 1.0}, "drop_path=1.0 is out of range"),
        ({"model": "resnet8"}, "model='resnet8'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)

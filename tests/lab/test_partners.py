"""Partners of normalizers: their words, their runs' identity, the networks, the tables."""

import io
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import bgn
from bgn.surgery.kinds import normalizers
from bgn.surgery.standardized import Standardized
from bgn_lab import experiments, norms, partners
from bgn_lab.commands import run, tune
from bgn_lab.commands.compare import parse
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.experiment import in_paper
from bgn_lab.models import network, pretrained
from bgn_lab.norms import Norm
from bgn_lab.paper import IMAGENET
from bgn_lab.report.collect import read
from bgn_lab.report.comparison import compare
from bgn_lab.training.task import Task
from tests.lab.report_runs import make


def standardized(model: nn.Module) -> int:
    return sum(isinstance(m, Standardized) for m in model.modules())


def layers(model: nn.Module) -> list[Any]:
    return list(normalizers(model).values())


def test_words() -> None:
    assert Recipe(norm="bgn+ws") == Recipe(norm="bgn", standardize=True)
    assert Recipe(norm="bgn+center+renorm") == Recipe(renorm=True, center="channel")
    assert replace(Recipe(), norm="gn+ws").standardize
    assert partners.name(Recipe(norm="bgn+renorm+ws")) == "bgn+ws+renorm"
    for word, message in {
        "bgn+wz": r"has the partner 'wz'; accepted after a normalizer: \+ws, \+renorm, \+center",
        "bgn+ws+ws": "has the partner 'ws' twice",
        "bgm+ws": "norm='bgm' is not known",
        "ln+renorm": "renorm=True has no meaning for norm='ln'",
        "gbgn+center": "center='channel' has no meaning for norm='gbgn'",
    }.items():
        with pytest.raises(ValueError, match=message):
            Recipe(norm=word)


def test_the_identity_of_runs_from_before_stays() -> None:
    plain = Recipe(data="cifar10", norm="bn", batch_size=2, device="cpu")
    new = {"standardize", "renorm", "center", *partners.RENORM_SETTINGS}
    assert not new & plain.identity().keys()
    assert plain.key() == "cifar10-resnet8-bn-b2-s0-45056d74"
    own = replace(plain, standardize=True)
    assert own.identity()["standardize"] is True
    assert own.key().startswith("cifar10-resnet8-bn+ws-b2-s0-")
    assert own.key().rsplit("-", 1)[1] != plain.key().rsplit("-", 1)[1]
    old = plain.to_json()
    for name in new:
        del old[name]
    assert Recipe.from_json(old) == plain
    renorm = replace(plain, norm="bn+renorm")
    assert new & renorm.identity().keys() == {"renorm", *partners.RENORM_SETTINGS}
    assert replace(renorm, renorm_r_max=2.0).key() != renorm.key()
    assert replace(renorm, renorm=False, renorm_r_max=2.0).key() == plain.key()


def test_labels() -> None:
    assert norms.label(Recipe(norm="bgn+ws", groups=1)) == "BGN + WS, G = 1"
    assert norms.label(Recipe(norm="bgn+renorm+ws", groups=1)) == "BGN + WS + renorm, G = 1"
    assert norms.label(Recipe(norm="bgn+center", groups=1)) == "BGN + centered, G = 1"
    assert norms.label(Recipe(norm="in+ws")) == "IN + WS"


@cache
def task_of(name: str, norm: str) -> Task:
    """A small one of an experiment."""
    kind = experiments.get(name).recipe
    values: dict[str, Any] = {"limit": 200}
    if name == "adversarial":
        values["model"] = "wrn-10-1"
    elif "width" in kind.__dataclass_fields__:
        values["width"] = 4
    if "cells" in kind.__dataclass_fields__:
        values |= {"cells": 3, "channels_last": False}
    return experiments.task(kind(**values, norm=norm, groups=1 if "bgn" in norm else None))


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_has_partners(name: str) -> None:
    plain, model = (task_of(name, norm).initial_network() for norm in ("bgn", "bgn+ws+renorm"))
    assert standardized(plain) == 0
    assert standardized(model) > 0
    keys = [key for key in model.state_dict() if not key.endswith("renorm_steps")]
    assert keys == list(plain.state_dict())
    assert all(layer.renorm == layers(model)[0].renorm for layer in layers(model))
    assert all(layer.renorm is None for layer in layers(plain))


def test_batch_norm_with_renorm_is_bgn_with_a_group_per_channel() -> None:
    model = task_of("classification", "bn+renorm").initial_network()
    for layer in layers(model):
        assert type(layer) is bgn.BatchGroupNorm2d
        assert layer.num_groups == layer.num_features
        assert layer.renorm is not None
        assert layer.renorm_steps == 0


def test_settings_of_renorm() -> None:
    task = task_of("classification", "bn+renorm")
    assert task.steps() == 200 * 9 // 10 // 32 * 3
    assert layers(task.initial_network())[0].renorm == bgn.Renorm(3, 5, warmup=task.steps() // 4)
    own = replace(task.recipe, renorm_r_max=2.0, renorm_d_max=1.0, renorm_warmup=0)
    task = experiments.task(own, task.data)
    assert layers(task.initial_network())[0].renorm == bgn.Renorm(2, 1, warmup=0)


@pytest.mark.parametrize("values", [{"groups": 1}, {"groups": 4}, {"instances": 4096}, {}])
def test_centered_groups_are_whole_channels(values: dict[str, Any]) -> None:
    """The paper's 64 groups at batch 32 are more than the 4 to 16 channels."""
    base = task_of("classification", "bgn")
    recipe = replace(base.recipe, **{"groups": None, **values}, norm="bgn+center")
    found = layers(experiments.task(recipe, base.data).initial_network())
    for layer in found:
        assert len(layer.running_mean) == layer.num_features
        assert len(layer.running_var) == layer.num_groups == values.get("groups", layer.num_groups)
    if not values:
        assert {layer.num_groups == layer.num_features for layer in found} == {True}
    if "instances" in values:
        assert len({layer.num_groups for layer in found}) > 1


def test_centered_groups_that_do_not_fit_are_refused_at_once() -> None:
    base = task_of("classification", "bgn")
    task = experiments.task(replace(base.recipe, norm="bgn+center", groups=3), base.data)
    with pytest.raises(ValueError, match=r"num_groups=3 with center='channel' must divide"):
        task.check()


def test_own_normalizers_that_a_partner_does_not_know_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_norms.py").write_text(
        "from torch import nn\nclass Mine(nn.Identity):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = task_of("classification", "bgn").data
    task = experiments.task(Recipe(limit=200, norm="own_norms:Mine+ws"), data)
    with pytest.raises(ValueError, match="has no normalizer that is known here"):
        task.check()
    with pytest.raises(ValueError, match="renorm=True has no meaning for norm='own_norms:Mine'"):
        Recipe(norm="own_norms:Mine+renorm")


def test_bgn_run_trains_with_partners(tmp_path: Path) -> None:
    line = "--norm bgn+ws+renorm --groups 1 --limit 100 --epochs 1 --stride 4 --width 4"
    words = [*line.split(), "--batch-size", "16"]
    command = run.parse("classification", [*words, "--out", str(tmp_path / "run")], "")
    same = [*words[2:], "--norm", "bgn", "--standardize", "--renorm"]
    assert command.recipe == run.parse("classification", same, "").recipe
    out = io.StringIO()
    assert command(Console(file=out, width=200)) == 0
    assert "BGN + WS + renorm, G = 1, batch 16" in out.getvalue()
    found = read(tmp_path / "run")
    assert found.recipe.standardize
    assert found.recipe.renorm
    assert found.result is not None


def test_compare_has_rows_of_their_own() -> None:
    words = "--norms bn bn+ws bgn bgn+ws+renorm bgn+center --groups 1 8 --batch-sizes 2 --seeds 1"
    found = [
        (partners.name(r), r.groups, r.renorm_r_max)
        for r in parse([*words.split(), "--renorm-r-max", "2"]).recipes()
    ]
    assert found == [
        ("bn", None, 2), ("bn+ws", None, 2), ("bgn", 1, 2), ("bgn", 8, 2),
        ("bgn+ws+renorm", 1, 2), ("bgn+ws+renorm", 8, 2),
        ("bgn+center", 1, 2), ("bgn+center", 8, 2),
    ]  # fmt: skip
    for word, message in {
        "bn+w": "has the partner 'w'",
        "bm+ws": "norms='bm' is not known",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse(["--norms", word]).recipes()


@pytest.mark.parametrize("word", ["--standardize", "--renorm", "--center"])
def test_rows_of_a_comparison_say_what_they_are(word: str) -> None:
    with pytest.raises(ValueError, match=f"there is no option {word}"):
        parse([word])


def test_weights_by_the_name_with_partners(tmp_path: Path) -> None:
    for name in ("bn", "bn+ws"):
        (tmp_path / f"{name}.pth").write_bytes(name.encode())
    words = ["--experiment", "adaptation", "--seeds", "1", "--norms", "bn", "bn+ws"]
    found = parse([*words, "--weights", str(tmp_path / "{norm}.pth")]).recipes()
    assert {(partners.name(r), Path(str(r.weights)).name) for r in found} == {
        ("bn", "bn.pth"), ("bn+ws", "bn+ws.pth"),
    }  # fmt: skip


def test_one_table_with_bn_as_the_baseline(tmp_path: Path) -> None:
    accuracies = {"bgn+ws": 80.0, "bn+ws": 75.0, "bn": 70.0, "bgn": 72.0, "bn+renorm": 71.0}
    runs = [
        read(make(tmp_path, accuracy, norm=norm, groups=1 if "bgn" in norm else None))
        for norm, accuracy in accuracies.items()
    ]
    (found,) = compare(runs)
    assert found.labels == ("BN", "BGN, G = 1", "BN + WS", "BGN + WS, G = 1", "BN + renorm")
    differences = [found.at(label, 32).difference for label in found.labels]
    assert [None if d is None else round(d.mean, 6) for d in differences] == [None, 2, 5, 10, 1]
    other = read(make(tmp_path, 60.0, norm="bn+renorm", renorm_r_max=2.0))
    assert len(compare([*runs, other])) == 2, "two settings of one row are two tables"


def test_the_papers_figures_are_for_no_partners() -> None:
    assert in_paper(IMAGENET, Recipe(norm="bn"), "2") is not None
    assert in_paper(IMAGENET, Recipe(norm="bn+ws"), "2") is None
    value = experiments.get("classification").paper_value
    assert value(Recipe(groups=8, batch_size=2), "test accuracy") is not None
    assert value(Recipe(norm="bgn+ws", groups=8, batch_size=2), "test accuracy") is None


def build(norm: Norm) -> nn.Module:
    return network("resnet8", norm, 10, 1, width=4)


@pytest.mark.parametrize(
    ("given", "wanted", "message"),
    [
        ("bn+ws", "bn", "has weights for standardize=True.*standardize=False"),
        ("bgn+center", "bgn", "has weights for center=.channel.*center=group"),
    ],
)
def test_weights_of_a_run_say_what_they_need(
    given: str, wanted: str, message: str, tmp_path: Path
) -> None:
    made = task_of("classification", given)
    weights = tmp_path / "model.pth"
    torch.save(made.initial_network().state_dict(), weights)
    norm, option, value = {
        "bn+ws": ("bn", "standardize", "true"),
        "bgn+center": ("bgn", "center", '"channel"'),
    }[given]
    (tmp_path / "recipe.json").write_text(f'{{"norm": "{norm}", "{option}": {value}}}')
    pretrained.load(weights, build, made.recipe, "fc.")
    other = replace(made.recipe, **partners.row(wanted))
    with pytest.raises(ValueError, match=message):
        pretrained.load(weights, build, other, "fc.")


@pytest.mark.parametrize("norm", ["bn+renorm", "bgn+renorm", "bgn+renorm+center", "gbgn+renorm"])
def test_pretrained_layers_renormalize_from_the_first_step(norm: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    before = build(nn.BatchNorm2d).train()
    with torch.no_grad():
        for _ in range(10):
            before(torch.randn(8, 1, 16, 16))
    weights = tmp_path / "bn.pth"
    torch.save(before.state_dict(), weights)
    recipe = Recipe(norm=norm, groups=2 if "bgn" in norm else None)
    bare = pretrained.load(weights, build, recipe, "fc.")
    model = norms.with_partners(bare, recipe, 400)
    x = torch.randn(2, 1, 16, 16)
    model.fc, before.fc = nn.Identity(), nn.Identity()
    torch.testing.assert_close(model.eval()(x), before.eval()(x), rtol=1e-4, atol=1e-5)
    assert {(layer.renorm.warmup, int(layer.renorm_steps)) for layer in layers(model)} == {
        (100, 100)
    }
    torch.save({**model.state_dict(), "fc.weight": torch.zeros(10, 1)}, weights)
    again = pretrained.load(weights, build, recipe, "fc.")
    assert layers(again)[0].running_var.equal(layers(model)[0].running_var)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"norm": "bn+ws"}, "model = bgn.standardize(model)"),
        ({"norm": "gn+ws"}, 'model = bgn.convert(model, "gn", standardize=True)'),
        ({"norm": "bgn+ws", "groups": 8}, "bgn.convert(model, num_groups=8, standardize=True)"),
        ({"norm": "bgn+ws", "instances": 16}, "sample=(3, 8, 8), standardize=True)"),
        (
            {"norm": "bgn+ws+renorm", "groups": 1},
            "convert(model, num_groups=1, renorm=bgn.Renorm(3, 5, warmup=100), standardize=True)",
        ),
        (
            {"norm": "bn+renorm", "renorm_warmup": 7},
            'num_groups="channels", renorm=bgn.Renorm(3, 5, warmup=7))',
        ),
    ],
)
def test_the_line_of_bgn_tune(values: dict[str, Any], line: str) -> None:
    assert line in tune.line(Recipe(**values), (3, 8, 8), 400)

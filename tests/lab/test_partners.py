"""Partners of normalizers: their words, their runs' identity, the networks, the tables."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from bgn.surgery.standardized import Standardized
from bgn_lab import experiments, norms, partners
from bgn_lab.commands import run, tune
from bgn_lab.commands.compare import parse
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.experiment import in_paper
from bgn_lab.models import pretrained
from bgn_lab.paper import IMAGENET
from bgn_lab.report.collect import read
from bgn_lab.report.comparison import compare
from bgn_lab.training.task import Task
from tests.lab.report_runs import make


def standardized(task: Task) -> int:
    return sum(isinstance(m, Standardized) for m in task.initial_network().modules())


def test_words() -> None:
    assert Recipe(norm="bgn+ws") == Recipe(norm="bgn", standardize=True)
    assert replace(Recipe(), norm="gn+ws").standardize
    assert partners.name(Recipe(norm="gn+ws")) == "gn+ws"
    for word, message in {
        "bgn+wz": r"norm='bgn\+wz' has the partner 'wz'; accepted after a normalizer: \+ws",
        "bgn+ws+ws": "has the partner 'ws' twice",
        "bgm+ws": "norm='bgm' is not known",
    }.items():
        with pytest.raises(ValueError, match=message):
            Recipe(norm=word)


def test_the_identity_of_runs_from_before_stays() -> None:
    plain = Recipe(data="cifar10", norm="bn", batch_size=2, device="cpu")
    assert "standardize" not in plain.identity()
    assert plain.key() == "cifar10-resnet8-bn-b2-s0-45056d74"
    own = replace(plain, standardize=True)
    assert own.identity()["standardize"] is True
    assert own.key().startswith("cifar10-resnet8-bn+ws-b2-s0-")
    assert own.key().rsplit("-", 1)[1] != plain.key().rsplit("-", 1)[1]
    old = plain.to_json()
    del old["standardize"]
    assert Recipe.from_json(old) == plain


def test_labels() -> None:
    assert norms.label(Recipe(norm="bgn+ws", groups=1)) == "BGN, G = 1, WS"
    assert norms.label(Recipe(norm="in+ws")) == "IN, WS"


@pytest.mark.parametrize("name", experiments.names())
def test_every_experiment_standardizes_its_network(name: str) -> None:
    kind = experiments.get(name).recipe
    values: dict[str, Any] = {"limit": 200, "norm": "bgn", "groups": 1}
    if name == "adversarial":
        values["model"] = "wrn-10-1"
    if "cells" in kind.__dataclass_fields__:
        values |= {"width": 4, "cells": 3, "channels_last": False}
    found = []
    for standardize in (False, True):
        task = experiments.task(kind(**values, standardize=standardize))
        found.append((standardized(task), list(task.initial_network().state_dict())))
    (none, keys), (some, same) = found
    assert (none, some > 0) == (0, True)
    assert keys == same


def test_own_normalizers_that_a_partner_does_not_know_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_norms.py").write_text(
        "from torch import nn\nclass Mine(nn.Identity):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    task = experiments.task(Recipe(limit=100, norm="own_norms:Mine+ws"))
    with pytest.raises(ValueError, match="has no normalizer that is known here"):
        task.check()


def test_bgn_run_trains_with_a_partner(tmp_path: Path) -> None:
    line = "--norm bgn+ws --groups 1 --limit 100 --epochs 1 --stride 4 --batch-size 8"
    words = line.split()
    command = run.parse("classification", [*words, "--out", str(tmp_path / "run")], "")
    assert (
        command.recipe
        == run.parse("classification", [*words[2:], "--norm", "bgn", "--standardize"], "").recipe
    )
    out = io.StringIO()
    assert command(Console(file=out, width=200)) == 0
    assert "BGN, G = 1, WS, batch 8" in out.getvalue()
    found = read(tmp_path / "run")
    assert found.recipe.standardize
    assert found.result is not None


def test_compare_has_rows_of_their_own() -> None:
    line = "--norms bn bgn bn+ws bgn+ws --groups 1 8 --batch-sizes 2 --seeds 1"
    found = [(partners.name(r), r.groups) for r in parse(line.split()).recipes()]
    assert found == [
        ("bn", None), ("bgn", 1), ("bgn", 8), ("bn+ws", None), ("bgn+ws", 1), ("bgn+ws", 8),
    ]  # fmt: skip
    for word, message in {
        "bn+w": "has the partner 'w'",
        "bm+ws": "norms='bm' is not known",
    }.items():
        with pytest.raises(ValueError, match=message):
            parse(["--norms", word]).recipes()
    with pytest.raises(SystemExit):  # rows say so
        parse(["--standardize"])


def test_weights_by_the_name_with_partners(tmp_path: Path) -> None:
    for name in ("bn", "bn+ws"):
        (tmp_path / f"{name}.pth").write_bytes(name.encode())
    words = ["--experiment", "adaptation", "--seeds", "1", "--norms", "bn", "bn+ws"]
    found = parse([*words, "--weights", str(tmp_path / "{norm}.pth")]).recipes()
    assert {(partners.name(r), Path(str(r.weights)).name) for r in found} == {
        ("bn", "bn.pth"), ("bn+ws", "bn+ws.pth"),
    }  # fmt: skip


def test_one_table_with_bn_as_the_baseline(tmp_path: Path) -> None:
    accuracies = {"bgn+ws": 80.0, "bn+ws": 75.0, "bn": 70.0, "bgn": 72.0}
    runs = [
        read(make(tmp_path, accuracy, norm=norm, groups=1 if "bgn" in norm else None))
        for norm, accuracy in accuracies.items()
    ]
    (found,) = compare(runs)
    assert found.labels == ("BN", "BN, WS", "BGN, G = 1", "BGN, G = 1, WS")
    differences = [found.at(label, 32).difference for label in found.labels]
    assert [None if d is None else round(d.mean, 6) for d in differences] == [None, 5, 2, 10]


def test_the_papers_figures_are_for_no_partners() -> None:
    assert in_paper(IMAGENET, Recipe(norm="bn"), "2") is not None
    assert in_paper(IMAGENET, Recipe(norm="bn+ws"), "2") is None
    value = experiments.get("classification").paper_value
    assert value(Recipe(groups=8, batch_size=2), "test accuracy") is not None
    assert value(Recipe(norm="bgn+ws", groups=8, batch_size=2), "test accuracy") is None


def test_weights_of_a_run_say_whether_they_are_standardized(tmp_path: Path) -> None:
    recipe = Recipe(norm="bn+ws", limit=100)
    task = experiments.task(recipe)
    weights = tmp_path / "model.pth"
    torch.save(task.initial_network().state_dict(), weights)
    (tmp_path / "recipe.json").write_text('{"norm": "bn", "standardize": true}')

    def build(norm: Any) -> Any:
        from bgn_lab.models import network

        return network(recipe.model, norm, 10, 1)

    pretrained.load(weights, build, recipe, "fc.")
    with pytest.raises(ValueError, match="has weights for standardize=True.*standardize=False"):
        pretrained.load(weights, build, replace(recipe, standardize=False), "fc.")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"norm": "bn+ws"}, "model = bgn.standardize(model)"),
        ({"norm": "gn+ws"}, 'model = bgn.convert(model, "gn", standardize=True)'),
        ({"norm": "bgn+ws", "groups": 8}, "bgn.convert(model, num_groups=8, standardize=True)"),
        ({"norm": "bgn+ws", "instances": 16}, "sample=(3, 8, 8), standardize=True)"),
    ],
)
def test_the_line_of_bgn_tune(values: dict[str, Any], line: str) -> None:
    assert line in tune.line(Recipe(**values), (3, 8, 8))

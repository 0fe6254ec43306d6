"""``bgn tune``: rounds of short runs on validation images, resumable, and the line to paste."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bgn
from bgn.surgery.standardized import Standardized
from bgn_lab import cli, data, norms, partners
from bgn_lab.commands import tune
from bgn_lab.commands.tune import CANDIDATES, Standing, Tune, distinct, line, survivors, verdict
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.training.record import ABOUT, METRICS


def standings(*accuracies: float | None, bn: int = 0) -> list[Standing]:
    """From best to worst; which one is BN's."""
    return [
        Standing(Recipe(norm="bn" if i == bn else "gn", seed=i), a)
        for i, a in enumerate(accuracies)
    ]


def test_the_best_third_goes_on_and_batch_norm_with_it() -> None:
    found = standings(0.9, 0.8, 0.7, 0.6, 0.5, None, bn=4)
    assert [s.accuracy for s in survivors(found)] == [0.9, 0.8, 0.5]
    found = standings(0.9, 0.8, 0.7, bn=0)
    assert [s.accuracy for s in survivors(found)] == [0.9]


def test_every_candidate_is_a_recipe() -> None:
    recipes = list(Tune().first())
    assert len({recipe.key() for recipe in recipes}) == 3 * len(CANDIDATES)
    assert {recipe.epochs for recipe in recipes} == {1}


@pytest.mark.parametrize(
    ("found", "images", "message"),
    [
        (standings(0.8, 0.7, bn=0), 1000, "Keep BN: it is the best here"),
        (
            standings(0.8, 0.7, bn=1),
            1000,
            r"Use GN: GN is \+10.0 points from BN, more than the 3.6 that chance would explain",
        ),
        (
            standings(0.8, 0.79, bn=1),
            1000,
            r"Keep BN: GN is \+1.0 points from BN, within the 3.6",
        ),
        (standings(0.8, None, bn=1), 1000, "Use GN: it is the best, and BN did not converge"),
    ],
)
def test_verdict(found: list[Standing], images: int, message: str) -> None:
    chosen, why = verdict(found, images)
    assert re.match(message, why)
    assert (chosen.recipe.norm == "bn") == why.startswith("Keep BN")


def test_candidates_that_are_the_same_network_are_tried_once() -> None:
    """With 8 images and few values wanted per statistic, every channel is a group: that is BN."""
    base = Recipe(width=8, stride=2, batch_size=8, limit=400)
    images = data.load(base)
    rows: list[dict[str, Any]] = [
        {"norm": "bn"}, {"norm": "bgn", "instances": 2}, {"norm": "bgn", "groups": 1},
        {"norm": "gn", "groups": 1}, {"norm": "ln"}, {"norm": "bgn", "instances": 500},
    ]  # fmt: skip
    recipes = [replace(base, **row, lr=lr) for row in rows for lr in (0.1, 0.2)]
    kept, merged = distinct(recipes, images)
    names = [(r.norm, r.groups, r.instances) for r in kept if r.lr == 0.1]
    assert names == [("bn", None, None), ("bgn", 1, None), ("gn", 1, None), ("bgn", None, 500)]
    assert len(kept) == 8
    assert merged == [
        "BGN, 2+ values is the same as BN in every layer here: tried once",
        "LN is the same as GN, G = 1 in every layer here: tried once",
    ]


@pytest.mark.parametrize("row", [row for row in CANDIDATES if row["norm"] != "bn"], ids=str)
@pytest.mark.filterwarnings("ignore:.*carried over", "ignore:.*groups of two or more")
def test_the_line_can_be_pasted(row: dict[str, object]) -> None:
    recipe = Recipe(batch_size=2, **row)  # type: ignore[arg-type]
    words = line(recipe, (3, 16, 16), steps=400)
    assert words.endswith("# lr=0.00625 at 2 images")
    names: dict[str, Any] = {
        "bgn": bgn,
        "model": nn.Sequential(nn.Conv2d(3, 32, 3, 2), nn.BatchNorm2d(32)),
    }
    exec(words, names)
    convolution, norm = names["model"]
    assert isinstance(convolution, Standardized) is recipe.standardize
    assert getattr(norm, "renorm", None) == (bgn.Renorm(warmup=100) if recipe.renorm else None)
    assert getattr(norm, "center", "group") == recipe.center
    if row["norm"] == "bn+ws":
        assert type(norm) is nn.BatchNorm2d
    elif row["norm"] == "bn+renorm":
        assert norm.num_groups == norm.num_features
    else:
        assert not isinstance(norm, nn.BatchNorm2d)


def test_partners_are_no_other_candidate() -> None:
    """BN in every layer, once without partners, once with each; the baseline has none."""
    base = Recipe(width=8, stride=2, batch_size=8, limit=400, validation=0.2)
    names = "bn", "bn+ws", "bn+renorm", "bgn", "bgn+renorm"
    recipes = [
        replace(base, norm=name, instances=2 if "bgn" in name else None, lr=0.1) for name in names
    ]
    kept, merged = distinct(recipes, data.load(base))
    assert [partners.name(recipe) for recipe in kept] == ["bn", "bn+ws", "bn+renorm"]
    assert merged[1] == (
        "BGN + renorm, 2+ values is the same as BN + renorm in every layer here: tried once"
    )
    found = [Standing(recipe, 0.9 - i / 10) for i, recipe in enumerate(reversed(kept))]
    assert [norms.label(s.recipe) for s in survivors(found)] == ["BN + renorm", "BN"]
    chosen, why = verdict(found, 1000)
    assert chosen is found[0]
    assert why.startswith("Use BN + renorm: BN + renorm is +20.0 points from BN")


def test_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Really trained: the good one of a hopeless and a good learning rate is found.

    A second call has it at once.
    """
    monkeypatch.setattr(tune, "CANDIDATES", ({"norm": "bn"}, {"norm": "bgn", "groups": 4}))
    monkeypatch.setattr(tune, "FACTORS", (1e-4, 1.0))
    words = [
        "tune",
        "--width",
        "8",
        "--stride",
        "2",
        "--limit",
        "800",
        "--batch-size",
        "8",
        "--epochs",
        "3",
        "--seeds",
        "1",
    ]
    words += ["--jobs", "2", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    said = capsys.readouterr().out
    assert "round 1: 4 candidates, 1 epochs" in said
    assert "round 2: 2 candidates, 3 epochs" in said
    assert "round 3" not in said, "a third of 3 epochs is what the first round had"
    assert re.search(r"lr=0\.025 at 8 images", said), said
    runs = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert len(runs) >= 4
    written = "".join(path.read_text() for path in tmp_path.rglob(METRICS))
    assert "validation_accuracy" in written
    assert "test_" not in written, "test images were looked at"
    for about in tmp_path.rglob(ABOUT):
        known = about.read_text()
        about.write_text(known.replace(f'"torch": "{torch.__version__}"', '"torch": "0.1"'))
    assert cli.main(words) == 0
    again = capsys.readouterr().out
    assert again.splitlines()[-1] == said.splitlines()[-1]
    assert "4 of 4 runs were made with torch 0.1" in again
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")} == runs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--norm", "gn"], "--norm 'gn' is what is searched for; expected no --norm"),
        (["--renorm"], "--renorm is what is searched for; expected no --renorm"),
        (["--limit", "60"], "--validation 0.2 leaves 12 images to judge by; expected at least 50"),
        (["--seeds", "0"], "--seeds 0 is not positive"),
        (["--jobs", "0"], "--jobs 0 is not positive"),
    ],
)
def test_bad_input(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "--out", str(tmp_path / "tune"), *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "tune").exists()


def test_help_leaves_out_what_is_searched_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["tune", "--help"])
    shown = set(re.findall(r"^\W*(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    assert not shown & {"--norm", "--groups", "--instances", "--renorm", "--center", "--seed"}
    assert {"--norm-momentum", "--lr", "--seeds"} <= shown

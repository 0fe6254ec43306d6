"""The study of G: what is chosen on validation images, what regret is, and what is measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from studies import which_g, which_g_measure
from studies.runner import folder_name
from studies.which_g_report import entries, merged, recorded, regrets, tables
from torch import nn

import bgn
from bgn.surgery.kinds import identify, normalizers
from bgn_lab import experiments, norms
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.models.resnet import resnet
from bgn_lab.report.collect import collect
from tests.lab.report_runs import make


def run(folder: Path, validation: float, test: float, **settings: object) -> None:
    path = make(folder, test, **settings) / "result.json"  # type: ignore[arg-type]
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "validation_accuracy": validation / 100})
    )


def test_rates_and_rivals_are_chosen_on_validation_images(tmp_path: Path) -> None:
    for lr, validation, test in ((0.1, 60, 55), (0.3, 58, 70)):
        run(tmp_path, validation, test, norm="bn", lr=lr)
    run(tmp_path, 61, 57, norm="bn", lr=0.1, seed=1)
    for norm, validation, test in (("gn", 62, 50), ("ln", 40, 80), ("in", 41, 41)):
        run(tmp_path, validation, test, norm=norm)
    run(tmp_path, 1, 53, norm="bgn", groups=1)
    found = entries(collect([tmp_path]))
    ((key, rows),) = found.items()
    assert key == ("fashion-mnist, resnet8", 3, 32)
    assert (rows["BN"].lr, rows["BN"].test, rows["BN"].seeds) == (0.1, 56.0, 2), (
        "not the rate that is best on test images"
    )
    lost = regrets(found)
    assert lost["BGN, G = 1"][key] == pytest.approx(-3.0), (
        "the rival is GN, best on validation images; not LN"
    )
    text = tables(found)
    assert "| BGN, G = 1 | -3.0 | -3.0 | -3.0 | 61.0 |" in text, (
        "mean, worst, at batch 32, on validation images"
    )
    assert "56.0 ± 1.4 (lr 0.1)" in text


def test_the_rate_chosen_is_known_when_all_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(which_g, "FOLDER", tmp_path)
    recipe = Recipe(norm="bn", seed=2)
    for lr, validation in ((0.1, 50), (0.3, 60)):
        assert which_g.chosen(recipe) is None
        run(tmp_path, validation, 50, norm="bn", lr=lr)
    run(tmp_path, 55, 90, norm="bn", lr=0.03)
    assert which_g.chosen(recipe) == replace(recipe, lr=0.3)


def test_every_run_of_the_study_is_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mini.npz").touch()
    for cell in which_g.cells(tmp_path / "mini.npz", None).values():
        recipes = list(which_g.rates(cell))
        assert len({recipe.key() for recipe in recipes}) == len(recipes)
        twice = sum(
            which_g.same_as(row, cell.model, size) != row
            for row in which_g.ROWS.values()
            for size in which_g.BATCH_SIZES
        )
        assert twice, "of two names for one network"
        assert len(recipes) == 3 * (6 * len(which_g.ROWS) - twice)


def test_runs_of_other_data_are_not_taken_for_done(tmp_path: Path) -> None:
    files = [tmp_path / name / "mini.npz" for name in ("one", "two")]
    names = [folder_name(which_g.cells(file, None)["mini"]) for file in files]
    assert len({*names}) == 2


@pytest.mark.parametrize(
    ("model", "stride", "shape"),
    [
        ("resnet10", None, (3, 64, 64)),
        ("resnet14", 2, (1, 28, 28)),
        ("resnet18", 1, (3, 32, 32)),
    ],
)
def test_rows_are_the_same_where_no_layer_merges_channels(
    model: str, stride: int | None, shape: tuple[int, int, int]
) -> None:
    for size in which_g.BATCH_SIZES:
        for least in (16, 64, 256):
            row: dict[str, Any] = {"norm": "bgn", "instances": least}
            recipe = Recipe(model=model, width=8, stride=stride, batch_size=size, **row)
            network = norms.resolve_groups(
                resnet(model, norms.constructor(recipe), 10, shape[0], 8, stride), recipe, shape
            )
            merged = any(
                kind.num_groups < kind.num_features
                for kind in map(identify, normalizers(network).values())
                if kind
            )
            assert merged == (which_g.same_as(row, model, size) == row), (size, least)


def test_noise_falls_with_the_values_and_confusion_grows_with_the_channels() -> None:
    torch.manual_seed(0)
    offset = torch.arange(16.0).view(1, 16, 1, 1)  # channels of different means

    class Shifted(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = super().forward(x + offset)
            return y

    found = {}
    for G in (16, 4, 1):
        model = Shifted(bgn.BatchGroupNorm2d(16, G)).eval()
        batches = [torch.randn(2, 16, 2, 2) for _ in range(300)]
        (found[G],) = which_g_measure.layers(
            model, Recipe(batch_size=2), torch.randn(4000, 16, 2, 2), batches
        )
    assert found[16].noise_of_mean == pytest.approx(1 / 8**0.5, rel=0.1), (
        "8 values: 1 / sqrt(8) standard deviations"
    )
    assert found[16].noise_of_mean > found[4].noise_of_mean > found[1].noise_of_mean
    assert found[16].confusion_of_means == pytest.approx(0, abs=1e-6)
    assert found[4].confusion_of_means == pytest.approx(1.25 / 2.25, rel=0.05), (
        "means 0, 1, 2, 3 around a variance of 1"
    )
    assert found[1].confusion_of_means > 0.9


def test_a_run_is_measured_whole(tmp_path: Path) -> None:
    recipe = Recipe(norm="bgn", groups=2, width=8, stride=2, limit=300, batch_size=4, epochs=1)
    experiments.run(recipe, tmp_path)
    found = which_g_measure.measure(tmp_path)
    assert len(found["layers"]) == 9
    assert 0 <= found["different"] <= 1
    assert -1 <= found["gradient_agreement"] <= 1
    assert 0 <= found["recalibrated"] <= 1
    assert "BGN, G = 2" in which_g_measure.table([found])


def test_rows_of_the_record_stay_unless_they_were_run_again(tmp_path: Path) -> None:
    run(tmp_path / "runs", 60, 55, norm="bn")
    run(tmp_path / "runs", 40, 41, norm="gn")
    (key,) = first = entries(collect([tmp_path / "runs"]))
    plain = [
        {"cell": key[0], "epochs": key[1], "batch_size": key[2], "row": row, **vars(entry)}
        for row, entry in first[key].items()
    ]
    (tmp_path / "results.json").write_text(json.dumps(plain))
    assert recorded(tmp_path / "results.json") == first
    assert recorded(tmp_path / "none.json") == {}
    run(tmp_path / "later", 70, 65, norm="bn")
    run(tmp_path / "later", 50, 51, norm="ln")
    (rows,) = merged(first, entries(collect([tmp_path / "later"]))).values()
    assert [rows[name].test for name in ("BN", "GN", "LN")] == [65, 41, 51]


def test_auto_is_run_where_it_is_a_row_of_its_own() -> None:
    auto = which_g.ROWS["bgn auto"]
    assert which_g.same_as(auto, "resnet10", 1) == {"norm": "bgn", "groups": 1}
    assert which_g.same_as(auto, "resnet10", 2) == auto
    assert which_g.same_as(auto, "resnet10", 8) == {"norm": "bn"}
    assert which_g.same_as(auto, "resnet10", 4) == auto

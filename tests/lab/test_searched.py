"""The study of searches: beside a search stands what chance finds at its cost.

What chance finds is chosen on validation images.
"""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from studies import searched
from studies.searched_report import rows, write

from bgn_lab import experiments
from bgn_lab.cli import main
from bgn_lab.experiments.nas.genotype import NAMED, drawn, find
from bgn_lab.experiments.nas.recipe import NasTrainRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.report.collect import Run
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Result
from tests.lab.report_runs import result

PAIR, LIST = NAMED["DARTS_V2"].to_json(), drawn(7, 5).to_json()


def run(
    recipe: Any, minutes: float, validation: float | None, test: float | None, genotype: Any
) -> Run:
    accuracies = {
        "validation_accuracy": validation and validation / 100,
        "test_accuracy": test and test / 100,
    }
    status = FINISHED if validation else NOT_CONVERGED
    own = {"status": status, "seconds": 60 * minutes, "parameters": 10, "genotype": genotype}
    found = result(recipe, 50.0, 100, 1) | accuracies | own
    return Run(Path(), recipe, {}, (), Result.from_json(found))


def search(method: str, minutes: float, norm: str = "bn", genotype: Any = PAIR) -> Run:
    return run(
        experiments.recipe({"experiment": method, "norm": norm}),
        minutes,
        30 if genotype else None,
        None,
        genotype,
    )


def train(
    genotype: str,
    minutes: float,
    validation: float | None,
    test: float | None,
    norm: str = "bn",
    seed: int = 0,
) -> Run:
    recipe = NasTrainRecipe(norm=norm, genotype=genotype, cells=5, seed=seed)
    return run(recipe, minutes, validation, test, find(genotype).to_json())


def test_chance_has_as_much_time() -> None:
    runs = [
        search("darts-search", 20),
        train(json.dumps(PAIR), 10, 50, 48),
        train(json.dumps(PAIR), 12, 52, 50, seed=1),
        *(
            train(f"random-{k}", 10, v, t)
            for k, v, t in ((10, 99, 99), (0, 40, 45), (1, 44, 41), (2, 43, 49))
        ),
        train("random-0-of-5", 1, 98, 98),
    ]
    found = {row.source: row for row in rows(runs)}
    assert list(found) == ["DARTS", "random, best of 3 at the cost of DARTS", "random, mean of 4"]
    own, best, mean = found.values()
    assert (own.tests, own.minutes, own.validation) == (
        pytest.approx((48, 50)),
        pytest.approx(31),
        None,
    )
    assert (best.tests, best.minutes) == (pytest.approx((41,)), pytest.approx(30)), (
        "chosen on validation images; no time for a fourth"
    )
    assert mean.cells()[3:] == ["58.5 ± 27.2", "10", "10"]


def test_lists_of_cells_stand_beside_lists_of_cells() -> None:
    """Though BGN has other groups there than elsewhere."""
    runs = [
        search("darts-search", 5, "bgn"),
        search("manas-search", 5, "bgn", LIST),
        train(json.dumps(PAIR), 10, 50, 48, "bgn"),
        train(json.dumps(LIST), 10, 50, 47, "bgn"),
        train("random-0", 12, 40, 41, "bgn"),
        train("random-0-of-5", 12, 40, 42, "bgn"),
    ]
    made = [(row.norm, row.source, row.tests[0]) for row in rows(runs)]
    for method, G, own, other in (("DARTS", 256, 48, 41), ("MANAS-LS", 64, 47, 42)):
        label, pair = f"BGN, G = {G}", made[:3] if method == "DARTS" else made[3:]
        assert pair == [
            (label, method, pytest.approx(own)),
            (label, f"random, best of 1 at the cost of {method}", pytest.approx(other)),
            (label, "random, mean of 1", pytest.approx(other)),
        ]


def test_gn_has_its_groups() -> None:
    """They are not the paper's in narrow cells."""
    wide = train("random-0", 1, 40, 41, "gn")
    narrow = replace(wide, recipe=replace(wide.recipe, width=8))
    own = [search("darts-search", 5, "gn"), train(json.dumps(PAIR), 10, 50, 48, "gn")]
    assert [row.norm for row in rows([*own, narrow])] == ["GN, G = 32", "GN, G = 16", "GN, G = 16"]


def test_what_did_not_converge_is_counted() -> None:
    runs = [
        search("darts-search", 100),
        train(json.dumps(PAIR), 10, 50, 48),
        train("random-0", 10, None, None),
        train("random-1", 10, 40, 41),
    ]
    _, best, mean = (row.cells() for row in rows(runs))
    assert best[1] == "random, best of 2, 90 minutes less than DARTS", "no more were drawn"
    assert best[3] == "41.0"
    assert mean[3] == "41.0, 1 of 2 did not converge"


def test_a_search_that_came_to_grief_says_so() -> None:
    (row, *_) = rows([search("darts-search", 100, genotype=None), train("random-0", 10, 40, 41)])
    assert row.cells()[1:4] == ["DARTS", "·", "did not converge"]
    found = search("darts-search", 5)
    assert found.result is not None
    lost = replace(found, result=replace(found.result, status=NOT_CONVERGED))
    assert rows([lost]) == [], "what it left is not trained yet"
    (row, *_) = rows([lost, train(json.dumps(PAIR), 10, 50, 48)])
    assert row.cells()[1:4] == ["DARTS (the search did not converge)", "·", "48.0"]


def test_one_that_takes_longer_says_so() -> None:
    _, best, _ = (
        row.cells()
        for row in rows(
            [
                search("darts-search", 1),
                train(json.dumps(PAIR), 2, 50, 48),
                train("random-0", 10, 4, 4),
            ]
        )
    )
    assert best[1] == "random, best of 1, 7 minutes more than DARTS"


def test_trainings_take_what_searches_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searched, "FOLDER", tmp_path)
    same = {"data": "cifar10", "limit": 500}
    names = [recipe.to_json()["genotype"] for recipe in searched.trainings(["gn"], 2, 3, **same)]
    assert names == ["random-0", "random-0-of-5", "random-1", "random-1-of-5"]
    darts, manas = searched.searches("gn", **same)
    assert (darts.experiment, manas.experiment) == ("darts-search", "manas-search")
    (tmp_path / darts.key()).mkdir()
    (tmp_path / darts.key() / GENOTYPE).write_text(json.dumps(NAMED["DARTS_V1"].to_json()))
    found = list(searched.trainings(["gn", "bn"], 1, 2, **same))
    assert [(recipe.norm, recipe.seed) for recipe in found] == [
        ("gn", 0),
        ("gn", 0),
        ("gn", 0),
        ("bn", 0),
        ("bn", 0),
        ("gn", 1),
    ]
    assert (
        find(found[0].to_json()["genotype"])
        == find(found[-1].to_json()["genotype"])
        == NAMED["DARTS_V1"]
    )
    assert {(recipe.data, recipe.limit) for recipe in [darts, manas, *found]} == {("cifar10", 500)}


@pytest.mark.slow
def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From real runs, however small."""
    x, y = (
        np.random.default_rng(0).integers(256, size=(96, 32, 32, 1), dtype=np.uint8),
        np.arange(96),
    )
    images = {"x_train": x, "y_train": y % 4, "x_test": x[:40], "y_test": y[:40] % 4}
    np.savez(tmp_path / "images.npz", **images)
    small = {
        "data": str(tmp_path / "images.npz"),
        "norm": "bn",
        "width": 4,
        "channels_last": False,
        "cells": 3,
        "epochs": 1,
        "batch_size": 32,
        "limit": 64,
    }
    own = experiments.recipe({"experiment": "manas-search", "window": 1, **small})
    experiments.run(own, tmp_path / "runs" / "search")
    for genotype in (str(tmp_path / "runs" / "search" / GENOTYPE), "random-0-of-3"):
        recipe = experiments.recipe(
            {
                "experiment": "nas-train",
                "genotype": genotype,
                "auxiliary": 0.0,
                "cutout": 8,
                **small,
            }
        )
        experiments.run(recipe, tmp_path / "runs" / recipe.key())
    text = write(tmp_path / "runs", tmp_path / "out")
    assert "| BN | MANAS-LS |" in text
    assert "| BN | random, best of 1" in text
    assert (
        "MANAS-LS: 1 epoch, batches of 32, learning rate 0.025, 64 training images, 3 cells, "
        "C = 4; training: 1 epoch" in text
    )
    assert "Paper, table" in text
    assert (tmp_path / "out" / "accuracy.png").stat().st_size > 5_000
    assert (tmp_path / "out" / "table.md").read_text() == text
    results = (tmp_path / "out" / "results.json").read_text()
    assert str(tmp_path) not in results, "it may be published"
    assert sorted(run["recipe"]["experiment"] for run in json.loads(results)["runs"]) == [
        "manas-search",
        "nas-train",
        "nas-train",
    ]
    assert find(str(tmp_path / "out" / "manas-ls-bn" / GENOTYPE)).cells
    assert (tmp_path / "out" / "manas-ls-bn" / "cells.png").stat().st_size > 10_000
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "left out because they are searches, whose accuracies are not of test images: 1 of 3 runs"
        in shown
    )
    assert re.search(r"genotype found [0-9a-f]{6}", shown), "and not a page of JSON"
    assert (
        main(["report", str(tmp_path / "runs" / "search"), "--out", str(tmp_path / "report")]) == 2
    )
    with pytest.raises(SystemExit, match="no training of what a search found is over"):
        write(tmp_path / "runs" / "search", tmp_path / "other")
    other = replace(recipe, limit=96)
    experiments.run(other, tmp_path / "runs" / other.key())
    with pytest.raises(
        SystemExit,
        match=r"runs of several settings: limit (64 and 96|96 and 64); expected those of one study",
    ):
        write(tmp_path / "runs", tmp_path / "other")

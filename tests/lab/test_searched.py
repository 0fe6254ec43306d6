"""The study of searches: what stands beside a search is what chance finds at its cost, chosen on validation images."""

import json
from pathlib import Path
from typing import Any

import pytest
from studies import searched
from studies.searched_report import Done, rows, write

from bgn_lab import experiments
from bgn_lab.experiments.search import GENOTYPE
from bgn_lab.genotype import NAMED, find


def done(
    experiment: str, seconds: float, validation: float = 0.0, test: float = 0.0, genotype: str = "", folder: str = ""
) -> Done:
    result: dict[str, Any] = {"seconds": 60 * seconds, "validation_accuracy": validation / 100, "test_accuracy": test / 100}
    return Done("BN", experiment, genotype, folder, {**result, "parameters": 10, "genotype": NAMED["DARTS_V2"].to_json()})


def test_chance_has_as_much_time() -> None:
    runs = [
        done("darts-search", 20, folder="found"),
        done("nas-train", 10, 50, 48, "runs/found/genotype.json"),
        done("nas-train", 12, 52, 50, "runs/found/genotype.json"),
        *(done("nas-train", 10, v, t, f"random-{k}") for k, v, t in ((10, 99, 99), (0, 40, 45), (1, 44, 41), (2, 43, 49))),
    ]
    found = {row.source: row for row in rows(runs)}
    assert list(found) == ["DARTS", "random, best of 3 at the cost of DARTS", "random, mean of 4"]
    search, best, mean = found.values()
    assert (search.tests, search.minutes) == (pytest.approx((48, 50)), pytest.approx(31))
    assert (best.tests, best.minutes) == (pytest.approx((41,)), pytest.approx(30)), (
        "chosen on validation images; no time for a fourth"
    )
    assert mean.cells()[3:] == ["58.5 ± 27.2", "10", "10"]


def test_trainings_take_what_searches_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "FOLDER", tmp_path)
    assert [recipe.to_json()["genotype"] for recipe in searched.trainings("cifar10", "gn", 2, 3)] == ["random-0", "random-1"]
    darts, manas = searched.searches("cifar10", "gn")
    assert (darts.experiment, manas.experiment) == ("darts-search", "manas-search")
    (tmp_path / manas.key()).mkdir()
    (tmp_path / manas.key() / GENOTYPE).write_text(json.dumps(NAMED["DARTS_V1"].to_json()))
    found = list(searched.trainings("cifar10", "gn", 1, 2))
    assert [recipe.seed for recipe in found] == [0, 1, 0]
    assert find(found[0].to_json()["genotype"]) == NAMED["DARTS_V1"]
    assert {recipe.norm for recipe in found} == {"gn"}


def test_report(tmp_path: Path) -> None:
    """From real runs, however small."""
    small = {"norm": "bn", "width": 4, "channels_last": False, "cells": 3, "epochs": 1, "batch_size": 32, "limit": 64}
    search = experiments.recipe({"experiment": "manas-search", **small})
    experiments.run(search, tmp_path / "runs" / "search")
    for genotype in (str(tmp_path / "runs" / "search" / GENOTYPE), "random-0"):
        own = experiments.recipe({"experiment": "nas-train", "genotype": genotype, "auxiliary": 0.0, "cutout": 8, **small})
        experiments.run(own, tmp_path / "runs" / own.key())
    text = write(tmp_path / "runs", tmp_path / "out")
    assert "| BN | MANAS |" in text
    assert "| BN | random, best of 1 at the cost of MANAS |" in text
    assert (tmp_path / "out" / "table.md").read_text() == text
    assert find(str(tmp_path / "out" / "manas-bn" / GENOTYPE)).cells
    assert (tmp_path / "out" / "manas-bn" / "cells.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match="no training is over"):
        write(tmp_path / "runs" / "search", tmp_path / "other")

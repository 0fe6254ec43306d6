"""The study of partners: what it runs, in what order, and what its report says of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from studies import rates
from studies.partners import report
from studies.partners import run as study
from studies.partners.rows import RATES, ROWS, SEEDS, recipe

from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.report_runs import NAN, make

DATA = "fashion-mnist"


def done(folder: Path, own: Recipe, accuracy: float | str, test: float | None = None) -> None:
    """A finished run with this validation accuracy, and another on test images."""
    values = {name: value for name, value in asdict(own).items() if name != "root"}
    path = make(folder, accuracy, **values) / "result.json"
    if test is not None:
        found = json.loads(path.read_text())
        path.write_text(json.dumps({**found, "test_accuracy": test / 100}))


def at(name: str, lr: float, seed: int = 0, workers: int = 8) -> Recipe:
    return replace(recipe(name, DATA, None, workers), lr=lr, seed=seed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every row at every rate: the second is the best, and rows are worse the later they come."""
    monkeypatch.setattr(study, "FOLDER", tmp_path)
    for number, name in enumerate(ROWS):
        for lr, accuracy in zip(RATES, (60.0, 70.0 - number / 2, NAN), strict=True):
            done(tmp_path, at(name, lr), accuracy)
    return tmp_path


def test_every_row_is_a_run_of_its_own() -> None:
    wanted = list(study.wanted("rates", DATA, None))
    assert len({own.key() for own in wanted}) == len(wanted) == len(ROWS) * len(RATES)


def test_nothing_is_chosen_before_all_rates_were_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "FOLDER", tmp_path)
    done(tmp_path, at("bn", RATES[0]), 60.0)
    assert rates.best(recipe("bn", DATA, None, 8), RATES, tmp_path) is None
    assert list(study.wanted("seeds", DATA, None)) == []
    assert list(study.wanted("one", DATA, None)) == []


def test_the_best_rows_get_more_seeds_and_bn_always(folder: Path) -> None:
    more = list(study.wanted("seeds", DATA, None))
    first = list(ROWS)[: study.BEST]
    assert [own.seed for own in more] == [seed for seed in SEEDS for _ in first]
    assert {own.lr for own in more} == {RATES[1]}
    for lr in RATES:
        done(folder, at("bn", lr), 20.0)
    assert list(study.chosen(DATA, None))[-1] == "bn"
    assert len(list(study.wanted("seeds", DATA, None))) == len(SEEDS) * (study.BEST + 1)


@pytest.mark.usefixtures("folder")
def test_one_worker_has_the_rate_that_was_chosen() -> None:
    alone = list(study.wanted("one", DATA, None))
    assert len(alone) == len(ROWS)
    assert {(own.simulate_workers, own.lr, own.epochs) for own in alone} == {(1, RATES[1], 3)}


def test_the_report(folder: Path) -> None:
    for seed, accuracies in enumerate(((50.0, 54.0), (51.0, 56.0), (52.0, 58.0))):
        for name, accuracy in zip(("bn", "bgn+ws"), accuracies, strict=True):
            done(folder, at(name, RATES[1], seed), 70.0 - list(ROWS).index(name) / 2, accuracy)
    done(folder, at("gn", RATES[1], workers=1), 33.0, 32.0)
    rows = report.collect(DATA, None, folder)
    text = report.text(rows)
    # tests at the chosen rate: 51 against 56, gaps of 4, 5 and 6
    assert "| BGN, G = 1, WS | **68.5** | 60.0 | 0.0 |  | 56.0 ± 2.0 | 3 | +5.0 ± 2.5 |" in text
    assert "| GN | 33.0 |  | 32.0 |" in text
    # BGN is the third row, with standardized weights the fourth, with renormalization the ninth
    assert "| BGN, G = 1, WS | 69.0 | -0.5 | no difference seen |" in text
    assert "| BGN, G = 1, renorm | 69.0 | -3.0 | hurts |" in text
    assert "momentum 0.01 |" in text
    report.curves(rows, folder / "curves.png")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_partner_helps_from_two_points_on(folder: Path) -> None:
    done(folder, at("bn+ws", RATES[1]), 72.1)
    assert "| BN, WS | 70.0 | +2.1 | helps |" in report.effects(report.collect(DATA, None, folder))

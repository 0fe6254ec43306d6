"""The study of partners: what it runs, in what order, and what its report says of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from studies import rates
from studies.ledger import Ledger
from studies.partners import report
from studies.partners import run as study
from studies.partners.rows import (
    ALONE,
    EPOCHS,
    RATES,
    ROWS,
    SEEDS,
    SHORT,
    alone,
    recipe,
    rows,
    tuned_as,
)

from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.report_runs import NAN, make

DATA = "fashion-mnist"


def done(
    ledger: Ledger, folder: Path, own: Recipe, accuracy: float | str, test: float | None = None
) -> None:
    """A finished run with this validation accuracy, and another on test images."""
    values = {name: value for name, value in asdict(own).items() if name != "root"}
    path = make(folder, accuracy, **values)
    if test is not None:
        found = json.loads((path / "result.json").read_text())
        (path / "result.json").write_text(json.dumps({**found, "test_accuracy": test / 100}))
    ledger.add(path)


def trained(name: str, seed: int = 0) -> Recipe:
    return replace(recipe(name, DATA, None), lr=RATES[1], seed=seed)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Every row at every rate: the second is the best, and rows are worse the later they come."""
    ledger = Ledger(tmp_path / "runs.jsonl")
    for number, name in enumerate(ROWS):
        for lr, accuracy in zip(RATES, (50.0, 60.0 - number / 2, NAN), strict=True):
            if tuned_as(name) != name:
                break
            done(ledger, tmp_path, replace(rows(DATA, None)[name].short, lr=lr), accuracy)
        done(ledger, tmp_path, trained(name), 70.0 - number / 2)
    return ledger


def test_every_row_is_a_run_of_its_own(tmp_path: Path) -> None:
    wanted = list(study.wanted("rates", DATA, None, Ledger(tmp_path / "none.jsonl")))
    tuned = {tuned_as(name) for name in ROWS}
    assert len({own.key() for own in wanted}) == len(wanted) == len(tuned) * len(RATES)
    assert len({recipe(name, DATA, None).key() for name in ROWS}) == len(ROWS)


def test_nothing_is_chosen_before_all_rates_were_tried(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    for lr in RATES:
        for stage in ("rows", "seeds", "one"):
            assert list(study.wanted(stage, DATA, None, ledger)) == []
        done(ledger, tmp_path, replace(rows(DATA, None)["bn"].short, lr=lr), 60.0)
    found = list(study.wanted("rows", DATA, None, ledger))
    assert [own.epochs for own in found] == [EPOCHS] * 3  # BN, renormalized, and with its momentum
    assert [own.renorm for own in found] == [False, True, False]
    assert list(study.wanted("seeds", DATA, None, ledger)) == []


def test_the_best_rows_get_more_seeds_and_bn_always(tmp_path: Path, ledger: Ledger) -> None:
    more = list(study.wanted("seeds", DATA, None, ledger))
    first = list(ROWS)[: study.BEST]
    assert [own.seed for own in more] == [seed for seed in SEEDS for _ in first]
    assert {own.lr for own in more} == {RATES[1]}
    done(ledger, tmp_path, trained("bn"), 20.0)
    assert list(rates.ordered(study.chosen(DATA, None, ledger), ledger))[-1] == "bn"
    assert len(list(study.wanted("seeds", DATA, None, ledger))) == len(SEEDS) * (study.BEST + 1)


def test_one_worker_has_the_rate_that_was_chosen(ledger: Ledger) -> None:
    alone = list(study.wanted("one", DATA, None, ledger))
    assert len(alone) == len(ALONE)
    assert {(own.simulate_workers, own.lr, own.epochs) for own in alone} == {(1, RATES[1], SHORT)}


def test_the_report(tmp_path: Path, ledger: Ledger) -> None:
    for seed, accuracies in enumerate(((50.0, 54.0), (51.0, 56.0), (52.0, 58.0))):
        for name, accuracy in zip(("bn", "bgn+ws"), accuracies, strict=True):
            validation = 70.0 - list(ROWS).index(name) / 2
            done(ledger, tmp_path, trained(name, seed), validation, accuracy)
    done(ledger, tmp_path, replace(alone("gn", DATA, None), lr=RATES[1]), 33.0, 32.0)
    found = report.collect(DATA, None, ledger)
    text = report.text(found)
    # tests at the chosen rate: 51 against 56, gaps of 4, 5 and 6
    assert "**58.5** | 50.0 | 0.0 | 68.5 ± 0.0 |  | 56.0 ± 2.0 | 3 | +5.0 ± 2.5 |" in text
    assert "| GN | 33.0 |  | 32.0 |" in text
    # BGN is the third row, with standardized weights the fourth, with renormalization the ninth
    assert "| BGN + WS, G = 1 | 69.0 | -0.5 | no difference seen |" in text
    assert "| BGN + renorm, G = 1 | 69.0 | -3.0 | hurts |" in text
    assert "BN, momentum 0.01 |  |  |  |" in text  # it has the rate of BN
    report.draw(found, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_partner_helps_from_two_points_on(tmp_path: Path, ledger: Ledger) -> None:
    done(ledger, tmp_path, trained("bn+ws"), 72.1)
    assert "| BN + WS | 70.0 | +2.1 | helps |" in report.effects(report.collect(DATA, None, ledger))

"""The study of many workers: what it runs, in what order, and what its report says."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from studies import rates
from studies.ledger import Ledger, to_json
from studies.many_workers import plan, report
from studies.many_workers.cells import (
    CELLS,
    EPOCHS,
    RATES,
    ROWS,
    SHORT,
    STEP,
    recipe,
    row,
    tuned_as,
)
from studies.many_workers.diagnosis import Diagnoses

from bgn_lab import partners
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from tests.lab.report_runs import make

MINI = Path("mini.npz").resolve()
FIRST = plan.STAGES[0]
BEST = dict.fromkeys(ROWS, 0.05) | {"bn": 0.2}


def done(ledger: Ledger, folder: Path, own: Recipe, accuracy: float) -> None:
    """A finished run with this accuracy on validation and test images."""
    path = make(folder, accuracy, **asdict(own))
    ledger.add(path)


def score(own: Recipe) -> float:
    """Rows are worse the later they come; BN's best rate is at the edge."""
    cell = CELLS[f"mini-{own.batch_size if own.norm in ('bn', 'bgn') else 2}"]
    name = next(n for n in ROWS if replace(recipe(cell, n, MINI), lr=own.lr, epochs=own.epochs,
                            median_of=own.median_of, seed=own.seed) == own)  # fmt: skip
    place = list(ROWS).index(name)
    best = BEST[tuned_as(name)]
    return 60.0 - place + (own.epochs > SHORT) * 10 - 35 * (own.lr != best) + own.seed / 10


def trained(ledger: Ledger, folder: Path, stage: plan.Stage) -> list[Recipe]:
    """All runs of a stage, in the order in which they were wanted."""
    order: list[Recipe] = []
    while left := [own for own in plan.wanted(stage, MINI, ledger) if own not in ledger]:
        for own in left:
            done(ledger, folder, own, score(own))
        order += left
    return order


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ledger, list[Recipe]]:
    """The first stage, done."""
    folder = tmp_path_factory.mktemp("study")
    ledger = Ledger(folder / "runs.jsonl")
    return ledger, trained(ledger, folder, FIRST)


def test_every_step_has_as_many_images_but_in_the_papers_cells() -> None:
    for name, cell in CELLS.items():
        own = row(cell, "bn", MINI).full
        images = own.batch_size * own.simulate_workers
        assert images == (8 * cell.n if name.startswith("paper") else STEP)
        # 0.1 for 256 images is the paper's
        if cell.paper:
            assert own.rate == pytest.approx(0.1 * images / 256)
            assert own.milestones == (5, 10, 15)


def test_rates_first_then_wider_ones_at_the_edge_then_runs_to_the_end(
    study: tuple[Ledger, list[Recipe]],
) -> None:
    _, order = study
    short = [own for own in order if own.epochs == SHORT]
    full = [own for own in order if own.epochs == EPOCHS]
    assert order == [*short, *full]
    assert len({own.key() for own in order}) == len(order)
    assert len(short) == len({tuned_as(name) for name in plan.CORE}) * len(RATES) + 1
    wider = short[-1]
    assert (wider.norm, wider.standardize, wider.lr) == ("bn", False, 0.8)
    assert {own.lr for own in full if own.norm == "bn" and not own.standardize} == {BEST["bn"]}
    assert {partners.name(own): own.lr for own in full}["bn"] == BEST["bn"]
    assert len(full) == len(plan.CORE)


def test_rates_next_to_the_best_are_trained_to_the_end(tmp_path: Path) -> None:
    """Short runs prefer 0.05; to the end 0.2 is best, at their edge. Other seeds take that."""
    ledger = Ledger(tmp_path / "runs.jsonl")
    bases = plan.Stage("mini-2", "bases", (0, 1))
    short = {0.0125: 35.0, 0.05: 36.0, 0.2: 35.2, 0.8: 34.9}
    full = {0.0125: 30.0, 0.05: 40.0, 0.2: 44.0, 0.8: 42.0}
    rounds = []
    while left := [own for own in plan.wanted(bases, MINI, ledger) if own not in ledger]:
        rounds.append([(own.lr, own.seed) for own in left if own.epochs == EPOCHS])
        for own in left:
            done(ledger, tmp_path, own, (short if own.epochs == SHORT else full)[own.lr])
    assert rounds == [
        [],
        2 * [(0.05, 0)],
        2 * [(0.2, 0)],
        [],  # short runs with 0.8
        2 * [(0.8, 0)],
        2 * [(0.2, 1)],
    ]
    like = plan.best("mini-2", "bn+ws+renorm", MINI, ledger)
    assert like is not None
    assert like.lr == 0.2  # a relative has the rate that was chosen
    assert len(plan.search("paper-2", "bn", MINI, ledger).tried) == 1


def test_a_rate_whose_short_run_was_half_as_good_is_left_out(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    own = row(CELLS["mini-2"], "bn", MINI)
    for lr, accuracy in {0.0125: 70.0, 0.05: 80.0, 0.2: 39.0}.items():
        done(ledger, tmp_path, replace(own.short, lr=lr), accuracy)
    low, middle = (replace(own.full, lr=lr) for lr in (0.0125, 0.05))
    for tried, best, accuracy in (
        ((middle,), None, 80.0),
        ((middle, low), None, 70.0),
        ((middle, low), middle, 0.0),
    ):
        assert rates.search(own, RATES, ledger, 3) == (tried, best, ())
        if best is None:
            done(ledger, tmp_path, tried[-1], accuracy)
    assert rates.search(own, (*RATES, 0.8), ledger, 4) == ((), None, ())


def test_rows_that_normalize_each_image_share_runs_where_a_step_has_128_images() -> None:
    for name in ROWS:
        at_2, at_32 = (recipe(CELLS[f"mini-{n}"], name, MINI) for n in (2, 32))
        assert (at_2 == at_32) is (name[:2] in ("gn", "ln")), name
        in_papers = {recipe(CELLS[f"paper-{n}"], name, MINI) for n in (2, 32)}
        assert len(in_papers) == 2  # steps have other sizes


def test_the_deciding_rows_are_chosen_when_the_core_is_done(
    tmp_path: Path, study: tuple[Ledger, list[Recipe]]
) -> None:
    ledger, _ = study
    assert plan.deciding(MINI, ledger) == (
        *plan.ALWAYS,
        "bgn, G = 1",
        "bgn+ws, G = 1",
        "bgn+ws, G = 8",
    )
    assert list(plan.wanted(plan.STAGES[2], MINI, Ledger(tmp_path / "none"))) == []
    assert plan.deciding(MINI, Ledger(tmp_path / "none")) == ()


def test_the_report(tmp_path: Path, study: tuple[Ledger, list[Recipe]]) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    ledger.path.write_text(study[0].path.read_text())
    ledger = Ledger(ledger.path)
    for stage in plan.STAGES[1:5]:
        trained(ledger, tmp_path, stage)
    trained(ledger, tmp_path, plan.Stage("mini-32", "deciding", (1, 2)))
    diagnoses = Diagnoses(tmp_path / "diagnoses.jsonl")
    bn = plan.best("mini-2", "bn", MINI, ledger)
    assert bn is not None
    own = {"training mode": 0.55, "first worker": 0.4, "all workers": 0.45, "recalibrated": 0.5}
    diagnoses.path.write_text(json.dumps({"recipe": to_json(bn), "accuracy": own}) + "\n")
    found = report.collect(MINI, ledger, Diagnoses(diagnoses.path))
    shown = (*plan.CORE, *plan.AUTO)
    assert [own.name for own in found["mini-2"]] == [name for name in ROWS if name in shown]
    text = report.text(found, plan.deciding(MINI, ledger))
    assert "| BN | 0.8 |  | 70.1 ± 0.1 | 70.1 ± 0.1 | 3 |  |" in text
    assert "| BN + WS | 0.2 |  | 69.1 ± 0.1 | 69.1 ± 0.1 | 3 | trails, -1.0 ± 0.0 |" in text
    assert "| BN | 55.0 | 40.0 | 45.0 | 50.0 |" in text
    assert "- BN does not collapse: at 2 images against 32 it" in text
    assert "Among rows with standardized weights:\n\n- BN + WS does not collapse" in text
    ws = text.split("Among rows")[1].split("##")[0]
    assert "- BGN + WS, G = 8 does not hold: to BN + WS at 2" in ws
    assert "- GN holds" not in ws
    report.draw(found["mini-2"], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")

"""A study's file of finished runs: what is in it, and what is refused."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from studies import runner
from studies.ledger import Ledger

from bgn_lab.engines.engine import Engine, Outcome
from bgn_lab.engines.local import Local
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.report.collect import read
from tests.lab.report_runs import UNFINISHED, make


def test_a_run_comes_back_as_its_folder_has_it(tmp_path: Path) -> None:
    folder = make(tmp_path, 61.0, norm="bgn", groups=4, validation=0.2)
    Ledger(tmp_path / "new" / "runs.jsonl").add(folder)
    ledger, run = Ledger(tmp_path / "new" / "runs.jsonl"), read(folder)
    found = ledger.get(run.recipe)
    assert found is not None
    assert (found.recipe, found.result, found.metrics) == (run.recipe, run.result, run.metrics)
    assert run.recipe in ledger
    assert replace(run.recipe, seed=1) not in ledger
    assert ledger.get(replace(run.recipe, seed=1)) is None


def test_it_names_files_but_no_folders(tmp_path: Path) -> None:
    data = tmp_path / "mini.npz"
    data.touch()
    make(tmp_path, 61.0, data=str(data))
    (folder,) = (path.parent for path in tmp_path.glob("*/recipe.json"))
    Ledger(tmp_path / "runs.jsonl").add(folder)
    text = (tmp_path / "runs.jsonl").read_text()
    assert "mini.npz" in text
    assert str(tmp_path) not in text
    elsewhere = tmp_path / "elsewhere" / "mini.npz"
    elsewhere.parent.mkdir()
    elsewhere.touch()
    assert Recipe(data=str(elsewhere)) in Ledger(tmp_path / "runs.jsonl")
    assert Recipe() not in Ledger(tmp_path / "runs.jsonl")


def test_other_images_under_the_same_name_are_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    for seed, fingerprint in enumerate(("one", "one", "other")):
        folder = make(tmp_path, 61.0, seed=seed)
        (folder / "data.json").write_text(json.dumps({"fingerprint": fingerprint}))
        if seed < 2:
            ledger.add(folder)
    before = ledger.path.read_bytes()
    with pytest.raises(ValueError, match="data='other', expected 'one'"):
        ledger.add(folder)
    assert ledger.path.read_bytes() == before


def test_a_run_is_found_after_recipes_got_a_new_option(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    ledger.add(make(tmp_path, 61.0))
    values = json.loads(ledger.path.read_text())
    del values["recipe"]["center"]  # as if the line were older than the option
    ledger.path.write_text(json.dumps(values) + "\n")
    assert Recipe() in Ledger(ledger.path)


def test_unfinished_runs_and_damaged_lines_are_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    with pytest.raises(ValueError, match="not finished"):
        ledger.add(make(tmp_path, UNFINISHED))
    ledger.add(make(tmp_path, 61.0))
    ledger.path.write_text(ledger.path.read_text() + "{half")
    with pytest.raises(ValueError, match="line 2, is not a run"):
        Ledger(ledger.path)


def test_a_study_runs_what_its_file_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [Recipe(), Recipe(seed=1), Recipe(seed=2)]
    ledger = Ledger(tmp_path / "runs.jsonl")
    ledger.add(make(tmp_path / "other machine", 61.0))
    make(tmp_path, 62.0, seed=1)  # finished, but the study was killed before it was added
    asked = []

    def train(
        where: Engine,  # noqa: ARG001
        left: dict[str, Recipe],
        folder: Path,
        on_outcome: Callable[[Outcome], None],
        *_: Callable[..., None],
    ) -> None:
        for name, recipe in left.items():
            asked.append(recipe)
            made = make(folder, 63.0, seed=recipe.seed)
            assert made.name == name
            on_outcome(Outcome(name, recipe, read(made).result))

    monkeypatch.setattr(runner.engine, "run", train)
    assert runner.run(recipes, tmp_path, Local(1), 1.0, ledger)
    assert asked == recipes[2:]
    assert "2 of 3 runs are done" in capsys.readouterr().out
    assert all(recipe in Ledger(ledger.path) for recipe in recipes)


def test_a_stage_runs_until_it_wants_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = Ledger(tmp_path / "runs.jsonl")
    rounds: list[int] = []

    def wanted() -> list[Recipe]:
        return [Recipe(seed=seed) for seed in range(min(3, len(ledger) + 1))]

    def train(left: list[Recipe], folder: Path, where: Engine, hours: float, own: Ledger) -> bool:
        assert hours > 0
        rounds.append(len(left))
        if left[0].seed < 2:
            own.add(make(folder, 61.0, seed=left[0].seed))
        return where.jobs == 2

    monkeypatch.setattr(runner, "run", train)
    end = time.monotonic() + 60
    assert not runner.run_all(wanted, tmp_path, Local(2), end, ledger)
    assert rounds == [1, 1, 1]
    assert "no run ended" in capsys.readouterr().out
    ledger.add(make(tmp_path, 61.0, seed=2))
    assert runner.run_all(wanted, tmp_path, Local(2), end, ledger)
    assert not runner.run_all(
        lambda: [Recipe(seed=3)], tmp_path, Local(2), time.monotonic() - 1, ledger
    )
    assert not runner.run_all(lambda: [Recipe(seed=3)], tmp_path, Local(1), end, ledger)
    assert rounds == [1, 1, 1, 1]

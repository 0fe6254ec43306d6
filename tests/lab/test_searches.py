"""The best of several searches: chosen on validation images, resumable, with a record."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bgn_lab import cli, experiments
from bgn_lab.commands import run, searches
from bgn_lab.commands.run import Run
from bgn_lab.commands.searches import Searches
from bgn_lab.engines import engine
from bgn_lab.experiments.experiment import Choice
from bgn_lab.experiments.nas import choice as choices
from bgn_lab.experiments.nas import figure
from bgn_lab.experiments.nas.choice import CHOICE, Candidate, best, judged
from bgn_lab.experiments.nas.genotype import drawn, find
from bgn_lab.experiments.nas.recipe import DartsRecipe, ManasRecipe, NasTrainRecipe, SearchRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.recipe import Recipe
from bgn_lab.training import task
from bgn_lab.training.record import METRICS, RECIPE, RESULT
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Images, Result
from bgn_lab.training.run import Watcher
from bgn_lab.training.run import run as train
from tests.lab.small_images import few_test_images, small

TINY: dict[str, Any] = {
    "norm": "bgn", "groups": 4, "width": 4, "channels_last": False, "cells": 3, "epochs": 1,
    "batch_size": 26, "limit": 104, "onednn": True,
}  # fmt: skip
DARTS = DartsRecipe(**TINY, order="first")
MANAS = ManasRecipe(**TINY, window=8)
SHORT = NasTrainRecipe(**{**TINY, "limit": None, "epochs": 9}, cutout=8)


def result(status: str = FINISHED, **values: Any) -> Result:
    reason = "" if status == FINISHED else "by luck"
    return Result(
        status=status, reason=reason, seconds=1.0, chance=0.1, floor=0.1, classes=10,
        images=Images(2, 2, 2), image=(3, 8, 8), epochs=1, parameters=1, layers=(), **values,
    )  # fmt: skip


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs in this process, with few test images and small searches; their names as they begin."""
    begun: list[str] = []

    def one_by_one(_where: Any, runs: Any, folder: Path, on_outcome: Any) -> None:
        for key, recipe in runs.items():
            if not (folder / key / RESULT).exists():
                begun.append(recipe.experiment)
            task = (small if isinstance(recipe, SearchRecipe) else few_test_images)(recipe)
            on_outcome(engine.Outcome(key, recipe, train(task, folder / key, Watcher())))

    monkeypatch.setattr(engine, "run", one_by_one)
    monkeypatch.setattr(choices, "plain", lambda preset: SHORT)  # noqa: ARG005
    for picture in ("movement", "write"):
        monkeypatch.setattr(figure, picture, lambda *_: None)
    return begun


def search(recipe: Recipe, out: Path, count: int = 2, epochs: int = 1) -> int:
    experiment = experiments.get(recipe.experiment)
    command = Searches(experiment, recipe, Choice(count, "", epochs), None, 1, out)
    return command(Console(width=200))


def test_the_best_on_validation_images_is_chosen_even_if_it_is_worse_on_test_images() -> None:
    results = [
        result(validation_accuracy=0.7, test_accuracy=0.9),
        result(validation_accuracy=0.8, test_accuracy=0.1),
        result(NOT_CONVERGED, validation_accuracy=0.9, test_accuracy=0.95),
        result(validation_accuracy=0.8, test_accuracy=0.99),
    ]
    found = [judged(Candidate(i, f"s{i}", {}, f"t{i}"), own) for i, own in enumerate(results)]
    chosen = best([*found, Candidate(4, "s4", None)])
    assert chosen is not None
    assert chosen.seed == 1, "the first of equals; runs that did not converge are no candidates"
    assert best([Candidate(0, "s0", None)]) is None


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [DARTS, MANAS])
def test_searches_are_judged_without_test_images(
    recipe: SearchRecipe, tmp_path: Path, tiny: list[str], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    # tiny runs may end near chance, which is not the question here
    monkeypatch.setattr(task, "floor", lambda chance, images: 0.0)  # noqa: ARG005
    assert search(recipe, tmp_path, count=1) == 0
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob(RESULT)}
    assert len(times) == 2
    capsys.readouterr()
    assert search(recipe, tmp_path) == 0, "one more"
    said = capsys.readouterr().out
    assert "1 of 2 searches are there already" in said
    assert tiny == [recipe.experiment, "nas-train"] * 2
    assert {path: path.stat().st_mtime_ns for path in times} == times
    written = "".join(path.read_text() for path in tmp_path.rglob(METRICS))
    assert "test_" not in written, "test images were looked at"
    record = json.loads((tmp_path / CHOICE).read_text())
    assert [c["seed"] for c in record["candidates"]] == [0, 1]
    assert record["judged_by"] == {"validation_images": 52, "epochs": 1}
    for own in record["candidates"]:
        searched, trained = (
            json.loads((tmp_path / own[kind] / RESULT).read_text())
            for kind in ("search", "training")
        )
        assert own["genotype"] == searched["genotype"] == trained["genotype"]
        assert own["validation_accuracy"] == trained["validation_accuracy"]
        assert trained["test_accuracy"] is None
        settings = json.loads((tmp_path / own["training"] / RECIPE).read_text())
        assert (settings["validation"], settings["seed"], settings["norm"]) == (0.5, 0, "bgn")
    chosen = max(record["candidates"], key=lambda own: own["validation_accuracy"])
    assert record["chosen_seed"] == chosen["seed"]
    assert find(str(tmp_path / GENOTYPE)).to_json() == chosen["genotype"]
    assert f"chosen: what the search with seed {chosen['seed']} found" in said
    assert "to train it: bgn run nas-train " in said

    with pytest.raises(ValueError, match=r"holds other searches \(norm='bgn' there, 'bn' here"):
        search(replace(recipe, norm="bn", groups=None), tmp_path)
    assert cli.main(["report", str(tmp_path), "--out", str(tmp_path / "report")]) == 2
    assert "2 searches, 2 short trainings and nothing else" in capsys.readouterr().err


def test_of_results_that_are_made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches found the same, the loss of one was not finite."""
    genotypes = [drawn(0).to_json(), drawn(0).to_json(), None, drawn(1).to_json()]
    accuracy = {json.dumps(drawn(0).to_json()): 0.6, json.dumps(drawn(1).to_json()): 0.7}
    trained: list[str] = []

    def made_up(_where: Any, runs: Any, _folder: Path, on_outcome: Any) -> None:
        for key, r in runs.items():
            if isinstance(r, NasTrainRecipe):
                trained.append(r.genotype)
                a = accuracy[r.genotype]
                own = result(status, validation_accuracy=a, test_accuracy=1 - a)
            else:
                details = {"genotype": genotypes[r.seed]}
                own = result(validation_accuracy=0.9 - r.seed / 10, details=details)
            on_outcome(engine.Outcome(key, r, own))

    status = FINISHED
    monkeypatch.setattr(engine, "run", made_up)
    monkeypatch.setattr(choices, "plain", lambda preset: SHORT)  # noqa: ARG005
    assert search(DARTS, tmp_path, count=4) == 0
    assert len(trained) == 2, "equal genotypes are trained once"
    record = json.loads((tmp_path / CHOICE).read_text())
    found = [own["validation_accuracy"] for own in record["candidates"]]
    assert found == [0.6, 0.6, None, 0.7]
    assert record["chosen_seed"] == 3
    assert find(str(tmp_path / GENOTYPE)) == drawn(1)
    assert (tmp_path / "cells.png").read_bytes().startswith(b"\x89PNG")
    assert record["candidates"][0]["training"] == record["candidates"][1]["training"]
    assert record["candidates"][2]["training"] is None

    status = NOT_CONVERGED
    assert search(DARTS, tmp_path, count=4, epochs=2) == 1, "nothing converged"
    assert json.loads((tmp_path / CHOICE).read_text())["chosen_seed"] is None
    assert not (tmp_path / GENOTYPE).exists(), "that of the earlier choice"


def parse(*words: str) -> Run | Searches:
    return run.parse(words[0], list(words[1:]), "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("darts-search", "--preset", "paper"), Choice(4, "paper", 100)),
        (("manas-search", "--preset", "paper-20"), Choice(4, "paper-manas", 100)),
        (("darts-search", "--preset", "laptop", "--searches", "3"), Choice(3, "laptop", 5)),
        (("darts-search", "--searches", "2", "--short-epochs", "7"), Choice(2, "", 7)),
    ],
)
def test_numbers_of_searches(words: tuple[str, ...], expected: Choice) -> None:
    command = parse(*words)
    assert isinstance(command, Searches)
    assert command.choice == expected


def test_one_search_is_an_ordinary_run() -> None:
    for words in (("--preset", "laptop"), ("--preset", "paper", "--searches", "1"), ()):
        assert isinstance(parse("darts-search", *words), Run)


def test_short_trainings_have_the_search_s_halves_and_the_preset_s_network() -> None:
    recipe = DartsRecipe(data="cifar10", norm="gn", standardize=True, seed=3, validation=0.4)
    short = choices.short_training(recipe, "paper", "DARTS_V1", 100)
    assert (short.cells, short.width, short.batch_size, short.epochs) == (20, 36, 96, 100)
    assert (short.norm, short.standardize, short.seed) == ("gn", True, 3)
    assert (short.validation, short.test) == (0.4, False)
    full = choices.training(recipe, "paper", "DARTS_V1")
    assert (full.validation, full.test, full.epochs) == (0, True, 600)


@pytest.mark.parametrize(
    ("recipe", "preset", "words"),
    [
        (DartsRecipe(data="cifar10", norm="bgn"), "paper", "--preset paper"),
        (DartsRecipe(norm="bn", standardize=True, augment=False, seed=2), "", "--norm bn"),
        (ManasRecipe(data="cifar10", norm="gn", groups=8), "paper-manas", "--cells 8"),
        (replace(DARTS, limit=10_000), "laptop", "--groups 4"),
    ],
)
def test_the_command_that_trains_what_is_chosen(
    recipe: SearchRecipe, preset: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "it's mine.json"
    name = choices.any_genotype(recipe)
    file.write_text(json.dumps(find(name).to_json()))
    command = choices.command(recipe, preset, file)
    assert words in command
    parsed = parse(*shlex.split(command)[2:])
    wanted = replace(choices.training(recipe, preset, name), genotype=str(file))
    assert parsed.recipe == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--searches 0", "--searches 0 is not positive"),
        ("--searches 2 --short-epochs 0", "--short-epochs 0 is not positive"),
        ("--searches 2 --jobs 0", "--jobs 0 is not positive"),
        (
            "--searches 2 --limit 64 --batch-size 16",
            "--validation 0.5 leaves 32 images to choose",
        ),
        ("--searches 2 --limit 150", "--batch-size 96 times simulate_workers=1"),
    ],
)
def test_bad_input(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    base = ["run", "darts-search", "--preset", "laptop", "--out", str(out)]
    assert cli.main([*base, *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_folders_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / RECIPE).write_text("{}")
    with pytest.raises(ValueError, match="holds one run: --searches 1 resumes it; or choose"):
        choices.claim(tmp_path, DARTS, "code")
    (tmp_path / RECIPE).rename(tmp_path / GENOTYPE)
    with pytest.raises(ValueError, match="is not empty and holds no searches"):
        choices.claim(tmp_path, DARTS, "code")
    (tmp_path / GENOTYPE).unlink()
    choices.claim(tmp_path, DARTS, "code")
    choices.claim(tmp_path, DARTS, "code")
    with pytest.raises(ValueError, match="images='code' there, 'other' here"):
        choices.claim(tmp_path, DARTS, "other")
    (tmp_path / CHOICE).write_text("[]")
    with pytest.raises(ValueError, match=re.escape(f"{CHOICE} is damaged")):
        choices.claim(tmp_path, DARTS, "code")


@pytest.mark.slow
def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Really side by side, in processes."""
    words = "run manas-search --preset laptop --searches 2 --short-epochs 1 --limit 200 --epochs 1"
    command = [
        *words.split(),
        "--cells",
        "3",
        "--window",
        "4",
        "--jobs",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert cli.main(command) in (0, 1)  # of so few steps some may end near chance
    assert "on 100 validation images" in capsys.readouterr().out
    found = len(list(tmp_path.glob(f"{searches.RUNS}/*/{RESULT}")))
    assert found in (3, 4), "two short searches may find the same, which is trained once"

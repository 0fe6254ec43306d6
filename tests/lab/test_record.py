"""The folder of a run: its data, its sessions, and a result that pictures cannot cost."""

import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bgn
from bgn_lab import cli, data, experiments
from bgn_lab.data.sources import Data
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system import files
from bgn_lab.system.signals import Interrupted
from bgn_lab.training import checkpoint, record
from bgn_lab.training.record import ABOUT, DATA, RESULT, WARNINGS
from bgn_lab.training.result import Result
from bgn_lab.training.run import WEIGHTS, Watcher, is_finished, run
from bgn_lab.training.task import Task

RECIPE = Recipe(norm="bgn", groups=4, width=4, stride=2, limit=100, batch_size=8, epochs=2)


def stop(epoch: int, step: int) -> None:
    """Interrupt a run within its second epoch."""
    if (epoch, step) == (1, 3):
        raise Interrupted


def begun(folder: Path, recipe: Recipe = RECIPE) -> Path:
    """A run that was interrupted."""
    with pytest.raises(Interrupted):
        experiments.run(recipe, folder, Watcher(step=stop))
    return folder


def other(part: str, found: Data) -> Data:
    """The data with other labels in one part."""
    source: Any = getattr(found, part)
    return replace(found, **{part: replace(source, y=source.y.flip(0))})


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_changed_data_is_refused(tmp_path: Path, part: str) -> None:
    folder, images = begun(tmp_path / "run"), data.load(RECIPE)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    message = rf"the data changed since the run in .*run began: {part} \(.* images then, .* now\)"
    with pytest.raises(ValueError, match=f"{message}; restore the data to resume"):
        run(experiments.task(RECIPE, other(part, images)), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    result = run(experiments.task(RECIPE, images), folder)
    assert result.epochs == 2
    with pytest.raises(ValueError, match=message):  # nor is a result of other data handed out
        run(experiments.task(RECIPE, other(part, images)), folder)


def test_changed_content_is_refused(tmp_path: Path) -> None:
    class Marked(Data):
        fingerprint = "abc"

    images = data.load(RECIPE)
    marked = Marked(**{f.name: getattr(images, f.name) for f in fields(images)})
    with record.Record(tmp_path / "run", RECIPE) as folder:
        folder.begin(marked)
    record.check_data(tmp_path / "run", marked)
    Marked.fingerprint = "abd"
    with pytest.raises(ValueError, match="began: the content of the images; restore the data"):
        record.check_data(tmp_path / "run", marked)


def test_compare_trains_anew_on_changed_data(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)

    def write(labels: int) -> None:
        parts = {"train": 60, "test": 40}
        arrays = {
            f"x_{p}": draws.integers(0, 255, (n, 8, 8, 3), np.uint8) for p, n in parts.items()
        }
        arrays |= {f"y_{p}": (np.arange(n) + labels) % 2 for p, n in parts.items()}
        np.savez(tmp_path / "mine.npz", **arrays)

    write(0)
    words = ["compare", "--data", str(tmp_path / "mine.npz"), "--width", "4", "--norms", "bn"]
    words += ["--batch-sizes", "8", "--epochs", "1", "--seeds", "1", "--out", str(tmp_path / "out")]
    assert cli.main(words) == 0
    write(1)
    command = [sys.executable, "-m", "bgn_lab", *words]  # this process has the data in memory
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert "runs are there already" not in again.stdout
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 2, "the run on other data stays"


def test_every_session_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "2.5.1")
        folder = begun(tmp_path / "run")
    experiments.run(RECIPE, folder)
    experiments.run(RECIPE, folder)  # finished: no session
    about = json.loads((folder / ABOUT).read_text())
    assert [session["torch"] for session in about["sessions"]] == ["2.5.1", torch.__version__]
    assert all(
        {"time", "git", "threads", "command"} < session.keys() for session in about["sessions"]
    )
    assert about["torch"] == "2.5.1", "the first session's fields are at the top level"
    lines = record.other_versions([about, about, {"torch": torch.__version__}], 7)
    assert lines == ["2 of 7 runs were made with torch 2.5.1"]


def test_versions_of_finished_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_git", lambda: {"commit": "b" * 40, "changed": False})
    mine = {"torch": torch.__version__, "bgn": bgn.__version__}
    abouts = [
        {**mine, "git": {"commit": "b" * 40, "changed": True}},
        {**mine, "git": {"commit": "a" * 40, "changed": False}},
        {**mine, "bgn": "0.0.1", "git": None},
    ]
    assert record.other_versions(abouts, 3) == [
        "1 of 3 runs were made with bgn 0.0.1",
        "1 of 3 runs were made with commit aaaaaaaaaaaa",
    ]


def test_a_failing_picture_does_not_cost_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, drawn = tmp_path / "run", []

    def fail(*_: object) -> None:
        raise RuntimeError("no colors")

    monkeypatch.setattr(Task, "illustrate", fail)
    with pytest.warns(UserWarning, match=r"could not be drawn \(RuntimeError: no colors\)"):
        result = experiments.run(RECIPE, folder)
    assert Result.from_json(json.loads((folder / RESULT).read_text())) == result
    assert "no colors" in (folder / WARNINGS).read_text()
    assert not is_finished(folder)
    kept = {name: (folder / name).read_bytes() for name in (RESULT, WEIGHTS)}
    monkeypatch.setattr(Task, "illustrate", lambda *_: drawn.append(1))
    assert experiments.run(RECIPE, folder) == result
    assert drawn == [1], "the same command draws it again"
    assert is_finished(folder)
    assert not (folder / WARNINGS).exists()
    assert not (folder / checkpoint.NAME).exists()
    assert {name: (folder / name).read_bytes() for name in kept} == kept


def test_a_description_that_fails_at_the_end_does_not_cost_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as that of a network whose pretrained weights moved while it was trained."""

    def fail(*_: object) -> None:
        raise FileNotFoundError("the weights moved")

    def step(epoch: int, step: int) -> None:  # noqa: ARG001
        monkeypatch.setattr(Task, "description", fail)

    result = experiments.run(RECIPE, tmp_path / "run", Watcher(step=step))
    assert len(result.layers) == 9


def test_the_weights_have_a_hash(tmp_path: Path) -> None:
    result = experiments.run(RECIPE, tmp_path / "run")
    assert result.weights_sha256 == files.digest(tmp_path / "run" / WEIGHTS, "sha256")


def test_out_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OSError, match=f"{out} cannot be made a folder: "):
            experiments.run(RECIPE, out)
    words = ["tune", "--out", str(tmp_path / "file"), "--limit", "800"]
    assert cli.main(words) == 2
    assert "cannot be made a folder" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "file").read_text() == "mine"


def test_metrics_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="metrics.jsonl cannot be written: No space left on dev"):
            files.append(tmp_path / "metrics.jsonl", "{}\n")


def test_what_data_json_holds(tmp_path: Path) -> None:
    experiments.run(replace(RECIPE, epochs=1), tmp_path / "run")
    held = json.loads((tmp_path / "run" / DATA).read_text())
    assert held["train"][0] == 90
    assert held.keys() == {"fingerprint", "train", "validation", "test"}

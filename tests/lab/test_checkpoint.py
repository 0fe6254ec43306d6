"""A run that is stopped at any moment and goes on ends as one that was not; bad checkpoints are refused and left alone."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bgn_lab import experiments
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system.signals import Interrupted
from bgn_lab.training import checkpoint
from bgn_lab.training.record import METRICS
from bgn_lab.training.run import WEIGHTS, Watcher

RECIPE = Recipe(norm="bgn", groups=4, width=4, limit=200, batch_size=8, epochs=3, lr=0.2)


def stop_in(epoch: int, at: int = 5) -> Watcher:
    """What interrupts a run in the middle of an epoch."""

    def step(now: int, step: int) -> None:
        if (now, step) == (epoch, at):
            raise Interrupted

    return Watcher(step=step)


def same(a: Path, b: Path) -> None:
    """The runs in two folders ended alike, to the bit."""
    one, two = (load_file(folder / WEIGHTS) for folder in (a, b))
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    timeless = [
        [
            {k: v for k, v in json.loads(line).items() if "second" not in k}
            for line in (folder / METRICS).read_text().splitlines()
        ]
        for folder in (a, b)
    ]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize(
    "changes",
    [{}, {"accumulate": 2, "nesterov": True, "width": 8, "channels_last": True}, {"amp": True}],
    ids=str,
)
def test_resumed_bit_for_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = replace(RECIPE, **changes)
    experiments.run(recipe, tmp_path / "whole")
    for epoch in (0, 1, 2):
        with pytest.raises(Interrupted):
            experiments.run(recipe, tmp_path / "pieces", stop_in(epoch))
    result = experiments.run(recipe, tmp_path / "pieces")
    same(tmp_path / "whole", tmp_path / "pieces")
    assert result["epochs"] == 3
    assert not (tmp_path / "pieces" / checkpoint.NAME).exists()


def test_goes_on_within_the_epoch(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        experiments.run(RECIPE, tmp_path, stop_in(1))
    seen: list[tuple[int, int]] = []
    experiments.run(RECIPE, tmp_path, Watcher(step=lambda epoch, step: seen.append((epoch, step))))
    assert seen[0] == (1, 6), "five steps of the second epoch were done"


def test_checkpoints_within_the_epoch(tmp_path: Path) -> None:
    """Whoever is killed after one goes on from there."""
    recipe, seen = replace(RECIPE, save_every=1e-9), []

    def look(epoch: int, step: int) -> None:
        if (epoch, step) == (1, 7):
            raise KeyboardInterrupt  # as if killed: nothing is written any more

    with pytest.raises(KeyboardInterrupt):
        experiments.run(recipe, tmp_path / "killed", Watcher(step=look))
    experiments.run(
        recipe, tmp_path / "killed", Watcher(step=lambda epoch, step: seen.append((epoch, step)))
    )
    assert seen[0] == (1, 7), "six steps were saved, the seventh was not"
    experiments.run(recipe, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(("seed", "times"), [(0, 2), pytest.param(1, 3, marks=pytest.mark.slow)])
def test_killed_at_any_moment(tmp_path: Path, seed: int, times: int) -> None:
    """kill -9, again and again, at moments that a generator draws; some are while files are written."""
    recipe = replace(RECIPE, limit=400, epochs=times + 1)
    draws = torch.Generator().manual_seed(seed)
    options = [
        f"--{name.replace('_', '-')}={getattr(recipe, name)}"
        for name in ("norm", "groups", "width", "limit", "batch_size", "epochs", "lr")
    ]
    command = [
        sys.executable,
        "-m",
        "bgn_lab",
        "run",
        "classification",
        *options,
        "--out",
        str(tmp_path / "killed"),
    ]
    kills = 0
    for _ in range(times):
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        seen = len(_lines(tmp_path / "killed"))
        deadline = time.monotonic() + 120
        while (
            len(_lines(tmp_path / "killed")) == seen
            and child.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)
        time.sleep(float(torch.rand((), generator=draws)) * 0.1)
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        assert child.stderr is not None
        child.stderr.close()
    assert kills > 0
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    experiments.run(recipe, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").glob(".*")), "no drafts of files are left"


def _lines(folder: Path) -> list[str]:
    return (folder / METRICS).read_text().splitlines() if (folder / METRICS).exists() else []


def _interrupted(folder: Path) -> Path:
    with pytest.raises(Interrupted):
        experiments.run(RECIPE, folder, stop_in(1))
    return folder / checkpoint.NAME


def test_truncated_checkpoint(tmp_path: Path) -> None:
    path = _interrupted(tmp_path / "run")
    whole = path.read_bytes()
    for size in (0, 4, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            ValueError,
            match="checkpoint.safetensors is damaged .* remove it to begin this run anew",
        ):
            experiments.run(RECIPE, tmp_path / "run")
        assert path.read_bytes() == whole[:size]


def test_foreign_checkpoint(tmp_path: Path) -> None:
    path = _interrupted(tmp_path / "run")
    mine = path.read_bytes()
    save_file({"x": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="is no checkpoint of this program"):
        experiments.run(RECIPE, tmp_path / "run")
    other = replace(RECIPE, lr=0.1)
    with pytest.raises(Interrupted):
        experiments.run(other, tmp_path / "other", stop_in(1))
    path.write_bytes((tmp_path / "other" / checkpoint.NAME).read_bytes())
    with pytest.raises(ValueError, match="belongs to another run \\(lr=0.1 there, 0.2 here\\)"):
        experiments.run(RECIPE, tmp_path / "run")
    path.write_bytes(mine)
    with pytest.raises(ValueError, match="holds another run \\(lr=0.2 there, 0.1 here\\)"):
        experiments.run(other, tmp_path / "run")
    experiments.run(RECIPE, tmp_path / "run")


def test_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("dear reader")
    (tmp_path / ".thesis.part").write_text("not ours")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        experiments.run(RECIPE, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"thesis.tex", ".thesis.part"}


def test_a_run_killed_before_it_began(tmp_path: Path) -> None:
    """Between the first two files, and while a third was being written."""
    (tmp_path / "about.json").write_text("{}")
    (tmp_path / ".recipe.json.123.part").write_text('{"data": ')
    (tmp_path / ".about.json.123.part").write_text("{")
    experiments.run(replace(RECIPE, epochs=1), tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_two_at_the_same_time(tmp_path: Path) -> None:
    def step(epoch: int, step: int) -> None:
        if (epoch, step) == (1, 1):
            experiments.run(RECIPE, tmp_path / "run")

    with pytest.raises(ValueError, match="is being worked on by another process"):
        experiments.run(RECIPE, tmp_path / "run", Watcher(step=step))
    experiments.run(RECIPE, tmp_path / "run")
    experiments.run(RECIPE, tmp_path / "whole")
    same(tmp_path / "whole", tmp_path / "run")


def test_drafts_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    draft = _interrupted(tmp_path / "run").with_name(".checkpoint.safetensors.123.part")
    draft.write_bytes(b"half")
    experiments.run(RECIPE, tmp_path / "run")
    assert not draft.exists()


def test_metrics_that_went_missing(tmp_path: Path) -> None:
    _interrupted(tmp_path / "run")
    (tmp_path / "run" / METRICS).write_text("")
    with pytest.raises(ValueError, match="has 0 epochs, the checkpoint 1"):
        experiments.run(RECIPE, tmp_path / "run")

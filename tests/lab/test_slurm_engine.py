"""Runs as jobs of Slurm: submitit's local executor, and a real cluster where Slurm is installed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bgn_lab.engines import engine
from bgn_lab.engines.engine import Outcome
from bgn_lab.engines.local import Local
from bgn_lab.engines.resources import Resources
from bgn_lab.engines.script import ARRAY, FOLDER
from bgn_lab.engines.slurm import IDS, Slurm
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system.signals import REQUEUE, STOPPED, Interrupted
from bgn_lab.training import checkpoint
from tests.lab.namespaces import wait_for
from tests.lab.run_folders import check_records, check_same, epochs
from tests.lab.slurm_cluster import ask, cluster

pytest.importorskip("submitit", reason="the package submitit is missing: pip install submitit")
pytestmark = pytest.mark.slow

TINY = Recipe(width=4, stride=2, limit=200, batch_size=8, epochs=2, onednn=True)
BGN = [sys.executable, "-m", "bgn_lab"]
WORDS = ["--width", "4", "--stride", "2", "--limit", "2000", "--batch-sizes", "8", "--seeds", "1"]
WORDS += ["--norms", "bn", "gn", "--simulate-workers", "1"]


def test_the_same_bits_with_submitits_local_executor(tmp_path: Path) -> None:
    outcomes: list[Outcome] = []
    there, here = tmp_path / "slurm", tmp_path / "local"
    engine.run(Slurm(Resources(), cluster="local"), {"a": TINY}, there / "runs", outcomes.append)
    engine.run(Local(1), {"a": TINY}, here / "runs", outcomes.append)
    assert [own.error for own in outcomes] == ["", ""]
    check_same(here, there, runs=1)


def test_stopped_with_submitits_local_executor(tmp_path: Path) -> None:
    """The run is saved when the call is over."""
    long = Recipe(width=4, stride=2, limit=600, batch_size=2, epochs=900, onednn=True)

    def stop() -> None:
        if epochs(tmp_path):
            raise Interrupted(REQUEUE)

    with pytest.raises(Interrupted):
        engine.run(Slurm(Resources(), cluster="local"), {"a": long}, tmp_path / "runs", print, stop)
    assert is_saved(tmp_path / "runs", "a")


def is_saved(runs: Path, key: str) -> bool:
    """Whether a run was stopped and saved, with a checkpoint after the last epoch in its record."""
    path = runs / key / checkpoint.NAME
    about, _ = checkpoint._read(path.read_bytes(), path)
    said = (runs / FOLDER / f"{key}.log").read_text()
    return STOPPED in said and about["progress"]["epoch"] == epochs(runs.parent)[key]


@pytest.fixture(scope="module")
def slurm() -> Iterator[dict[str, str]]:
    with cluster() as environment:
        yield environment


def start(
    environment: dict[str, str], out: Path, engine: str, *words: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*BGN, "compare", *WORDS, "--engine", engine, "--out", str(out), *words],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def jobs(environment: dict[str, str]) -> dict[str, str]:
    """States of the jobs, by their names."""
    lines = ask(environment, "squeue", "--noheader", "--array", "--format=%i %t").splitlines()
    return dict(line.split() for line in lines)


def test_jobs_outlive_the_command_which_finds_them_again(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    out, words = tmp_path / "slurm", ["--epochs", "12"]
    child = start(slurm, out, "slurm", *words)
    wait_for(lambda: len(epochs(out)) == 2, 240, "both runs trained", child)
    names = out / "runs" / FOLDER / IDS
    before, written = json.loads(names.read_text()), names.stat().st_mtime_ns
    child.kill()
    child.communicate()
    child = start(slurm, out, "slurm", *words)
    # one job dies: nobody says how
    wait_for(lambda: names.stat().st_mtime_ns > written, 120, "jobs found", child)
    assert json.loads(names.read_text()) == before, "submitted twice"
    ask(slurm, "scancel", "--signal=KILL", next(iter(before.values())))
    said, _ = child.communicate(timeout=400)
    assert child.returncode == 0, said
    assert "2 of 2 runs are done" in said
    assert said.count("resumes from its last checkpoint") == 1, said
    assert jobs(slurm) == {}
    check_records(out, 12)
    here = tmp_path / "local"
    local = [*BGN, "compare", *WORDS, *words, "--jobs", "1", "--out", str(here)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(local, check=True, capture_output=True, env=environment)
    check_same(here, out, runs=2)


def test_time_is_over_and_the_command_is_stopped(slurm: dict[str, str], tmp_path: Path) -> None:
    """A run whose time is over is saved and queued again; SIGTERM saves all and empties the
    queue."""
    child = start(slurm, tmp_path, "slurm", "--epochs", "900")
    wait_for(lambda: len(epochs(tmp_path)) == 2, 240, "both runs trained", child)
    ids = json.loads((tmp_path / "runs" / FOLDER / IDS).read_text())
    key, job = next(iter(ids.items()))
    ask(slurm, "scancel", "--signal=USR2", job)  # Slurm's signal before the end
    wait_for(lambda: jobs(slurm).get(job) == "PD", 60, "queued again", child)
    assert is_saved(tmp_path / "runs", key)
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=120)
    assert child.returncode == REQUEUE, said
    assert jobs(slurm) == {}
    assert all(is_saved(tmp_path / "runs", name) for name in ids)


def test_the_script_of_the_script_engine(slurm: dict[str, str], tmp_path: Path) -> None:
    """Slurm reads it, runs it, and queues again what is stopped."""
    words = ["--epochs", "900", "--cores", "1", "--memory", "1", "--job-hours", "2"]
    child = start(slurm, tmp_path, "script", *words, "--jobs", "2", "--partition", "main")
    said, _ = child.communicate(timeout=120)
    assert child.returncode == 0, said
    array = str(tmp_path / "runs" / FOLDER / ARRAY)
    tried = subprocess.run(["sbatch", "--test-only", array], env=slurm, capture_output=True)
    assert tried.returncode == 0, tried.stderr
    subprocess.run(["sbatch", array], env=slurm, check=True, capture_output=True)
    wait_for(lambda: len(epochs(tmp_path)) == 2, 240, "both runs trained")
    job = next(iter(jobs(slurm)))
    ask(slurm, "scancel", "--signal=TERM", job)
    wait_for(lambda: jobs(slurm).get(job) == "PD", 60, "queued again")
    logs = (tmp_path / "runs" / FOLDER).glob("*_*.log")
    assert sorted(STOPPED in path.read_text() for path in logs) == [False, True], "one of them"

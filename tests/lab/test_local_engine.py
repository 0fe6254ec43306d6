"""Runs in processes: signals stop them at a checkpoint, and what is done is kept."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bgn_lab.engines import engine, local
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system.signals import INTERRUPTED, REQUEUE
from bgn_lab.training import checkpoint
from bgn_lab.training.record import ABOUT, METRICS, RESULT

# epochs of some seconds, and too many of them
OPTIONS = ["--width", "4", "--stride", "2", "--limit", "600", "--jobs", "2"]
COMPARE = ["compare", *OPTIONS, "--norms", "bn", "gn", "--batch-sizes", "2", "--epochs", "900"]
COMPARE += ["--seeds", "2", "--simulate-workers", "1"]
TUNE = ["tune", *OPTIONS, "--batch-size", "2", "--epochs", "900", "--seeds", "1"]
SEARCHES = ["run", "manas-search", "--preset", "laptop", "--searches", "2", "--limit", "200"]
SEARCHES += ["--cells", "3", "--epochs", "900", "--jobs", "2"]


def start(words: list[str]) -> subprocess.Popen[str]:
    """The command, in a process group of its own, as if in the foreground of a terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "bgn_lab", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=_hear_signals,
    )  # fmt: skip


def _hear_signals() -> None:
    """Those that a test suite in the background, or under nohup, was started to ignore."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_for_training(out: Path, child: subprocess.Popen[str]) -> None:
    """Until two runs are within their second epoch, or a later one."""
    deadline = time.monotonic() + 240
    while len(list(out.glob(f"runs/*/{METRICS}"))) < 2:
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.3)  # some steps


def end(child: subprocess.Popen[str]) -> None:
    """Whatever happened, no process is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.communicate()


@pytest.mark.parametrize(
    ("words", "number", "everybody", "code"),
    [
        (COMPARE, signal.SIGTERM, False, REQUEUE),
        (TUNE, signal.SIGTERM, True, REQUEUE),
        pytest.param(COMPARE, signal.SIGHUP, True, REQUEUE, marks=pytest.mark.slow),
        pytest.param(COMPARE, signal.SIGINT, True, INTERRUPTED, marks=pytest.mark.slow),
        pytest.param(TUNE, signal.SIGINT, False, INTERRUPTED, marks=pytest.mark.slow),
        pytest.param(SEARCHES, signal.SIGTERM, True, REQUEUE, marks=pytest.mark.slow),
    ],
)
def test_a_signal_stops_runs_within_the_epoch(
    tmp_path: Path, words: list[str], number: signal.Signals, everybody: bool, code: int
) -> None:
    """To the parent alone, or to all processes, as terminals and schedulers send it."""
    child = start([*words, "--out", str(tmp_path)])
    try:
        wait_for_training(tmp_path, child)
        (os.killpg if everybody else os.kill)(child.pid, number)
        output, _ = child.communicate(timeout=60)
    finally:
        end(child)
    assert child.returncode == code, output
    assert "Stopped. Run the same command to resume." in output
    assert "Traceback" not in output
    saved = [checkpoint._read(p.read_bytes(), p)[0] for p in tmp_path.rglob(checkpoint.NAME)]
    assert len(saved) == 2, output
    assert all(about["progress"]["epoch"] > 0 for about in saved)
    assert any(about["progress"]["step"] > 0 for about in saved), "within an epoch"


@pytest.mark.slow
def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    child = start([*COMPARE, "--out", str(tmp_path)])
    try:
        wait_for_training(tmp_path, child)
        workers = _workers(child.pid)
        for worker in workers:  # they cannot save
            os.kill(worker, signal.SIGSTOP)
        child.send_signal(signal.SIGINT)
        time.sleep(1)
        assert child.poll() is None, "it waits for the runs"
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=30)
    finally:
        end(child)
    assert child.returncode == INTERRUPTED
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


@pytest.mark.parametrize("words", [TUNE, pytest.param(COMPARE, marks=pytest.mark.slow)])
def test_a_killed_process(tmp_path: Path, words: list[str]) -> None:
    """One line says why, and the other run is saved."""
    child = start([*words, "--out", str(tmp_path)])
    try:
        wait_for_training(tmp_path, child)
        os.kill(_workers(child.pid)[0], signal.SIGKILL)
        output, _ = child.communicate(timeout=60)
    finally:
        end(child)
    assert child.returncode == 1, output
    line = "a process was killed, perhaps for lack of memory: fewer --jobs need less. Stopped."
    assert line in " ".join(output.split())
    assert "Traceback" not in output
    saved = [checkpoint._read(p.read_bytes(), p)[0] for p in tmp_path.rglob(checkpoint.NAME)]
    assert len(saved) == 2
    assert any(about["progress"]["step"] > 0 for about in saved), "of the run that was not killed"


def _workers(pid: int) -> list[int]:
    if not Path("/proc").exists():
        pytest.skip("processes are looked up in /proc")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    names = {int(p): Path(f"/proc/{p}/cmdline").read_text() for p in children}
    return [p for p, name in names.items() if "spawn_main" in name]


def test_threads_of_the_user_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(local.cores, "count", lambda: 2)
    recipe = Recipe(width=4, stride=2, limit=60, batch_size=8, epochs=1)
    outcomes: list[engine.Outcome] = []
    engine.run(local.Local(1), {"a": recipe}, tmp_path, outcomes.append)
    assert [outcome.error for outcome in outcomes] == [""]
    assert json.loads((tmp_path / "a" / ABOUT).read_text())["threads"] == 1
    assert {RESULT, METRICS} < {path.name for path in (tmp_path / "a").iterdir()}

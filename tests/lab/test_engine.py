"""What holds for every engine: who is tried again, who is given up, what an option refuses."""

import shlex
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import pytest

from bgn_lab import experiments
from bgn_lab.commands import compare
from bgn_lab.engines import engine, local, script
from bgn_lab.engines.engine import Ended, Outcome
from bgn_lab.engines.options import EngineOptions
from bgn_lab.engines.resources import Resources
from bgn_lab.engines.worker import INVISIBLE, Attempt
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.recipe import Recipe as AnyRecipe
from bgn_lab.report.collect import collect
from bgn_lab.system import files
from bgn_lab.system.launch import REFUSED
from bgn_lab.system.signals import REQUEUE
from bgn_lab.training import checkpoint, record
from bgn_lab.training.record import RECIPE
from tests.lab.report_runs import make

TINY = Recipe(width=4, stride=2, limit=60, batch_size=8, epochs=1, onednn=True)


class Scripted:
    """An engine whose attempts end as a list says; None stands for a run that is finished."""

    jobs, note = None, ""

    def __init__(self, attempts: Mapping[str, list[tuple[int | None, bool]]]) -> None:
        self.attempts = {key: iter(own) for key, own in attempts.items()}
        self.submitted: list[str] = []
        self.cancelled: list[list[str]] = []
        self.waiting: dict[str, Path] = {}

    @property
    def pending(self) -> Collection[str]:
        return self.waiting

    def submit(self, recipes: Mapping[str, AnyRecipe], folder: Path) -> None:
        self.submitted += recipes
        self.waiting |= {key: folder / key for key in recipes}

    def poll(self) -> Iterable[Ended]:
        for key, folder in list(self.waiting.items()):
            code, got_further = next(self.attempts[key])
            if code == 0:
                shutil.rmtree(folder, ignore_errors=True)
                make(folder.parent / "made", 61.0).rename(folder)
            elif got_further:
                files.make_folder(folder)
                path = folder / checkpoint.NAME
                files.write(path, path.read_bytes() + b"." if path.exists() else b".")
            del self.waiting[key]
            yield Ended(key, code, "" if code == 0 else f"code {code}")

    def cancel(self) -> None:
        self.cancelled.append(list(self.waiting))
        self.waiting = {}


def see_through(found: Scripted, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Errors by run, empty for finished ones, and the lines about what is tried again."""
    outcomes: list[Outcome] = []
    said: list[str] = []
    recipes = dict.fromkeys(found.attempts, Recipe())
    engine.run(found, recipes, folder, outcomes.append, on_retry=said.append)
    assert len(outcomes) == len(recipes)
    return {own.key: own.error for own in outcomes}, said


def test_a_run_is_given_up_after_three_attempts_and_the_others_finish(tmp_path: Path) -> None:
    found = Scripted({"bad": [(-9, False)] * 3, "good": [(0, True)]})
    errors, said = see_through(found, tmp_path)
    assert errors == {"bad": "code -9 (3 attempts)", "good": ""}
    assert found.submitted == ["bad", "good", "bad", "bad"]
    assert said == ["bad: code -9; it resumes from its last checkpoint"] * 2
    assert found.cancelled == [[]]


def test_a_run_that_gets_further_is_not_given_up(tmp_path: Path) -> None:
    """A machine lost ten times, a code of SIGTERM: each attempt leaves a later checkpoint."""
    attempts: list[tuple[int | None, bool]] = [(None, True), (REQUEUE, True)] * 5
    errors, said = see_through(Scripted({"run": [*attempts, (0, True)]}), tmp_path)
    assert errors == {"run": ""}
    assert len(said) == 10
    stuck: list[tuple[int | None, bool]] = [(None, True), (None, False), (REQUEUE, False)]
    errors, _ = see_through(Scripted({"stuck": stuck}), tmp_path)
    assert errors == {"stuck": "code 75 (3 attempts)"}


def test_bad_input_is_not_tried_again(tmp_path: Path) -> None:
    found = Scripted({"bad": [(REFUSED, False)], "good": [(0, True)]})
    errors, said = see_through(found, tmp_path)
    assert errors == {"bad": "code 2", "good": ""}
    assert said == []


def test_a_folder_that_a_worker_does_not_see_stops_all(tmp_path: Path) -> None:
    found = Scripted({"a": [(INVISIBLE, False)], "b": [(0, True)]})
    with pytest.raises(ValueError, match="code 66"):
        see_through(found, tmp_path)
    assert found.cancelled == [["b"]]


def test_finished_runs_are_not_submitted(tmp_path: Path) -> None:
    found = Scripted({"a": [(0, True)]})
    see_through(found, tmp_path)
    again = Scripted({"a": []})
    errors, _ = see_through(again, tmp_path)
    assert errors == {"a": ""}
    assert again.submitted == []


def job(folder: Path, recipe: Recipe, key: str = "run") -> script.Job:
    return script.jobs_of({key: recipe}, folder, Resources())[key]


@pytest.mark.slow
def test_a_worker_runs_what_is_in_the_folder(tmp_path: Path) -> None:
    """The same bits as in this process; and what it said stands in a log."""
    own = job(tmp_path, TINY)
    before = collect([tmp_path])
    assert [run.result for run in before] == [None], "a report reads it before it begins"
    assert Attempt(own).run() == (0, "")
    result = experiments.run(TINY, tmp_path / "here")
    found = record.Record(own.folder, TINY).result()
    assert found is not None
    assert found.weights_sha256 == result.weights_sha256
    assert "epoch   1" in own.log.read_text()
    assert Attempt(own).run() == (0, ""), "finished"
    assert not list(own.folder.glob(f".*{files.DRAFT}"))


def test_a_worker_says_why_a_run_is_refused(tmp_path: Path) -> None:
    own = job(tmp_path, TINY)
    path = own.folder / RECIPE
    path.write_text(path.read_text().replace('"limit": 60', '"limit": 5'))
    code, reason = Attempt(own).run()
    assert code == REFUSED
    assert "exceeds the 5 training images" in reason


def test_a_worker_that_does_not_see_the_folder(tmp_path: Path) -> None:
    own = job(tmp_path, TINY)
    own.folder.rename(tmp_path / "elsewhere")
    code, reason = Attempt(own).run()
    assert code == INVISIBLE
    assert f"{own.folder} is not visible on" in reason
    assert not own.folder.exists()


def test_a_worker_waits_for_a_run_that_another_process_still_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = job(tmp_path, TINY)
    handle = files.lock(own.folder)
    monkeypatch.setattr("bgn_lab.engines.worker.LOCKED", 0.1)
    code, reason = Attempt(own).run()
    files.unlock(handle)
    assert code == 1
    assert "being worked on by another process" in reason
    assert not own.log.exists()


@pytest.mark.slow
def test_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the list does its run, from another folder too; bash reads the array."""
    monkeypatch.chdir(tmp_path)
    recipes = {"a": TINY, "it's b": TINY}
    own = script.Script(Resources(cores=2, memory=1.5, hours=2.5, partition="gpu"), 7)
    outcomes: list[Outcome] = []
    engine.run(own, recipes, Path("out"), outcomes.append)
    assert outcomes == []
    assert own.note.startswith("2 runs wait to be started: sbatch out/jobs/array.sh")
    array = tmp_path / "out" / "jobs" / script.ARRAY
    subprocess.run(["bash", "-n", array], check=True)
    text = array.read_text()
    for line in (
        "array=0-1%7", "cpus-per-task=2", "mem=1500M", "time=150", "partition=gpu",
        "signal=TERM@120", "requeue",
    ):  # fmt: skip
        assert f"#SBATCH --{line}\n" in text
    # what a task of the array runs, with srun and its options left out
    task = text[text.index("commands=(") :].replace("srun --cpus-per-task=2 ", "echo ")
    printed = subprocess.run(
        ["bash", "-c", task], capture_output=True, text=True, check=True,
        env={"SLURM_ARRAY_TASK_ID": "1"},
    ).stdout  # fmt: skip
    commands = (tmp_path / "out" / "jobs" / script.COMMANDS).read_text().splitlines()
    assert printed.strip() == f"bash -c {commands[1]}"
    threads, *words = shlex.split(commands[1])
    assert threads == "OMP_NUM_THREADS=2"
    assert words[-1] == str(tmp_path / "out" / "it's b")
    subprocess.run(["bash", "-c", commands[1]], check=True, cwd="/", stdout=subprocess.DEVNULL)
    engine.run(own, recipes, Path("out"), outcomes.append)
    assert [found.key for found in outcomes] == ["it's b"]
    assert own.note.startswith("1 runs")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "cloud"], "--engine"),
        (["--address", "10.0.0.1:6379"], "address='10.0.0.1:6379' has no effect with"),
        (["--engine", "ray", "--partition", "gpu"], "expected engine script or slurm"),
        (["--engine", "ray", "--processes", "2", "--cores", "3"], "expected a multiple of 2"),
        (["--engine", "slurm", "--memory", "0"], "memory=0.0 is out of range"),
    ],
)
def test_options_that_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare.parse(words)


def test_processes_share_workers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="processes=2 cannot share simulate_workers=1 of a"):
        script.Script(Resources(processes=2, cores=2)).submit({"a": TINY}, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert EngineOptions("ray", processes=2).cores is None


@pytest.mark.parametrize(
    ("cores", "free", "devices", "device", "expected"),
    [
        (8, 64e9, 0, "cpu", 8),
        (8, 3.5e9, 0, "cpu", 3),
        (8, 0.2e9, 0, "cpu", 1),
        (8, None, 0, "cpu", 8),
        (8, 64e9, 4, "cuda", 4),
        (8, 64e9, 4, "cuda:1", 1),
        (8, 64e9, 0, "mps", 1),
    ],
)
def test_as_many_runs_as_the_machine_has_room_for(
    monkeypatch: pytest.MonkeyPatch,
    cores: int, free: float | None, devices: int, device: str, expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(local.cores, "count", lambda: cores)
    monkeypatch.setattr(local.memory, "available_memory", lambda: free)
    monkeypatch.setattr("torch.cuda.device_count", lambda: devices)
    assert local.jobs_for(None, device) == expected
    assert local.jobs_for(5, device) == 5


def test_devices_as_the_user_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert local.devices("cuda") == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5e6f")
    assert local.devices("cuda") == ["3", "GPU-5e6f"]
    assert local.devices("cuda:0") == local.devices("cpu") == []

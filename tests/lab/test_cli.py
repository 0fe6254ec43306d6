"""The command line: help that helps, errors that name what is wrong, runs that go on."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch import nn

import bgn
from bgn_lab import cli, experiments
from bgn_lab.commands import compare, run
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.system import files
from bgn_lab.training.result import Result
from bgn_lab.training.task import Task
from tests.lab.report_runs import make, result
from tests.lab.small_runs import TINY


def test_overview_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    assert "bgn compare" in capsys.readouterr().out
    for name, (_, _, examples) in cli.COMMANDS.items():
        with pytest.raises(SystemExit) as exit:
            cli.main([*name.split(), "--help"])
        assert exit.value.code == 0
        text = capsys.readouterr().out
        assert f"usage: bgn {name}" in text
        assert all(example[:60] in text for example in examples)
        assert "STR" not in text
        assert not {"(default: None)", "(default: )"} & set(re.findall(r"\(default: \w*\)", text))


def test_bgn_alone_shows_what_people_want(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the three with something to paste: the commands are accepted, the code runs."""
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    headings = [line for line in shown.splitlines() if line.endswith(":")]
    assert [line.split()[0] for line in headings] == ["Compare", "Convert,", "Run"]
    pasted = [line.strip() for line in shown.splitlines() if line.startswith("  ")]
    commands = [shlex.split(line)[1:] for line in pasted if line.startswith("bgn ")]
    assert len(commands) == 4
    for words in commands:
        assert words[0] == "compare"
        compare.parse(words[1:])
    code = [line for line in pasted if not line.startswith("bgn ")]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    names = {"model": model}
    exec("\n".join(code), names)
    assert isinstance(model[1], bgn.BatchGroupNorm2d)
    x = torch.randn(2, 3, 8, 8)
    assert torch.allclose(names["plain"](x), model(x), atol=1e-5)


def test_help_shows_the_options_that_have_an_effect(capsys: pytest.CaptureFixture[str]) -> None:
    for name in experiments.names():
        with pytest.raises(SystemExit):
            cli.main(["run", name, "--help"])
        text = capsys.readouterr().out
        assert "None" not in text
        assert "normalizer options" in text
        assert ("--milestones" in text) == (not name.endswith("-search") and name != "nas-train")
        plain = ("classification", "fewshot", "adaptation", "segmentation")
        assert ("--nesterov" in text) == (name in plain)
        assert "--test " not in text


def test_help_of_a_group_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["run"], ["run", "--help"]):
        assert cli.main(words) == 0
        text = capsys.readouterr().out
        assert "bgn run adversarial" in text
        assert "bgn compare" not in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("bgn ")


def test_a_closed_pipe() -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "bgn_lab", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()  # before anything is written
    assert child.wait(60) == 141
    assert child.stderr.read() == b""
    child.stderr.close()


def test_a_pipe_that_closes_while_a_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "runs", 70.0, norm="bn")

    class Closed(StringIO):
        def write(self, text: str) -> int:  # noqa: ARG002
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(BrokenPipeError):  # for which `bgn_lab.__main__` has an exit code
        cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "classification", "--out", "file"], "--out file is a file; expected a folder"),
        (["run", "classification", "--data", "nowhere.npz"], "nowhere.npz"),
        (["run", "classification", "--data", "no/where"], "--data 'no/where' is neither a folder"),
        (["run", "adaptation", "--weights", "no.pth"], "no.pth does not exist"),
        (
            ["run", "classification", "--device", "foo"],
            "--device 'foo' is not known; expected auto",
        ),
        (
            ["run", "adaptation", "--warmup", "2"],
            "--warmup 2.0 has no meaning for --schedule 'inverse'",
        ),
        (["run", "adversarial", "--preset", "papr"], "did you mean 'paper'?"),
        (["report", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_paths_that_are_not_there(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert cli.main(words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is written"


def test_a_run_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [
        "run",
        "classification",
        "--norm",
        "bgn",
        "--groups",
        "auto",
        "--width",
        "4",
        "--stride",
        "4",
        "--limit",
        "100",
    ]
    assert cli.main([*words, "--epochs", "1", "--batch-size", "8"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("fashion-mnist-resnet8-bgnauto-b8-s0-")
    recipe = json.loads((folder / "recipe.json").read_text())
    assert (recipe["groups"], recipe["instances"], recipe["limit"]) == ("auto", None, 100)
    assert "BGN, auto, batch 8" in capsys.readouterr().out


def test_a_foreign_recipe_does_not_reach_the_terminal_raw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = {"experiment": "classification", "\x1b[31mred": 1}
    (tmp_path / "recipe.json").write_text(json.dumps(foreign))
    assert cli.main(["run", "classification", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "fields that are unknown here: \\x1b[31mred" in said
    assert "\x1b" not in said


def test_names_of_domains_are_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = replace(Result.from_json(result(Recipe(), 50.0, 100, 1)), seconds=1.0)
    monkeypatch.setattr(run, "_train", lambda *_: over)
    monkeypatch.setattr(Task, "result_line", lambda *_: "50 % of [/webcam]")
    assert cli.main(["run", "classification", "--out", str(tmp_path / "run")]) == 0
    assert "50 % of [/webcam], 1 s" in capsys.readouterr().out


def of_another_torch(about: Path) -> None:
    """Make a run's record that of a session with another torch."""
    about.write_text(about.read_text().replace(f'"torch": "{torch.__version__}"', '"torch": "0.1"'))


def test_compare_then_nothing_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["compare", *TINY, "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "[6/6]" in text
    assert {"results.json", "table.md", "accuracy.png", "curves.png", "report.html", "runs"} <= {
        path.name for path in out.iterdir()
    }
    (found,) = json.loads((out / "results.json").read_text())["comparisons"]
    assert {(c["normalizer"], len(c["runs"])) for c in found["cells"]} == {
        ("BN", 2),
        ("BGN, paper's G", 2),
        ("BGN, G = 8", 2),
    }
    runs = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    of_another_torch(next(out.rglob("about.json")))
    assert cli.main(["compare", *TINY, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "6 of 6 runs are there already" in said
    assert "1 of 6 runs were made with torch 0.1" in said
    assert {path: path.stat().st_mtime_ns for path in out.rglob("result.json")} == runs


def test_interrupted_and_gone_on(tmp_path: Path) -> None:
    """After SIGINT to the parent alone, as from a scheduler, what is done stays.

    A report is there, and no process is left.
    """
    command = [
        sys.executable,
        "-m",
        "bgn_lab",
        "compare",
        *TINY,
        "--seeds",
        "4",
        "--out",
        str(tmp_path),
    ]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=_hear_interrupts,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("[2/12]"):
            break
    workers = _children(child.pid)
    child.send_signal(signal.SIGINT)
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait(60) == 130
    assert "Run the same command to resume." in rest
    done = {
        path.parent.name: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/result.json")
    }
    assert 2 <= len(done) < 12
    assert (tmp_path / "report.html").exists()
    assert workers
    deadline = time.monotonic() + 30
    while (
        any(Path(f"/proc/{worker}").exists() for worker in workers) and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"{len(done)} of 12 runs are there already" in again.stdout
    assert len(list(tmp_path.glob("runs/*/result.json"))) == 12
    for name, when in done.items():
        assert (tmp_path / "runs" / name / "result.json").stat().st_mtime_ns == when


def _hear_interrupts() -> None:
    """Where the tests run in the background, children would inherit that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _children(pid: int) -> list[int]:
    if not Path("/proc").exists():
        pytest.skip("processes are looked up in /proc")
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_compares_into_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    handle = files.lock(tmp_path)
    try:
        assert cli.main(["compare", *TINY, "--out", str(tmp_path)]) == 2
    finally:
        files.unlock(handle)
    assert "is being worked on by another process" in capsys.readouterr().err.replace("\n", " ")


def test_out_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["compare", *TINY, "--out", str(tmp_path / "file")]) == 2
    assert "is a file; expected a folder" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.slow  # tests/lab/test_local_engine.py kills one in less time
def test_a_process_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bgn_lab", "compare", *TINY, "--out", str(tmp_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert child.stdout is not None
    next(line for line in child.stdout if line.startswith("[1/6]"))
    training = [
        pid
        for pid in _children(child.pid)
        if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(training[0], signal.SIGKILL)
    rest = child.stdout.read()
    child.stdout.close()
    assert child.wait(60) == 1
    assert "a process was killed, perhaps for lack of memory" in rest
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stdout + again.stderr


def test_a_run_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["compare", *TINY, "--seeds", "1", "--out", str(out)]) == 0
    broken = next((out / "runs").glob("*-bn-*"))
    (broken / "result.json").unlink()
    (broken / "checkpoint.safetensors").write_bytes(b"no such thing")
    capsys.readouterr()
    assert cli.main(["compare", *TINY, "--seeds", "2", "--out", str(out)]) == 1
    text = capsys.readouterr().out.replace("\n", " ")
    assert "failed: BN, batch 8, seed 0: ValueError:" in text
    assert "is damaged" in text
    assert len(list(out.glob("runs/*/result.json"))) == 5


def test_without_the_laboratorys_packages() -> None:
    code = (
        "import sys; sys.modules['tyro'] = None; sys.argv[1:] = ['compare']; "
        "import bgn_lab.__main__ as m; sys.exit(m.main())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "pip install 'batch-group-norm[lab]'" in found.stderr

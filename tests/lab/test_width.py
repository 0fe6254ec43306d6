"""Tables of every command fit a terminal of 80 columns, and lose nothing there."""

from pathlib import Path

import pytest
from rich.console import Console

from bgn_lab import cli, paper
from bgn_lab.commands import searches, tune
from bgn_lab.commands.tune import Standing
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.nas.choice import Candidate
from tests.lab.report_runs import grid, make
from tests.lab.small_runs import TINY

WIDTH = 80
LONG = "my_package.normalizers.of_mine:AClassWhoseNameIsLongerThanOneLineOfATable"


def fits(text: str, *words: str) -> None:
    """Check that no line is too long, that nothing was cut off, and that some words are there."""
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "…" not in text
    for word in words:
        assert word in text


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def test_what_bgn_alone_and_its_help_show(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["run"], ["data"]):
        assert cli.main(words) == 0
        fits(capsys.readouterr().out)


@pytest.mark.parametrize("name", [*cli.COMMANDS])
def test_help_of_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([*name.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    commands = ("bgn ", "torchrun ")  # to paste, as long as they are
    fits("\n".join(line for line in lines if not line.strip().startswith(commands)), "--help")


def test_report_with_partners_and_all_batch_sizes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for size in paper.BATCH_SIZES:
        for seed in (0, 1):
            for norm in ("bn", "bgn+ws+renorm+center", LONG):
                make(tmp_path / "runs", 70.0 + seed, norm=norm, batch_size=size, seed=seed)
    assert cli.main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out.replace(str(tmp_path), "")
    fits(shown, "BGN + WS + renorm + centered, paper's G", "70.5±0.7")
    assert shown.count("70.5±0.7") == 3 * 7


def test_report_with_failures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = grid(tmp_path / "runs")
    assert cli.main(["report", str(runs), "--out", str(tmp_path / "out")]) == 0
    fits(capsys.readouterr().out.replace(str(tmp_path), ""), "78.5 ± 0.7", "+11.5 ± 6.4")


@pytest.mark.slow
def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", *TINY, "--norms", "bn", "bgn+ws", "--groups", "paper", "--seeds", "1"]
    assert cli.main([*words, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out.partition("\nresnet8")[2].partition("\n1 of")[0]
    fits(shown.rpartition("runs are done")[0], "BGN + WS, paper's G")


@pytest.mark.parametrize("norm", ["bn", "bgn+ws+renorm+center", LONG])
def test_tune(norm: str, capsys: pytest.CaptureFixture[str]) -> None:
    standings = [Standing(Recipe(norm=norm, lr=0.000123), 0.71), Standing(Recipe(norm="bn"), None)]
    Console().print(tune._table("round 1: 33 candidates, 1000 epochs", standings, 200))
    fits(capsys.readouterr().out, "0.000123", "71.0 ± 3.2", "did not converge")


def test_searches(capsys: pytest.CaptureFixture[str]) -> None:
    accuracies = {1: 0.5, 1000: None}
    made = [Candidate(n, "", {}, validation_accuracy=own) for n, own in accuracies.items()]
    Console().print(searches._table(made, 200))
    fits(capsys.readouterr().out, "50.0 ± 3.5", "did not converge")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--latency-us", "30", "--bandwidth-gb", "12"],
        ["--seeds", "12", "--groups", "1", "512"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("rate", ["rate=1000,overhead=20", "rate=1,overhead=20"])
def test_plan(words: list[str], rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = ["--times", f"gpu:{rate}", "--price", "2500", "--decode-rate", "300"]
    assert cli.main(["plan", *device, *words]) == 0
    fits(capsys.readouterr().out, "device-")

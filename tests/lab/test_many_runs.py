"""Hundreds of runs: memory, the live table, the report; and studies that are killed or meet."""

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from benchmarks import many_runs
from rich.console import Console

from bgn_lab import experiments
from bgn_lab.commands import progress
from bgn_lab.commands.progress import RunsProgress
from bgn_lab.engines.engine import Outcome
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.grid import Grid
from bgn_lab.report.collect import Run, read, scan
from bgn_lab.report.write import write
from bgn_lab.training import record
from tests.lab.browser import BROWSER, look
from tests.lab.report_runs import about

ROWS = ("bn", "in", "ln", "gn", "pn", "gbgn", "bgn", "bn+ws", "bgn+ws", "bgn+renorm")
GRID = Grid(norms=ROWS, batch_sizes=(2, 4, 8, 16, 32), groups=(2,), seeds=10)
ONE = Recipe(width=2, stride=2, limit=60, batch_size=8, epochs=1, norm="bn")


def grid() -> list[Recipe]:
    """Five hundred recipes of one comparison."""
    values = {"width": 2, "stride": 2, "limit": 60, "epochs": 1, "batch_size": 8}
    found = [made for made in GRID.recipes(Recipe, values) if isinstance(made, Recipe)]
    assert len(found) == 500
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A real run."""
    folder = tmp_path_factory.mktemp("one") / "run"
    experiments.run(ONE, folder)
    return read(folder)


def copied(one: Run, recipe: Recipe, runs: Path) -> Path:
    """The run as if it had been another recipe's, written as runs write."""
    folder = runs / recipe.key("data")
    assert one.result is not None
    accuracy = random.Random(recipe.key()).uniform(0.5, 0.8)
    with mock.patch.object(record, "about", about), record.Record(folder, recipe) as made:
        for metrics in one.metrics:
            made.add(metrics)
        made.finish(replace(one.result, status="finished", reason="", test_accuracy=accuracy))
    shutil.copy(one.folder / record.DATA, folder)
    return folder


def test_the_live_table_is_made_anew_only_after_runs(
    one: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = {recipe.key(): recipe for recipe in grid()}
    done: dict[str, Run] = {}
    made, file = 0, io.StringIO()
    compare = progress.compare

    def counted(runs: list[Run]) -> object:
        nonlocal made
        made += 1
        return compare(runs)

    monkeypatch.setattr(progress, "compare", counted)
    console = Console(file=file, force_terminal=True, width=100, height=40)
    with RunsProgress(console, recipes, done) as shown:
        for _ in range(50):
            shown.refresh()
        assert made == 1, "nothing was over"
        key, recipe = next(iter(recipes.items()))
        done[key] = replace(one, recipe=recipe)
        shown.over(Outcome(key, recipe, one.result))
        shown.took = 0.0
        shown.refresh()
        assert made == 2
        done |= {key: replace(one, recipe=recipe) for key, recipe in recipes.items()}
        shown.took = 100.0
        shown.refresh()
        assert made == 2, "it takes long, so it stays for a while"
        console.file = io.StringIO()
        shown.took = 0.0
        shown.refresh()
        assert shown.live is not None
        lines = console.render_lines(shown.live.renderable, pad=False)
    text = "\n".join("".join(part.text for part in line) for line in lines)
    assert text.startswith("500/500 runs")
    assert len(lines) <= 40, "it fits a terminal"
    assert max(map(len, text.splitlines())) <= 100
    assert all(name in text for name in ("BN", "BGN + WS", "BGN + renorm"))


@pytest.mark.slow
def test_a_report_of_five_hundred_runs(one: Run, tmp_path: Path) -> None:
    for recipe in grid():
        copied(one, recipe, tmp_path / "runs")
    begin = time.process_time()
    runs, damaged = scan([tmp_path / "runs"])
    assert (len(runs), damaged) == (500, [])
    (found,) = write(runs, tmp_path / "out")
    assert time.process_time() - begin < 10
    assert len(found.labels) == len(ROWS)
    page = tmp_path / "out" / "report.html"
    assert page.stat().st_size < 1e6
    if BROWSER is None:
        pytest.skip("needs Chromium")
    script = """const t = page.performance.timing;
      return {ms: t.loadEventEnd - t.navigationStart, wide: root.scrollWidth,
              high: box(page.document.body)[3], rows: all("table tr").length,
              small: all("table td").filter(e => parseFloat(style(e).fontSize) < 11).length}"""
    # the fastest of some: other programs may be at work on this machine
    seen = [look(tmp_path / "out", script, real_time=True) for _ in range(3)]
    assert min(one["ms"] for one in seen) < 2000
    assert seen[0]["wide"] <= 1280, "nothing is wider than the window"
    assert seen[0]["small"] == 0, "letters that can be read"
    assert seen[0]["rows"] < 200, "runs of one kind are one row"
    assert seen[0]["high"] < 20_000


@pytest.mark.slow
def test_memory_stays_flat(tmp_path: Path) -> None:
    child, terminal = many_runs.start(many_runs.words(tmp_path, seeds=6, jobs=2))
    seen = many_runs.watch(child, terminal, tmp_path / "out", minutes=10, every=0.2)
    assert child.returncode == 0
    assert seen.done[-1] >= 50
    begun = next(i for i, done in enumerate(seen.done) if done > 10)
    last = max(i for i, done in enumerate(seen.done) if done < 60)
    assert seen.driver_mb[last] - seen.driver_mb[begun] < 10
    assert seen.workers_mb[last] - seen.workers_mb[begun] < 60
    assert not any(map(many_runs.is_alive, seen.everyone))


def begun(words: list[str], **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "bgn_lab", *words], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True, **options,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


def wait(what: str, until: float, condition: object) -> None:
    end = time.monotonic() + until
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_driver_leaves_nobody_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words, out = many_runs.words(tmp_path, seeds=2, jobs=2), tmp_path / "out"
    child = begun(words)
    wait("some runs", 240, lambda: len([*out.glob("runs/*/result.json")]) > 3)
    workers = many_runs.descendants(child.pid)
    assert len(workers) >= 2
    child.kill()
    child.communicate()
    wait("no orphans", 30, lambda: not any(map(many_runs.is_alive, workers)))
    done = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    again = begun(words)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == 0, output
    assert f"{len(done)} of 20 runs are there already" in output
    assert all(path.stat().st_mtime_ns == before for path, before in done.items())
    assert len([*out.glob("runs/*/result.json")]) == 20


@pytest.mark.slow
def test_two_studies_into_one_folder(tmp_path: Path) -> None:
    """At once: one of them works, the other says why it does not. Killed, the next one works."""
    words, out = many_runs.words(tmp_path, seeds=2, jobs=1), tmp_path / "out"
    both = [begun(words), begun(words)]
    wait("one gives up", 240, lambda: any(child.poll() is not None for child in both))
    loser = next(child for child in both if child.poll() is not None)
    winner = next(child for child in both if child is not loser)
    output, _ = loser.communicate()
    assert loser.returncode == 2, output
    assert f"{out} is being worked on by another process" in " ".join(output.split())
    wait("a run", 240, lambda: any(out.glob("runs/*/metrics.jsonl")))
    os.killpg(winner.pid, signal.SIGKILL)
    winner.communicate()
    third = begun(words)  # at once: a killed process leaves no lock
    output, _ = third.communicate(timeout=600)
    assert third.returncode == 0, output
    assert len(scan([out / "runs"])[0]) == 20
    # another comparison beside it, one after the other: folders of runs have names of their own
    other = begun([*words, "--epochs", "2"])
    output, _ = other.communicate(timeout=600)
    assert other.returncode == 0, output
    runs, damaged = scan([out / "runs"])
    assert (len(runs), damaged) == (40, [])

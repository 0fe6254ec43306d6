"""Folders that are damaged, foreign or hostile: a report names them and goes on.

Nothing of them reaches the terminal raw.
"""

import copy
import json
import os
import shutil
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bgn_lab.cli import main
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.experiments.fewshot.task import FewShotRecipe
from bgn_lab.report import figures, page, text
from bgn_lab.report.collect import collect, read, scan
from bgn_lab.report.comparison import compare
from bgn_lab.report.write import write
from bgn_lab.system import files
from bgn_lab.system.printable import printable
from tests.lab.report_runs import make, result

FILES = ("recipe.json", "about.json", "metrics.jsonl", "result.json", "data.json")
HOSTILE = "\x1b[31m$\\frac$ \u202e<b>|\udcff\n"
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, 1e308, 2**80, "", "nan", HOSTILE, "x" * 3000, [], [[]], {},
    {"a": [None]},
)  # fmt: skip
TEXTS: tuple[bytes, ...] = (
    b"", b"{", b"[]", b"null", b"3", b'"text"', b"{}", b"NaN", b'{"epoch": NaN}',
    b'{"epoch": Infinity}',
    b"[" * 100_000, b'{"a": ' * 50_000, b'{"lr": 1' + b"0" * 5000 + b"}", b"\x00\xff\xfe binary",
    '{"norm": "bn"}'.encode("utf-16"), b'{"norm": "bn", "flavor": "new in version 9"}\n',
)  # fmt: skip
GONE = object()


def changed(value: Any) -> Iterator[Any]:
    """The value with one part of it, at any depth, replaced or removed; of lists the first item."""
    parts = value if isinstance(value, dict) else {0: value[0]} if value else {}
    for name in parts:
        for other in (*VALUES, GONE, *changed_part(parts[name])):
            made = copy.deepcopy(value)
            if other is GONE:
                del made[name]
            else:
                made[name] = other
            yield made


def changed_part(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        yield from changed(value)


def mutations(path: Path) -> Iterator[bytes]:
    whole = path.read_bytes()
    yield from TEXTS
    yield from (whole[: len(whole) * i // 7] for i in range(1, 7))
    yield whole + whole
    if path.suffix == ".jsonl":
        first, *rest = whole.splitlines(keepends=True)
        for made in changed(json.loads(first)):
            yield json.dumps(made).encode() + b"\n" + b"".join(rest)
    else:
        for made in changed(json.loads(whole)):
            yield json.dumps(made).encode()


def few_shot(folder: Path) -> Path:
    """A finished run whose result has episodes."""
    folder.mkdir(parents=True)
    recipe = FewShotRecipe(episodes=3, epochs=5)
    found = result(recipe, 70.0, 100, 1) | {"test_1": 0.7, "test_5": 0.8}
    found["episodes"] = {"test_1": [0.6, 0.7, 0.8], "test_5": [0.7, 0.8, 0.9]}
    (folder / "recipe.json").write_text(json.dumps(recipe.to_json()))
    (folder / "about.json").write_text('{"command": ["bgn"], "git": null}')
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "train_accuracy": 0.5}\n')
    (folder / "result.json").write_text(json.dumps(found))
    return folder


@pytest.mark.parametrize("kind", ["classification", "fewshot"])
@pytest.mark.parametrize("name", FILES)
def test_no_damage_breaks_a_report(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (
        make(tmp_path / "runs", 70.0, norm="bgn")
        if kind == "classification"
        else few_shot(tmp_path / "runs/one")
    )
    (made / "data.json").write_text('{"fingerprint": "0123456789abcdef", "train": [1, "00"]}')
    # pictures as files take seconds: every 60th is drawn
    monkeypatch.setattr(figures, "accuracies", lambda *_, **__: None)
    monkeypatch.setattr(figures, "curves", lambda *_, **__: None)
    console = Console(width=80, file=StringIO(), color_system=None)
    named = 0
    for number, content in enumerate(mutations(made / name)):
        (made / name).write_bytes(content)
        runs, damaged = scan([tmp_path / "runs"])
        assert len(runs) + len(damaged) == 1, content[:200]
        for one in damaged:
            named += 1
            assert one.path.parent == made
            assert one.path.name in FILES
            assert str(one).isprintable()
        compared = compare(runs)
        for found in compared:
            console.print(text.terminal(found, found.title()))
        for written in (text.markdown(compared, damaged), page.page(compared, damaged)):
            assert all(line.isprintable() for line in written.split("\n")), content[:200]
            written.encode()
        if compared and number % 60 == 0:
            monkeypatch.undo()
            for found in compared:
                files.render_figure(figures.accuracies(found), "svg")
                files.render_figure(figures.curves(found), "svg")
            monkeypatch.setattr(figures, "accuracies", lambda *_, **__: None)
            monkeypatch.setattr(figures, "curves", lambda *_, **__: None)
    assert named > 20
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(line.isprintable() for line in shown.split("\n"))


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_file_is_named(name: str, tmp_path: Path) -> None:
    folder = make(tmp_path, 70.0, norm="bn")
    (folder / name).unlink(missing_ok=True)
    if name in ("recipe.json", "about.json"):
        assert [one.path for one in scan([tmp_path])[1]] == [folder / name]
    os.mkfifo(folder / name)  # reading it would wait for ever
    assert [one.path for one in scan([tmp_path])[1]] == [folder / name]
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    assert [one.path for one in scan([tmp_path])[1]] == [folder / name]


def test_a_damaged_run_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    make(runs, 70.0, norm="bn")
    bad = make(runs, 80.0, norm="gn")
    (bad / "result.json").write_text('{"status": "finished"}')
    assert main(["report", str(runs), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"left out: {bad / 'result.json'} cannot be read: reason=None" in shown
    assert "GN" not in shown
    for name in ("table.md", "report.html", "results.json"):
        written = (out / name).read_text()
        assert f"{bad.name}/result.json" in written
        assert str(tmp_path) not in written  # a report may be published
    with pytest.raises(ValueError, match=r"result\.json cannot be read"):
        collect([runs])  # as studies do, which need all of their runs


def test_without_a_run_that_can_be_read_there_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = make(tmp_path / "runs", 80.0, norm="gn")
    (bad / "about.json").write_text("[")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "no run can be read" in said
    assert str(bad / "about.json") in said
    assert not (tmp_path / "out").exists()


def test_escapes_of_a_foreign_recipe_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "runs", 70.0, norm="bn", model="resnet\x1b[31m$\\frac$")
    broken = make(tmp_path / "runs", 70.0, norm="gn")
    (broken / "recipe.json").write_text('{"\\u001b[2J": 1}')
    shutil.move(broken, broken.with_name("\x1b[2J"))
    about = json.loads((folder / "about.json").read_text()) | {"platform": "\x1b]0;title\x07"}
    (folder / "about.json").write_text(json.dumps(about))
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    for written in (shown.out, shown.err, (tmp_path / "out/table.md").read_text(),
                    (tmp_path / "out/report.html").read_text()):  # fmt: skip
        assert "\x1b" not in written
        assert "\x07" not in written
    assert "resnet\\x1b[31m$\\frac$" in shown.out


def test_data_whose_path_is_no_utf_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = os.fsdecode(b"photos-\xff")
    (tmp_path / odd).mkdir()
    make(tmp_path / odd / "runs", 70.0, norm="bn", data=str(tmp_path / odd))
    out = tmp_path / odd / "out"
    assert main(["report", str(tmp_path / odd / "runs"), "--out", str(out)]) == 0
    assert "photos-\\udcff" in (out / "table.md").read_text()
    assert "photos-\\udcff" in (out / "report.html").read_text()
    assert "photos-\\udcff" in capsys.readouterr().out
    assert json.loads((out / "results.json").read_text())["comparisons"]


@pytest.mark.parametrize(
    "name", ["results.json", "table.md", "report.html", "accuracy.png", "curves-2.png"]
)
def test_files_of_others_are_not_overwritten(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "runs", 70.0, norm="bn")
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("mine")
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 2
    assert name in capsys.readouterr().err
    assert {path.name: path.read_text() for path in out.iterdir()} == {name: "mine"}
    command = ["compare", "--epochs", "1", "--seeds", "1", "--norms", "bn", "--batch-sizes", "8"]
    assert main([*command, "--limit", "40", "--out", str(out)]) == 2
    assert [path.name for path in out.iterdir()] == [name]  # refused before it trains


def test_an_earlier_report_is_overwritten_whole(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    make(runs, 70.0, norm="bn")
    make(runs, 70.0, norm="bn", lr=0.05)
    write(collect([runs]), out)
    (out / "accuracy-plan.png").write_text("mine")
    (out / "notes.txt").write_text("mine")
    shutil.rmtree(next(path.parent for path in runs.rglob("recipe.json")))
    write(collect([runs]), out)
    assert {path.name for path in out.iterdir()} == {
        "results.json", "table.md", "report.html", "accuracy.png", "curves.png",
        "accuracy-plan.png", "notes.txt",
    }  # fmt: skip


def test_an_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "runs", 70.0, norm="bn")
    (tmp_path / "out").write_text("mine")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 2
    assert "expected a folder" in capsys.readouterr().err


def test_other_versions_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path, 70.0, norm="bn")
    values = Recipe(norm="bn").to_json()
    (folder / "recipe.json").write_text(json.dumps({**values, "flavor": 1}))
    with pytest.raises(ValueError, match=r"recipe\.json cannot be read.*flavor"):
        read(folder)


def test_printable_texts_stay() -> None:
    assert printable("naïve 日本 – 5 × 5") == "naïve 日本 – 5 × 5"

"""What a report writes: tables, pictures, the page, and the command that makes them."""

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from bgn_lab import paper
from bgn_lab.cli import main
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.report import figures, palette, styles, text
from bgn_lab.report.collect import Run, collect
from bgn_lab.report.comparison import Comparison, compare
from bgn_lab.report.page import page
from bgn_lab.report.verdict import verdict
from bgn_lab.report.write import write
from bgn_lab.training.result import Result
from tests.lab.report_runs import GRID, UNFINISHED, grid, make, result

VOID = {"meta", "img", "source", "br", "link", "input"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``runs`` and, made by the command, ``out``."""
    here = tmp_path_factory.mktemp("report")
    assert main(["report", str(grid(here / "runs")), "--out", str(here / "out")]) == 0
    return here


@pytest.fixture(scope="module")
def found(folder: Path) -> Comparison:
    (one,) = compare(collect([folder]))
    return one


class Page(HTMLParser):
    """Checks that tags are balanced; gathers attributes, tables and text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.links: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.words = ""
        self.feed(source)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs)
        self.links += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "srcset", "xlink:href", "action", "data")
        ]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script", "title"} & set(self.stack[2:]):
            self.words += data
        if {"td", "th"} & set(self.stack):
            self.tables[-1][-1][-1] += data if self.stack[-1] in ("td", "th") else f" / {data}"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def sections(markdown: str) -> dict[str, list[list[str]]]:
    """Tables of a Markdown text by heading; every row must be as long as the header."""
    tables: dict[str, list[list[str]]] = {}
    heading = ""
    for line in markdown.splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|"):
            tables.setdefault(heading, []).append(cells(line))
    for rows in tables.values():
        assert {len(row) for row in rows} == {len(rows[0])}
        assert set(rows.pop(1)) == {"---"}
    return tables


def test_markdown(folder: Path, found: Comparison) -> None:
    written = (folder / "out/table.md").read_text()
    tables = sections(written)
    header, *rows = tables["resnet8 on fashion-mnist, 3 epochs"]
    assert header == ["normalizer", "batch 2", "to BN", "batch 8", "to BN", "batch 32", "to BN"]
    by_label = {row[0]: row[1:] for row in rows}
    assert tuple(by_label) == found.labels
    assert by_label["BN"] == ["67.0 ± 1.4", "", "80.5 ± 0.7", "", "84.2 ± 0.3", ""]
    assert by_label["PN"][:2] == ["10.2 (did not converge: 2 of 2)", ""]
    assert by_label["GBGN"][:2] == ["80.0 (did not converge: 1 of 2 (11.0))", "+14.0"]
    assert by_label["BGN, G = 8"][:2] == ["78.5 ± 0.7", "**+11.5 ± 6.4**"]
    assert found.caption() in written
    assert len(tables[text.BECAME]) == 9
    theirs = tables["Paper, table 2: not measured here"]
    assert theirs[0] == ["normalizer", *paper.IMAGENET.columns]
    assert theirs[7] == [
        "BGN",
        "77.008",
        "77.104",
        "76.784",
        "76.624",
        "76.208",
        "76.336",
        "76.096",
    ]


@pytest.mark.parametrize("source", paper.TABLES.values(), ids=list(paper.TABLES))
def test_tables_of_the_paper_keep_their_numbers(source: paper.Table) -> None:
    header, rows = text.printed(source)
    assert {len(row) for row in rows} == {len(header)}
    printed = sorted(float(cell) for row in rows for cell in row[1:] if cell != "did not converge")
    assert printed == sorted(
        value for row in source.rows.values() for value in row if value is not None
    )


def test_results_agree(folder: Path, found: Comparison) -> None:
    (written,) = json.loads((folder / "out/results.json").read_text())["comparisons"]
    assert written["title"] == found.title()
    assert len(written["cells"]) == 24
    for cell in written["cells"]:
        own = found.at(cell["normalizer"], cell["place"])
        failed = own.failed_accuracy
        assert cell["accuracy_of_not_converged"] == (None if failed is None else vars(failed))
        assert cell["accuracy"] == (None if own.accuracy is None else vars(own.accuracy))
        assert cell["difference_to_bn"] == (
            None if own.difference is None else vars(own.difference)
        )
        assert (cell["did_not_converge"], cell["standing"]) == (own.failed, own.standing)
        assert [run["result"] for run in cell["runs"]] == [
            run.to_json()["result"] for run in own.runs
        ]
        assert [run["folder"] for run in cell["runs"]] == [run.folder.name for run in own.runs]


def test_results_name_files_but_not_where_they_lay(tmp_path: Path) -> None:
    recipe = Recipe(data=str(_archive(tmp_path / "mine.npz")))
    about = {"command": ["bgn", "compare", "--data", str(tmp_path / "mine.npz"), "--out", "runs"]}
    found = Result.from_json(result(recipe, 50.0, 9, 1))
    run = Run(tmp_path / "one", recipe, about, (), found)
    write([run], tmp_path / "out")
    (written,) = json.loads((tmp_path / "out" / "results.json").read_text())["comparisons"]
    (own,) = written["cells"][0]["runs"]
    assert own["recipe"]["root"] == "mine.npz"
    assert own["about"]["command"] == ["bgn", "compare", "--data", "mine.npz", "--out", "runs"]
    for name in ("results.json", "table.md", "report.html"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()


def _archive(path: Path) -> Path:
    path.touch()
    return path


@pytest.mark.parametrize("width", [80, 120])
def test_terminal_shows_everything(width: int, found: Comparison) -> None:
    console = Console(record=True, width=width, file=StringIO())
    console.print(text.terminal(found, found.title()))
    shown = console.export_text()
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width
    assert found.title() in shown
    for label in found.labels:
        assert label in shown
    for cell in found.cells.values():
        assert cell.text() in shown
        assert cell.difference_text() in shown
        assert all(word in shown for word in cell.note().split())


def test_terminal_with_the_batch_sizes_of_the_paper(tmp_path: Path) -> None:
    for size in paper.BATCH_SIZES:
        make(tmp_path, 70.0, norm="bn", batch_size=size)
        make(tmp_path, 71.5 if size > 4 else 9.0, norm="bgn", batch_size=size)
    console = Console(record=True, width=80, file=StringIO())
    (one,) = compare(collect([tmp_path]))
    console.print(text.terminal(one, "[b]with brackets[/b]"))
    shown = console.export_text()
    assert "…" not in shown
    assert "[b]with brackets[/b]" in shown
    assert (shown.count("70.0"), shown.count("71.5"), shown.count("+1.5")) == (7, 5, 5)


def test_the_grid_of_the_paper_fits_a_terminal(tmp_path: Path) -> None:
    """Ten G at seven batch sizes with two seeds are shown whole at 80 columns.

    Differences have a second table.
    """
    for size in paper.BATCH_SIZES:
        for seed in (0, 1):
            make(tmp_path, 70.0 + seed, norm="bn", batch_size=size, seed=seed)
            for groups in (2**i for i in range(10)):
                low = size == 2 and groups == 1
                accuracy = 9.0 + seed if low else 80.0 + 2 * seed
                make(tmp_path, accuracy, norm="bgn", groups=groups, batch_size=size, seed=seed)
    (one,) = compare(collect([tmp_path]))
    console = Console(record=True, width=80, file=StringIO())
    console.print(text.terminal(one, one.title()))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    headers = [
        line.split() for line in lines if line.split()[-7:] == [*"248", "16", "32", "64", "128"]
    ]
    assert headers == [["batch", "size", *headers[0][-7:]], ["to", "BN", *headers[0][-7:]]]
    rows = [line for line in lines if line.startswith("BGN, G = ")]
    order = [int(line.split()[3]) for line in rows]
    assert order == [2**i for i in reversed(range(10))] * 2
    assert rows[0].split()[4:] == ["81.0±1.4"] * 7
    assert rows[9].split()[4:] == ["9.5±0.7", *["81.0±1.4"] * 6]
    assert rows[10].split()[4:] == ["+10.5±0.7"] * 7 or rows[10].split()[4:] == ["+10.5"] * 7
    assert any(line.split() == ["✗2/2"] for line in lines)
    assert text.measured(one).count("to BN") == 1  # Markdown, too, has two tables


def test_without_bn_there_is_no_column_to_bn(tmp_path: Path) -> None:
    make(tmp_path, 60.0, norm="bgn", groups=1)
    make(tmp_path, 62.0, norm="bgn", groups=2)
    assert "to BN" not in text.measured(*compare(collect([tmp_path])))
    make(tmp_path, 61.0, norm="bn")
    assert "to BN" in text.measured(*compare(collect([tmp_path])))


def test_what_is_not_run_yet_is_a_dot(tmp_path: Path) -> None:
    make(tmp_path, UNFINISHED, norm="bn")
    console = Console(record=True, width=80, file=StringIO())
    console.print(text.terminal(*compare(collect([tmp_path]))))
    assert re.search(r"BN +·", console.export_text())


@pytest.mark.parametrize("name", ["accuracy.png", "curves.png"])
def test_pictures_show_something(name: str, folder: Path) -> None:
    with Image.open(folder / "out" / name) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[0] > 400
    assert pixels.shape[1] > 1000
    assert 0.01 < (pixels < 250).any(axis=2).mean() < 0.5
    for norm in paper.NORMALIZERS:
        wanted = [int(palette.LIGHT[norm][i : i + 2], 16) for i in (1, 3, 5)]
        assert (pixels == wanted).all(axis=2).sum() > 50, norm


def drawn(axes: object) -> list[str]:
    """Labels of lines that have points."""
    lines = axes.lines  # type: ignore[attr-defined]
    return [line.get_label() for line in lines if len(line.get_xdata())]


def test_accuracy_has_a_line_for_each_normalizer(found: Comparison) -> None:
    ours, theirs = figures.by_batch_size(found).axes
    assert len(ours.containers) == len(found.labels)  # with error bars
    points = {bars.get_label(): len(bars.lines[0].get_xdata()) for bars in ours.containers}
    assert points == {label: 2 if label == "PN" else 3 for label in found.labels}
    # what did not converge, on the axis with its accuracy: PN and GBGN at 2
    crosses = [line for line in ours.lines if line.get_marker() == "x" and len(line.get_xdata())]
    assert len(crosses) == 2
    assert [note.get_text() for note in ours.texts] == ["10.2", "11.0"]
    assert drawn(theirs) == list(paper.NORMALIZERS.values())
    assert all(len(line.get_xdata()) == 7 for line in theirs.lines)
    keys = [
        [label.get_text() for label in axes.get_legend().get_texts()] for axes in (ours, theirs)
    ]
    assert keys == [[*found.labels, "did not converge"], list(paper.NORMALIZERS.values())]
    assert "Paper" in theirs.get_title()
    assert "Measured" in ours.get_title()


def test_curves_have_a_panel_for_each_batch_size(found: Comparison) -> None:
    axes = figures.curves(found).axes  # training accuracy above validation accuracy
    assert [panel.get_title() for panel in axes] == [f"batch {n}" for n in (2, 8, 32, 2, 8, 32)]
    assert [drawn(panel) for panel in axes] == [list(found.labels)] * 6
    names = dict.fromkeys(panel.get_ylabel() for panel in axes if panel.get_ylabel())
    assert list(names) == ["training accuracy, %", "validation accuracy, %"]
    for panel in (axes[0], axes[3]):
        lines = {line.get_label(): line for line in panel.lines}
        # the mean of both seeds, of the one that converged, and of those that did not
        assert list(lines["BN"].get_ydata()) == pytest.approx([67 / 3, 134 / 3, 67])
        assert list(lines["GBGN"].get_ydata()) == pytest.approx([80 / 3, 160 / 3, 80])
    assert list(lines["PN"].get_ydata()) == pytest.approx([3.4, 6.8, 10.2])


def test_curves_without_validation_images(tmp_path: Path) -> None:
    make(tmp_path, 70.0, norm="bn", validation=0.0)
    figure = figures.curves(*compare(collect([tmp_path])))
    assert figure.axes[0].get_ylabel() == "training accuracy, %"
    assert drawn(figure.axes[0]) == ["BN"]


def test_curves_of_many_batch_sizes_go_below_each_other(tmp_path: Path) -> None:
    for size in paper.BATCH_SIZES:
        make(tmp_path, 70.0, norm="bn", batch_size=size)
    figure = figures.curves(*compare(collect([tmp_path])))
    assert sum(axes.get_visible() for axes in figure.axes) == 14
    assert figure.get_figwidth() < 11


def test_page_is_well_formed_and_complete(folder: Path, found: Comparison) -> None:
    seen = Page((folder / "out/report.html").read_text())
    measured = {row[0]: row[1:] for row in seen.tables[0]}
    assert tuple(measured) == ("normalizer", *found.labels)
    assert measured["BN"] == ["67.0 ± 1.4", "80.5 ± 0.7", "84.2 ± 0.3"]
    assert measured["GBGN"][0] == "80.0 / +14.0 / did not converge: 1 of 2 (11.0)"
    assert measured["PN"][0] == "10.2 / did not converge: 2 of 2"
    assert [["BGN", *(f"{value:.3f}" for value in paper.IMAGENET.rows["bgn"])]] == [
        r for r in seen.tables[-2] if r[0] == "BGN"
    ]
    assert ["1", "75.360", "76.096"] in seen.tables[-1]
    assert seen.words.count("Paper, table") == 2 + 2  # headings, and captions for the blind
    assert seen.words.count("not measured here") == 2 + 2 + 1
    assert "the loss became nan in epoch 1" in seen.words
    assert found.reading() in seen.words
    assert found.caveats() in seen.words
    assert all(str(sentence) in seen.words for sentence in verdict(found))


def test_page_loads_nothing(folder: Path) -> None:
    source = (folder / "out/report.html").read_text()
    assert Page(source).links == []
    assert not re.search(r"url\(|@import|<script[^>]|<link|<img|<iframe", source)
    assert set(re.findall(r"https?://[^\s\"<]*", source)) == {"http://www.w3.org/2000/svg"}


def test_only_the_pages_own_script_may_run(folder: Path) -> None:
    """The policy of the page names the hash of its one script, and allows no connection."""
    source = (folder / "out/report.html").read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", source, re.DOTALL)
    code = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', source)
    assert html.unescape(policy) == (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{code}'"
    )


def test_page_of_the_same_runs_is_the_same(folder: Path, found: Comparison) -> None:
    assert page([found]) == (folder / "out/report.html").read_text()


def test_text_is_escaped(tmp_path: Path) -> None:
    name = '<td><b>$\\frac$ & "y" [red]|'  # at once HTML, TeX, rich's markup and Markdown
    (tmp_path / name).mkdir()
    run = make(tmp_path / "runs", 70.0, norm="bn", data=str(tmp_path / name))
    about = json.loads((run / "about.json").read_text())
    (run / "about.json").write_text(json.dumps({**about, "command": ["bgn", "<td><i>"]}))
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    seen = Page((tmp_path / "out/report.html").read_text())
    assert f"resnet8 on {name}, 3 epochs" in seen.words
    assert ["command", "bgn '<td><i>'"] in seen.tables[-3]
    markdown = (tmp_path / "out/table.md").read_text()
    assert "<td>" not in markdown
    assert len(sections(markdown)) == 5


def test_several_comparisons(tmp_path: Path) -> None:
    for lr in (0.1, 0.05):
        make(tmp_path / "runs", 70.0, norm="bn", lr=lr)
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "results.json", "table.md", "report.html", "accuracy-1.png", "accuracy-2.png",
        "curves-1.png", "curves-2.png",
    }  # fmt: skip
    words = Page((tmp_path / "out/report.html").read_text()).words
    assert "3 epochs, lr 0.1" in words
    assert "3 epochs, lr 0.05" in words
    assert len(json.loads((tmp_path / "out/results.json").read_text())["comparisons"]) == 2


def test_command_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "runs", 71.3, norm="bgn")
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"BGN, paper's G +71\.3", shown)
    assert "1,800 training" in shown
    assert f"report: {tmp_path / 'out/report.html'}" in shown


def test_command_says_what_it_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path / "a", 70.0, norm="bn")
    make(tmp_path / "b", 70.0, norm="bn")
    assert (
        main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out")])
        == 0
    )
    assert "1 of 2 runs" in capsys.readouterr().out


def test_command_refuses_what_it_cannot_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty, missing, out = tmp_path / "empty", tmp_path / "missing", tmp_path / "out"
    empty.mkdir()
    damaged = make(tmp_path / "runs", 70.0, norm="bn")
    (damaged / "recipe.json").write_text('{"norm": ')
    for place, said in (
        (empty, str(empty)),
        (missing, str(missing)),
        (tmp_path / "runs", str(damaged / "recipe.json")),
    ):
        assert main(["report", str(place), "--out", str(out)]) == 2
        assert said in capsys.readouterr().err
    assert main(["report", "--out", str(out)]) == 2
    assert "FOLDERS is empty" in capsys.readouterr().err
    assert not out.exists()


def test_all_normalizers_have_a_style() -> None:
    assert set(styles.SHAPES) == set(paper.NORMALIZERS.values())
    assert set(paper.NORMALIZERS) < set(palette.LIGHT)
    assert {norm for norm, _ in GRID} == set(paper.NORMALIZERS)

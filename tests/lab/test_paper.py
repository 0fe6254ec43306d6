"""The paper's numbers: consistent, and, where its source is at hand, the printed ones.

BGN_PAPER names the LaTeX source of the paper.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bgn import paper_groups
from bgn.factory import NAMES, PAPER_CHANNEL_GROUPS
from bgn_lab import paper
from bgn_lab.paper import TABLES, Table

Cells = dict[tuple[str, str], float | None]
every_table = pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))


def numbers(table: Table) -> Iterator[float]:
    return (value for row in table.rows.values() for value in row if value is not None)


@every_table
def test_a_table_is_complete(table: Table) -> None:
    assert all(len(row) == len(table.columns) for row in table.rows.values())
    assert all(0 < value < 100 for value in numbers(table))
    assert table.title
    assert table.unit.startswith("%")
    assert table.note


def test_the_tables_have_the_numbers_of_the_paper() -> None:
    assert [table.number for table in TABLES.values()] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "table", [t for t in TABLES.values() if t is not paper.GROUP_SWEEP], ids=lambda t: t.slug
)
def test_rows_are_normalizers_in_order(table: Table) -> None:
    # the paper tries GBGN on ImageNet alone
    assert list(table.rows) == [
        n for n in paper.NORMALIZERS if n != "gbgn" or table is paper.IMAGENET
    ]


def test_what_did_not_converge() -> None:
    failed = {
        (table.slug, name)
        for table in TABLES.values()
        for name, row in table.rows.items()
        if None in row
    }
    nas = {("darts", "in"), ("darts", "ln"), ("manas", "in"), ("manas", "ln"), ("manas", "pn")}
    assert failed == {*nas, ("adversarial", "pn")}


@pytest.mark.parametrize("table", [paper.GROUP_SWEEP, paper.IMAGENET], ids=lambda t: t.slug)
def test_imagenet_accuracies_are_of_6250_images(table: Table) -> None:
    thousandths = [round(1000 * value) for value in numbers(table)]
    assert thousandths == pytest.approx([1000 * value for value in numbers(table)])
    assert all(value % 16 == 0 for value in thousandths)


@pytest.mark.parametrize(
    ("name", "mean"), [("ln", 75.191), ("gn", 76.073), ("pn", 74.167), ("bgn", 76.594)]
)
def test_imagenet_means_are_those_of_the_text(name: str, mean: float) -> None:
    row = [value for value in paper.IMAGENET.rows[name] if value is not None]
    assert round(sum(row) / len(row), 3) == mean


def test_the_sweep_and_the_comparison_share_their_runs() -> None:
    for size in ("128", "2"):
        sweep = paper.GROUP_SWEEP.row(size)
        assert paper.IMAGENET.row("bgn")[size] == sweep[str(paper.GROUPS[int(size)])]
        assert paper.IMAGENET.row("gbgn")[size] == sweep["32"]  # why the note doubts the text


@pytest.mark.parametrize("name", paper.ADAPTATION.rows)
def test_means_of_adaptation(name: str) -> None:
    *tasks, mean = (value for value in paper.ADAPTATION.rows[name] if value is not None)
    assert round(sum(tasks) / len(tasks), 1) == mean


def test_settings_are_those_of_the_library() -> None:
    assert tuple(paper.NORMALIZERS) == NAMES
    assert {size: paper_groups(size) for size in paper.BATCH_SIZES} == paper.GROUPS
    assert paper.EXPERIMENT_GROUPS["imagenet"] == {
        "gn": PAPER_CHANNEL_GROUPS,
        "gbgn": PAPER_CHANNEL_GROUPS,
    }


def test_settings_fit_together() -> None:
    assert tuple(paper.LEARNING_RATES) == tuple(paper.GROUPS) == paper.BATCH_SIZES
    linear = {
        size: 0.1 * (paper.WORKERS * size) / 256 for size in paper.BATCH_SIZES
    }  # Goyal et al.
    assert linear == pytest.approx(dict(paper.LEARNING_RATES))
    assert paper.MILESTONES[-1] < paper.EPOCHS
    assert set(paper.EXPERIMENT_GROUPS) == set(TABLES) - {"group-sweep"}
    for groups in (paper.ADAPTATION_GROUPS, paper.ADAPTATION_GROUPS_OF_SOURCE):
        assert (*groups, "mean") == paper.ADAPTATION.columns


@pytest.fixture(scope="module")
def latex() -> str:
    file = os.environ.get("BGN_PAPER")
    if not file or not Path(file).is_file():
        pytest.skip(f"BGN_PAPER={file or ''} is not the LaTeX source of the paper")
    return Path(file).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def source(latex: str) -> str:
    return re.sub(r"(?<!\\)%.*", "", latex)  # comments hold rows that are not printed


def plain(cell: str) -> str:
    """What a cell prints: without bold face, rules, dollars and spans."""
    cell = re.sub(r"\\(hline|toprule|midrule|bottomrule|cline\{[^}]*\})", "", cell)
    cell = re.sub(r"\\(?:multirow|multicolumn)\{[^}]*\}\{[^}]*\}", "", cell)
    return re.sub(r"\\textbf|\\bf|[{}$]", "", cell).strip()


def number(text: str) -> float | None:
    return None if text == "-" else float(text)


def printed_cells(tabular: str) -> Cells:
    """(row, column) -> number of one tabular environment."""
    body = re.sub(r"^\{[^}]*\}", "", tabular)
    lines = [[plain(cell) for cell in line.split("&")] for line in body.split(r"\\")]
    # an upper header spans columns, the last line has rules alone: both have fewer cells
    width = max(len(line) for line in lines)
    header, *rows = (line for line in lines if len(line) == width)
    assert len(rows) >= 1
    return {
        (row[0], column): number(cell)
        for row in rows
        for column, cell in zip(header[1:], row[1:], strict=True)
    }


def named_as_here(cells: Cells) -> Cells:
    """Normalizers by short name and as rows, which in half of the tables are columns."""
    short = {printed: name for name, printed in paper.NORMALIZERS.items()}
    if any(column in short for _, column in cells):
        cells = {(column, row): value for (row, column), value in cells.items()}
    return {
        (short.get(row, row), re.sub(r"(?<=.) accuracy$", "", column)): value
        for (row, column), value in cells.items()
    }


@every_table
def test_a_table_is_the_printed_one(table: Table, source: str) -> None:
    tabulars = re.findall(r"\\begin\{tabular\}(.*?)\\end\{tabular\}", source, re.DOTALL)
    assert len(tabulars) == len(TABLES)
    ours = {
        (name, column): value for name in table.rows for column, value in table.row(name).items()
    }
    assert ours == named_as_here(printed_cells(tabulars[table.number - 1]))


def listed(pattern: str, source: str) -> list[float]:
    """The numbers of a list that the text gives, such as ``4, 2 and 1``."""
    found = re.search(pattern, source)
    assert found, pattern
    return [float(text) for text in re.findall(r"\d+(?:\.\d+)?", found[1])]


def test_settings_are_those_of_the_text(source: str) -> None:
    sizes = r"batch sizes of 128, 64, 32, 16, 8, 4 and 2"
    assert listed(rf"{sizes} are ([\d., and]+) respectively", source) == list(
        paper.LEARNING_RATES.values()
    )
    assert listed(rf"group number in BGN is set to be ([\d, and]+) for {sizes}", source) == list(
        paper.GROUPS.values()
    )
    assert listed(r"(\d+) GPUs are used in all ImageNet", source) == [paper.WORKERS]
    assert listed(r"(\d+) epochs are trained with", source) == [paper.EPOCHS]
    assert listed(r"decayed by \$10\\times\$ at the ([\dth, and]+) epoch", source) == list(
        paper.MILESTONES
    )
    assert listed(r"learning rate decayed by \$(\d+)\\times\$", source) == [
        1 / paper.LEARNING_RATE_FACTOR
    ]
    assert [
        10**-power for power in listed(r"decay of \$10\^\{-(\d)\}\$ is applied to all", source)
    ] == [paper.WEIGHT_DECAY]
    assert "the median accuracy in the last five epochs" in source
    assert paper.MEDIAN_EPOCHS == 5


def test_groups_are_those_of_the_text(source: str) -> None:
    groups = paper.EXPERIMENT_GROUPS
    pair = r"For GN, we use[^.]*?\\rm (G=\d+\$ in .*? while for BGN, we use \$\\rm G=\d+)\$"
    darts, manas = (re.findall(r"G=(\d+)", text) for text in re.findall(pair, source))
    assert [int(G) for G in darts] == list(groups["darts"].values())
    assert [int(G) for G in manas] == list(groups["manas"].values())
    assert (
        listed(r"G=(\d+)\$ is used in GN and BGN", source)
        == [groups["adversarial"]["gn"]]
        == [groups["adversarial"]["bgn"]]
    )
    assert listed(r"group number in GN is set as (\d+)", source) == [groups["imagenet"]["gn"]]
    assert listed(r"group number for channel is set as (\d+)", source) == [
        groups["imagenet"]["gbgn"]
    ]
    tasks = paper.ADAPTATION_GROUPS
    assert listed(r"For tasks da .*?, wa and wd, .*? is set to (\d+)\.", source) * 3 == [
        tasks[t] for t in ("da", "wa", "wd")
    ]
    assert listed(r"For ad and aw, we reduce .*? to (\d+ and \d+)", source) == [
        tasks[t] for t in ("ad", "aw")
    ]
    assert listed(r"For dw, .*? is set to (\d+)\.", source) == [tasks["dw"]]


def test_groups_that_the_source_comments_out(latex: str) -> None:
    assert listed(r"% G ([\d& ]+)", latex) == list(paper.ADAPTATION_GROUPS_OF_SOURCE.values())

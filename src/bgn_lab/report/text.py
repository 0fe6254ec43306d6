"""Tables as Markdown and for the terminal."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from bgn_lab import paper
from bgn_lab.report.cells import became
from bgn_lab.report.comparison import BASELINE, Comparison, named
from bgn_lab.training.run import NOT_CONVERGED

BECAME = "What each normaliser became in this network"
BECAME_NOTE = (
    "What it acts as in all layers, the number of groups G and the values that share a statistic."
)
PAPER_TABLES = {  # those that belong beside an experiment's comparison
    "classification": (paper.IMAGENET, paper.GROUP_SWEEP),
    "adversarial": (paper.ADVERSARIAL,),
    "fewshot": (paper.FEWSHOT,),
    "adaptation": (paper.ADAPTATION,),
    "nas-train": (paper.DARTS, paper.MANAS),
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    | --- | --- |
    | 1 | x\\|y |
    """
    lines = [header, ["---"] * len(header), *rows]
    return (
        "\n".join(
            "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
        )
        + "\n"
    )


def markdown(comparisons: Sequence[Comparison]) -> str:
    """All comparisons, then the paper's own figures."""
    parts = ["# Normalisers compared\n"]
    for found in comparisons:
        parts += [
            f"## Measured: {html.escape(found.title(), quote=False)}\n",
            measured(found),
            found.caption() + "\n",
        ]
        rows = (
            [label, *(became(found.cells[label, column]) for column in found.firsts)]
            for label in found.labels
        )
        header = ["normaliser", *map(named, found.places)]
        parts += [f"### {BECAME}\n", table(header, rows), BECAME_NOTE + "\n"]
    return "\n".join([*parts, *map(theirs, beside(comparisons))])


def beside(comparisons: Iterable[Comparison]) -> list[paper.Table]:
    """The paper's tables of the experiments that occur."""
    return [
        source
        for name in dict.fromkeys(found.setting.experiment for found in comparisons)
        for source in PAPER_TABLES[name]
    ]


def measured(found: Comparison) -> str:
    """Accuracy and difference to BN."""
    header = ["normaliser"]
    for column in found.columns:
        header += [column.title, f"to {BASELINE}"]
    rows = []
    for label in found.labels:
        row = [label]
        for column in found.columns:
            cell = found.cells[label, column]
            note = f" ({cell.note()})" if cell.note() else ""
            row += [
                f"**{cell.text()}**" if cell.best else cell.text() + note,
                cell.difference_text(),
            ]
        rows.append(row)
    return table(header, rows)


def printed(source: paper.Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of the paper, with as many decimals as it prints; a broad one is turned on its side.

    >>> header, rows = printed(paper.GROUP_SWEEP)
    >>> header, rows[1]
    (['G', 'batch size 128', 'batch size 2'], ['256', '75.936', '66.000'])
    """
    values = [value for row in source.rows.values() for value in row if value is not None]
    decimals = max(len(str(value).partition(".")[2]) for value in values)
    rows = [
        [
            paper.NORMALISERS.get(name, name),
            *("did not converge" if value is None else f"{value:.{decimals}f}" for value in row),
        ]
        for name, row in source.rows.items()
    ]
    if len(source.columns) <= len(rows):
        return [source.row_header, *source.columns], rows
    turned = [list(row) for row in zip(source.columns, *(row[1:] for row in rows), strict=True)]
    return [source.column_header, *(f"{source.row_header} {row[0]}" for row in rows)], turned


def paper_title(source: paper.Table) -> str:
    """Nobody shall take it for a measurement made here."""
    return f"The paper's own figures (its table {source.number}), not measured here"


def paper_subtitle(source: paper.Table) -> str:
    """What the columns and cells are."""
    by = f" by {source.column_header}" if source.column_header else ""
    return f"{source.title}: {source.unit}{by}."


def theirs(source: paper.Table) -> str:
    """A table of the paper, labelled as such."""
    return f"## {paper_title(source)}\n\n{paper_subtitle(source)}\n\n{table(*printed(source))}\n{source.note}\n"


def terminal(found: Comparison, title: str = "") -> RichTable:
    """The comparison for the terminal: below each accuracy the difference to BN."""
    heading = Text(title, style="bold") if title else None
    made = RichTable(title=heading, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    made.add_column("normaliser", no_wrap=True)
    for column in found.columns:
        made.add_column(
            column.title, justify="right", overflow="fold", max_width=len(NOT_CONVERGED)
        )
    for label in found.labels:
        row = [Text(label)]
        for column in found.columns:
            cell = found.cells[label, column]
            style = (
                "bold green"
                if cell.best
                else "red"
                if cell.failed
                else ""
                if cell.results
                else "dim"
            )
            row.append(Text(cell.text() if cell.results else "·", style=style))
            row[-1].append(
                "".join(f"\n{line}" for line in (cell.difference_text(), cell.note()) if line),
                style="not bold dim",
            )
        made.add_row(*row)
    return made

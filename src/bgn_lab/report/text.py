"""Tables as Markdown and for the terminal."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from bgn_lab import experiments, paper
from bgn_lab.report.cells import AHEAD, BEHIND, Cell, became
from bgn_lab.report.collect import Damaged
from bgn_lab.report.grid import BASELINE, Column, Comparison, named
from bgn_lab.report.verdict import advice, verdict
from bgn_lab.training.result import NOT_CONVERGED

TITLE = "Normalizers compared"
MARK = "Written by bgn report, which overwrites it."
BECAME = "What each row is in this network"
BECAME_NOTE = (
    "Cells say what a row acts as, its numbers of groups G, and how many values share a statistic."
)
BESIDE = "Measured beside the paper"
LEFT_OUT = "Left out because they cannot be read"
MARKS = {AHEAD: "bold green", BEHIND: "bold magenta", "": "dim"}  # of differences on a terminal
LONGEST_LABEL = 40  # columns; a name of somebody's own normalizer may take several lines
WIDE = 4  # columns from which on differences to BN have a table of their own


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


def escape(text: str) -> str:
    """Text in which Markdown sees no HTML."""
    return html.escape(text, quote=False)


def markdown(comparisons: Sequence[Comparison], damaged: Sequence[Damaged] = ()) -> str:
    """All comparisons, then the paper's own figures."""
    parts = [f"<!-- {MARK} -->\n", f"# {TITLE}\n"]
    for found in comparisons:
        parts += [
            f"## {escape(found.title())}\n",
            *(f"- {escape(str(sentence))}" for sentence in verdict(found)),
            *([f"\n{line}"] if (line := advice(found)) else []),
            "",
            measured(found),
            escape(found.caption()) + "\n",
        ]
        header, rows = beside(found)
        if rows:
            parts += [f"### {BESIDE}\n", table(header, rows), beside_note(found) + "\n"]
        for own in found.experiment.further(found):
            lines = ([escape(cell) for cell in row] for row in own.rows)
            parts += [f"### {own.title}\n", table(own.header, lines), f"{own.note}\n"]
        kinds = (
            [escape(label), *(became(found.cells[label, column]) for column in found.firsts)]
            for label in found.labels
        )
        header = ["normalizer", *map(named, found.places)]
        parts += [f"### {BECAME}\n", table(header, kinds), BECAME_NOTE + "\n"]
    if damaged:
        listed = "".join(f"- {escape(one.short())}\n" for one in damaged)
        parts += [f"## {LEFT_OUT}\n", listed]
    return "\n".join([*parts, *map(theirs, paper_tables(comparisons))])


def paper_tables(comparisons: Iterable[Comparison]) -> list[paper.Table]:
    """The paper's tables of the experiments that occur."""
    return [
        source
        for name in dict.fromkeys(found.setting.experiment for found in comparisons)
        for source in experiments.get(name).paper_tables
    ]


def measured(found: Comparison) -> str:
    """Accuracy and difference to BN; many columns have the differences in a second table.

    Differences that are more than noise are bold.
    """
    rows = [
        (escape(label), [found.cells[label, c] for c in found.columns]) for label in found.labels
    ]
    titles = [column.title for column in found.columns]
    compared = any(cell.difference for cell in found.cells.values())
    if compared and len(titles) < WIDE:
        header = ["normalizer", *(word for title in titles for word in (title, f"to {BASELINE}"))]
        return table(
            header,
            ([label, *(t for cell in own for t in (_accuracy(cell), _gap(cell)))]
             for label, own in rows),
        )  # fmt: skip
    made = table(["normalizer", *titles], ([label, *map(_accuracy, own)] for label, own in rows))
    if not compared:
        return made
    differences = table(
        [f"difference to {BASELINE}", *titles],
        ([label, *(_gap(cell) for cell in own)] for label, own in rows
         if any(cell.difference for cell in own)),
    )  # fmt: skip
    return f"{made}\n{differences}"


def _accuracy(cell: Cell) -> str:
    return cell.text() + (f" ({cell.note()})" if cell.note() else "")


def _gap(cell: Cell) -> str:
    return f"**{cell.difference_text()}**" if cell.standing else cell.difference_text()


def beside(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """What was measured / what the paper prints, where it prints something; header and rows."""
    columns = [column for column in found.columns if column.place in found.places]
    rows = []
    for label in found.labels:
        own = []
        for column in columns:
            cell, value = found.cells[label, column], found.printed(label, column)
            own.append("" if value is None else f"{cell.text()} / {value:.1f}")
        if any(own):
            rows.append([label, *own])
    return ["measured / paper", *(column.title for column in columns)], rows


def beside_note(found: Comparison) -> str:
    """What the numbers after the stroke are."""
    tables = found.experiment.paper_tables
    numbers = " and ".join(str(table.number) for table in tables)
    which = f"{'table' if len(tables) == 1 else 'tables'} {numbers} ({tables[0].title})"
    return f"The second number is that of the paper's {which}; it was not measured here."


def printed(source: paper.Table) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a table of the paper, with as many decimals as it prints.

    A broad table is transposed.

    >>> header, rows = printed(paper.GROUP_SWEEP)
    >>> header, rows[1]
    (['G', 'batch size 128', 'batch size 2'], ['256', '75.936', '66.000'])
    """
    values = [value for row in source.rows.values() for value in row if value is not None]
    decimals = max(len(str(value).partition(".")[2]) for value in values)
    rows = [
        [
            paper.NORMALIZERS.get(name, name),
            *(NOT_CONVERGED if value is None else f"{value:.{decimals}f}" for value in row),
        ]
        for name, row in source.rows.items()
    ]
    if len(source.columns) <= len(rows):
        return [source.row_header, *source.columns], rows
    turned = [list(row) for row in zip(source.columns, *(row[1:] for row in rows), strict=True)]
    return [source.column_header, *(f"{source.row_header} {row[0]}" for row in rows)], turned


def paper_title(source: paper.Table) -> str:
    """A heading that nobody takes for a measurement made here."""
    return f"Paper, table {source.number}: not measured here"


def paper_subtitle(source: paper.Table) -> str:
    """What the columns and cells are."""
    by = f" by {source.column_header}" if source.column_header else ""
    return f"{source.title}: {source.unit}{by}."


def theirs(source: paper.Table) -> str:
    """A table of the paper, labeled as such."""
    return (
        f"## {paper_title(source)}\n\n{paper_subtitle(source)}\n\n"
        f"{table(*printed(source))}\n{source.note}\n"
    )


@dataclass(frozen=True)
class Terminal:
    """A comparison for the terminal, in a form that fits its width.

    With room, the difference to BN stands below each accuracy. Without, it has a table of its own;
    and tables that are still too wide are cut between columns.
    """

    found: Comparison
    title: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Called by rich."""
        if self.title:
            yield Text(self.title, style="bold")
        full = self._table(self.found.columns, _full, "normalizer")
        if _width(console, options, full) <= options.max_width:
            yield full
            return
        header = "batch size" if self.found.by_batch_size else "normalizer"
        yield from self._cut(console, options, header, _compact)
        if any(cell.short_note() for cell in self.found.cells.values()):
            yield Text(f"✗n/m: n of m runs {NOT_CONVERGED}", style="dim")
        if any(cell.difference for cell in self.found.cells.values()):
            yield Text("")
            whole = self._table(self.found.columns, _difference, f"to {BASELINE}")
            fits = _width(console, options, whole) <= options.max_width
            show = _difference if fits else _mean_difference
            yield from self._cut(console, options, f"to {BASELINE}", show)

    def _cut(
        self, console: Console, options: ConsoleOptions, header: str, show: Callable[[Cell], Text]
    ) -> Iterable[RichTable]:
        """As few tables as the width allows, each with about as many columns."""
        columns = self.found.columns
        for parts in range(1, len(columns) + 1):
            size = -(-len(columns) // parts)
            pieces = [columns[i : i + size] for i in range(0, len(columns), size)]
            made = [self._table(piece, show, header) for piece in pieces]
            if all(_width(console, options, one) <= options.max_width for one in made):
                break
        yield from made

    def _table(
        self, columns: Sequence[Column], show: Callable[[Cell], Text], header: str
    ) -> RichTable:
        full = show is _full
        made = RichTable(
            box=box.SIMPLE_HEAD if full else None, pad_edge=False,
            padding=(0, 1) if full else (0, 1, 0, 0),
            header_style="bold" if full else "bold underline",
        )  # fmt: skip
        made.add_column(header, overflow="fold", max_width=LONGEST_LABEL)
        for column in columns:
            short = str(column.place) if self.found.by_batch_size else column.title
            made.add_column(
                column.title if full else short, justify="right", overflow="fold",
                max_width=len(NOT_CONVERGED) if full else None,
            )  # fmt: skip
        for label in self.found.labels:
            cells = [self.found.cells[label, column] for column in columns]
            rivals = show in (_difference, _mean_difference)
            if not rivals or any(cell.difference for cell in cells):
                made.add_row(Text(label), *map(show, cells))
        return made


def _width(console: Console, options: ConsoleOptions, made: RichTable) -> int:
    return console.measure(made, options=options.update(max_width=1000)).maximum


def terminal(found: Comparison, title: str = "") -> Terminal:
    """The table of the comparison for ``console.print``."""
    return Terminal(found, title)


def show(console: Console, found: Comparison) -> None:
    """Print all of it: title, table, how to read it, and what it says."""
    console.print(terminal(found, found.title()))
    console.print(Text(found.caption(), style="dim"))
    console.print()
    for sentence in verdict(found):
        console.print(Text.assemble((sentence.where, "bold"), f" {sentence.text}"))
    if line := advice(found):
        console.print(Text(line, style="dim"))


def _styled(cell: Cell, space: str) -> Text:
    style = "red" if cell.failed else "" if cell.results else "dim"
    return Text(cell.text(space) if cell.results else "·", style=style)


def _full(cell: Cell) -> Text:
    made = _styled(cell, " ")
    if cell.difference:
        made.append(f"\n{cell.difference_text()}", style=MARKS[cell.standing])
    return made.append(f"\n{cell.note()}" if cell.note() else "", style="dim")


def _compact(cell: Cell) -> Text:
    made = _styled(cell, "") if cell.shown or not cell.results else Text("none", style="red")
    note = f"\n{cell.short_note()}" if cell.failed else ""
    return made.append(note, style="red")


def _difference(cell: Cell) -> Text:
    return Text(cell.difference_text(space=""), style=MARKS[cell.standing])


def _mean_difference(cell: Cell) -> Text:
    """Without the ±, which table.md has."""
    shown = "" if cell.difference is None else f"{cell.difference.mean:+.1f}"
    return Text(shown, style=MARKS[cell.standing])

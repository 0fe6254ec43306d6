"""One page with everything, that opens without a network: what the template shows."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from matplotlib.figure import Figure

from bgn_lab import paper
from bgn_lab.report import figures, text
from bgn_lab.report.cells import Cell, became
from bgn_lab.report.collect import LONGEST, Damaged, Run
from bgn_lab.report.comparison import compared
from bgn_lab.report.grid import Comparison, named
from bgn_lab.system.printable import shorten

PREDICTIONS = "Some test images, their labels and what each row takes them for."
FEW = 5  # columns that fit a phone without scrolling
Table = dict[str, Any]


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def page(
    comparisons: Sequence[Comparison],
    damaged: Sequence[Damaged] = (),
    drawn: Sequence[figures.Drawn] | None = None,
) -> str:
    """The page as HTML.

    ``drawn`` has the pictures of each comparison for a wide screen, if there are some already.
    """
    drawn = drawn or [figures.draw(found) for found in comparisons]
    return _template().render(
        title=text.TITLE,
        mark=text.MARK,
        left_out=text.LEFT_OUT,
        damaged=[one.short() for one in damaged],
        comparisons=[_measured(*both) for both in zip(comparisons, drawn, strict=True)],
        papers=[_theirs(source) for source in text.paper_tables(comparisons)],
    )


def _table(header: Sequence[str], rows: Iterable[Iterable[str]], kind: str = "words") -> Table:
    """A table of plain cells.

    With many columns it scrolls on a phone, rather than breaking every number in two.
    """
    cells = [[{"text": cell, "kind": "", "below": []} for cell in row] for row in rows]
    return _cells(header, cells, kind)


def _cells(header: Sequence[str], rows: Sequence[Sequence[Table]], kind: str) -> Table:
    least = 5 * len(header) if len(header) > FEW and kind != "printed" else 0
    return {"header": list(header), "rows": rows, "kind": kind, "least": least}


def _cell(cell: Cell) -> Table:
    kind = "best" if cell.best else "bad" if cell.failed else "" if cell.results else "none"
    below = [line for line in (cell.difference_text(), cell.note()) if line]
    return {"text": cell.text(), "kind": kind, "below": below}


def _picture(wide: Figure, narrow: Figure, caption: str) -> Table:
    """Both are in the page; the browser shows the one that fits."""
    broad, slim = (
        f"data:image/svg+xml;base64,{b64encode(figures.svg(figure)).decode()}"
        for figure in (wide, narrow)
    )
    return {"wide": broad, "narrow": slim, "caption": caption}


def _measured(found: Comparison, drawn: figures.Drawn) -> dict[str, Any]:
    rows = [
        [
            {"text": label, "kind": "", "below": []},
            *(_cell(found.cells[label, column]) for column in found.columns),
        ]
        for label in found.labels
    ]
    kinds = (
        [label, *(became(found.cells[label, column]) for column in found.firsts)]
        for label in found.labels
    )
    header, beside = text.beside(found)
    theirs = ", and the paper's own figures" if found.experiment.paper_tables else ""
    return {
        "title": f"Measured: {found.title()}",
        "table": _cells(["", *(column.title for column in found.columns)], rows, "measured"),
        "captions": [found.reading(), found.caveats()],
        "pictures": [
            _picture(
                drawn.accuracies,
                figures.accuracies(found, columns=1),
                f"{found.score}: measured{theirs}. Bars: the ± of the table.",
            ),
            _picture(
                drawn.curves,
                figures.curves(found, columns=1),
                "Accuracy after every epoch: mean over the seeds that converged, or over all if"
                " none did.",
            ),
            *([_picture(drawn.own, drawn.own, PREDICTIONS)] if drawn.own else []),
        ],
        "beside": {
            "title": text.BESIDE,
            "note": text.beside_note(found),
            "table": _table(header, beside),
        }
        if beside
        else None,
        "further": [
            {"title": own.title, "note": own.note, "table": _table(own.header, own.rows)}
            for own in found.experiment.further(found)
        ],
        "became": {
            "title": text.BECAME,
            "note": text.BECAME_NOTE,
            "table": _table(["", *map(named, found.places)], kinds),
        },
        "layers": _layers(found),
        "failures": _failures(found),
        "settings": _settings(found),
    }


def _layers(found: Comparison) -> list[tuple[str, Table]]:
    """Every layer of every network; networks that are the same have one table."""
    header = ["layer", "C × H × W", "G", "values per statistic", "acts as"]
    same: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for label, column in product(found.labels, found.firsts):
        for result in found.cells[label, column].results[:1]:
            rows = tuple(
                (
                    row.layer,
                    " × ".join(map(str, row.shape)),
                    str(row.G),
                    f"{row.instances:,}",
                    row.acts_as,
                )
                for row in result.layers
            )
            same.setdefault(rows, []).append(f"{label}, {named(column.place)}")
    return [("; ".join(names), _table(header, rows)) for rows, names in same.items()]


def _failures(found: Comparison) -> Table | None:
    """Why runs count as not converged."""
    rows = [
        [label, named(run.recipe.place), str(run.recipe.seed), run.result.reason]
        for label, column in product(found.labels, found.firsts)
        for run in found.cells[label, column].runs
        if run.failed and run.result is not None
    ]
    return _table(["normalizer", "where", "seed", "why"], rows, "words long") if rows else None


def _settings(found: Comparison) -> Table:
    """The recipe and the machine; where runs differ, all that occurs."""
    hidden = {*compared(found.setting), "root"}
    values: dict[str, dict[str, None]] = {}
    for run in found.runs:
        for name, value in {**run.settings(), **_machine(run)}.items():
            if name not in hidden and value is not None:
                values.setdefault(name, {})[shorten(str(value), LONGEST)] = None
    minutes = sum(result.seconds for result in found.results) / 60
    rows = {
        **{name: _listed(list(own)) for name, own in values.items()},
        "seeds": _listed([str(seed) for seed in found.seeds]),
        "training time": f"{minutes:.1f} min, all runs together",
    }
    return _table(["what", "value"], rows.items(), "words long")


def _listed(values: list[str], most: int = 20) -> str:
    more = len(values) - most
    return "; ".join(values[:most]) + (f"; and {more} more" if more > 0 else "")


def _machine(run: Run) -> dict[str, str]:
    about = {
        name: str(value)
        for name, value in run.about.items()
        if name not in ("command", "git", "time", "sessions")
    }
    if git := run.about.get("git"):
        about["source"] = git["commit"][:12] + (", changed" if git["changed"] else "")
    if run.command:
        about["command"] = shlex.join(run.command)
    return about


def _theirs(source: paper.Table) -> dict[str, Any]:
    (corner, *header), rows = text.printed(source)
    corner = "" if len(rows) == len(source.rows) else corner  # names of normalizers need no header
    return {
        "title": text.paper_title(source),
        "subtitle": text.paper_subtitle(source),
        "note": source.note,
        "table": _table([corner, *header], rows, "printed"),
    }

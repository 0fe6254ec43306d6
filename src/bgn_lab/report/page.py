"""One page with everything, that opens without a network: what the template shows."""

from __future__ import annotations

import hashlib
import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from bgn_lab import paper
from bgn_lab.report import charts, glossary, palette, series, text
from bgn_lab.report.cells import AHEAD, BEHIND, Cell, became
from bgn_lab.report.collect import Damaged, Run
from bgn_lab.report.comparison import compared
from bgn_lab.report.grid import Comparison, named
from bgn_lab.report.verdict import SHOWN, advice, noise, verdict
from bgn_lab.system.printable import shorten
from bgn_lab.system.reading import LONGEST

PREDICTIONS = "Some test images, their labels and what each row takes them for."
FEW = 5  # columns that fit a phone without scrolling
ROOMY = 3  # columns that have room for an accuracy and a difference side by side
HERE = Path(__file__).parent / "templates"
UP, DOWN = "▲ ", "▼ "  # before differences that are more than noise: color is not all they have
Table = dict[str, Any]


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def page(
    comparisons: Sequence[Comparison],
    damaged: Sequence[Damaged] = (),
    own: Sequence[bytes | None] = (),
) -> str:
    """The page as HTML; ``own`` are the pictures of the experiments, as PNG."""
    script = (HERE / "report.js").read_text(encoding="utf-8")
    code = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown = [
        _comparison(number, found, picture)
        for number, (found, picture) in enumerate(zip_longest(comparisons, own), 1)
    ]
    return _template().render(
        title=text.TITLE,
        mark=text.MARK,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        modes={mode: palette.colors(mode) for mode in palette.MODES},
        script=Markup(script),  # nothing else may run
        policy="default-src 'none'; img-src data:; style-src 'unsafe-inline';"
        f" script-src 'sha256-{code}'",
        left_out=text.LEFT_OUT,
        damaged=[one.short() for one in damaged],
        comparisons=shown,
        shown=SHOWN,
        papers=[_theirs(source) for source in text.paper_tables(comparisons)],
    )


def _table(
    name: str, header: Sequence[str], rows: Iterable[Iterable[str]], kind: str = "words"
) -> Table:
    """A table of plain cells.

    With many columns it scrolls on a phone, rather than breaking every number in two.
    """
    cells = [[{"text": cell, "kind": "", "below": []} for cell in row] for row in rows]
    return _cells(name, header, cells, kind)


def _cells(name: str, header: Sequence[str], rows: Sequence[Sequence[Table]], kind: str) -> Table:
    least = 5 * len(header) if len(header) > FEW and kind != "printed" else 0
    return {"name": name, "header": list(header), "rows": rows, "kind": kind, "least": least}


def _cell(cell: Cell) -> Table:
    kind = cell.standing or ("bad" if cell.failed else "" if cell.results else "none")
    arrow = {AHEAD: UP, BEHIND: DOWN, "": ""}[cell.standing]
    difference = cell.difference_text()
    gap = arrow + difference if difference else ""
    below = [cell.note()] if cell.note() else []
    return {"text": cell.text(), "kind": kind, "gap": gap, "below": below}


def _comparison(number: int, found: Comparison, own: bytes | None) -> dict[str, Any]:
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
    columns = [column.title for column in found.columns]
    kind = "measured roomy" if len(columns) <= ROOMY else "measured"
    return {
        "id": f"c{number}",
        "title": found.title(),
        "score": found.score,
        "facts": found.facts(),
        "verdict": verdict(found),
        "advice": advice(found),
        "one_seed": len(found.seeds) == 1,
        "table": _cells(f"{found.score}, %", ["normalizer", *columns], rows, kind),
        "reading": found.reading(),
        "noise": noise(found),
        "caveats": found.caveats(),
        "terms": glossary.key(found.labels),
        "key": series.key(found),
        "pictures": [("", charts.accuracies(found)), *charts.curves(found)],
        "own": "" if own is None else b64encode(own).decode(),
        "predictions": PREDICTIONS,
        "beside": {
            "title": text.BESIDE,
            "note": text.beside_note(found),
            "table": _table(text.BESIDE, header, beside),
        }
        if beside
        else None,
        "further": [
            {"title": one.title, "note": one.note, "table": _table(one.title, one.header, one.rows)}
            for one in found.experiment.further(found)
        ],
        "became": {
            "title": text.BECAME,
            "note": text.BECAME_NOTE,
            "table": _table(text.BECAME, ["normalizer", *map(named, found.places)], kinds),
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
    return [
        ("; ".join(names), _table("; ".join(names), header, rows)) for rows, names in same.items()
    ]


def _failures(found: Comparison) -> Table | None:
    """Why runs count as not converged."""
    rows = [
        [label, named(run.recipe.place), str(run.recipe.seed), run.result.reason]
        for label, column in product(found.labels, found.firsts)
        for run in found.cells[label, column].runs
        if run.failed and run.result is not None
    ]
    header = ["normalizer", "where", "seed", "why"]
    return _table("Runs that did not converge", header, rows, "words long") if rows else None


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
    return _table("Settings", ["what", "value"], rows.items(), "words long")


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
        "title": f"Paper, table {source.number}",
        "subtitle": text.paper_subtitle(source),
        "note": source.note,
        "table": _table(text.paper_title(source), [corner, *header], rows, "printed"),
    }

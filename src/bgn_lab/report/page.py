"""One page with everything, that opens without a network."""

from __future__ import annotations

import shlex
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from itertools import product

from matplotlib.figure import Figure

from bgn_lab import paper
from bgn_lab.report import figures, text
from bgn_lab.report.cells import Cell, became
from bgn_lab.report.collect import Run
from bgn_lab.report.comparison import COMPARED, Comparison, named

NARROW = "40rem"
_STYLE = """
:root { color-scheme: light; --ink: #1d2129; --soft: #596070; --line: #d8dce3; --mark: #fff3c9; --bad: #a3262a; --grey: #f3f4f8; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 66rem; font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
body { color: var(--ink); background: #fff; }
h1 { font-size: 1.5rem; line-height: 1.2; margin: 0 0 .6rem; }
h2 { font-size: 1.15rem; line-height: 1.3; margin: 2rem 0 .6rem; } h1 + section > h2, .theirs h2 { margin-top: 0; }
h3 { font-size: 1rem; margin: 1.8rem 0 .4rem; } p { margin: .5rem 0; }
.caption { color: var(--soft); font-size: .9rem; max-width: 48rem; } figcaption.caption { margin-top: .3rem; }
figure { margin: 1.6rem 0; } img { display: block; max-width: 100%; height: auto; }
details { margin: .6rem 0; } details details { margin-left: 1rem; } summary { cursor: pointer; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { padding: .3rem .5rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; } thead th { border-bottom: 2px solid var(--ink); }
td small { display: block; color: var(--soft); font-weight: 400; font-size: .85em; }
td.best { background: var(--mark); font-weight: 700; } td.bad { color: var(--bad); } td.none { color: var(--soft); }
.measured { table-layout: fixed; }
.words th, .words td { text-align: left; font-size: .9rem; } .long td:last-child { overflow-wrap: anywhere; }
td:first-child { text-wrap: balance; }
.theirs { background: var(--grey); padding: .8rem 1rem; border-left: 4px solid var(--soft); margin-top: 2rem; }
.printed { width: auto; min-width: 50%; }
@media (max-width: NARROW) {
  body { padding: .8rem; font-size: 15px; }
  table, .words td, .words th { font-size: .8rem; line-height: 1.35; } th, td { padding: .3rem .15rem; }
  .theirs { padding: .7rem .5rem; } .printed { font-size: .7rem; } .printed th, .printed td { padding: .3rem .1rem; }
}
""".replace("NARROW", NARROW)


def page(comparisons: Sequence[Comparison]) -> str:
    """The page as HTML."""
    body = [
        "<h1>Normalisers compared</h1>",
        *map(_measured, comparisons),
        *map(_theirs, text.beside(comparisons)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Normalisers compared</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _td(content: str, kind: str = "", *below: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<td{attribute}>{escape(content)}{''.join(f'<small>{escape(line)}</small>' for line in below if line)}</td>"


def _table(header: Sequence[str], rows: Iterable[Iterable[str]], kind: str) -> str:
    """Of cells that are HTML already. With many columns it scrolls on a phone, rather than breaking every number in two."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    least = (
        f' style="min-width: {5 * len(header)}rem"' if len(header) > 5 and kind != "printed" else ""
    )
    return f'<div class="wide"><table class="{kind}"{least}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _plain(header: Sequence[str], rows: Iterable[Iterable[str]], kind: str = "words") -> str:
    return _table(header, (map(_td, row) for row in rows), kind)


def _cell(cell: Cell) -> str:
    kind = "best" if cell.best else "bad" if cell.failed else "" if cell.results else "none"
    return _td(cell.text(), kind, cell.difference_text(), cell.note())


def _picture(wide: Figure, narrow: Figure, caption: str) -> str:
    """Both are in the page; the browser shows the one that fits."""
    broad, slim = (
        f"data:image/svg+xml;base64,{b64encode(figures.svg(figure)).decode()}"
        for figure in (wide, narrow)
    )
    source = f'<source media="(max-width: {NARROW})" srcset="{slim}">'
    image = f'<img src="{broad}" alt="{escape(caption)}">'
    return f'<figure><picture>{source}{image}</picture><figcaption class="caption">{escape(caption)}</figcaption></figure>'


def _details(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _measured(found: Comparison) -> str:
    rows = (
        [_td(label), *(_cell(found.cells[label, column]) for column in found.columns)]
        for label in found.labels
    )
    header = ["", *map(named, found.places)]
    turned = (
        [label, *(became(found.cells[label, column]) for column in found.firsts)]
        for label in found.labels
    )
    parts = [
        f"<section><h2>Measured: {escape(found.title())}</h2>",
        _table(["", *(column.title for column in found.columns)], rows, "measured"),
        f'<p class="caption">{escape(found.reading())}</p><p class="caption">{escape(found.caveats())}</p>',
        _picture(
            figures.accuracies(found),
            figures.accuracies(found, columns=1),
            "Test accuracy: measured, and the paper's own figures. Bars: what stands behind the ± of the table.",
        ),
        _picture(
            figures.curves(found),
            figures.curves(found, columns=1),
            "Accuracy after every epoch, mean over the seeds that converged, or over all where none did.",
        ),
        f'<h3>{text.BECAME}</h3><p class="caption">{text.BECAME_NOTE}</p>',
        _plain(header, turned),
        _layers(found),
        _failures(found),
        _settings(found),
        "</section>",
    ]
    return "\n".join(parts)


def _layers(found: Comparison) -> str:
    """Layer by layer, folded away."""
    parts = []
    for label, column in product(found.labels, found.firsts):
        for result in found.cells[label, column].results[:1]:
            rows = (
                [
                    r["layer"],
                    " × ".join(map(str, r["shape"])),
                    str(r["G"]),
                    f"{r['instances']:,}",
                    r["acts_as"],
                ]
                for r in result["normalisers"]
            )
            header = ["layer", "C × H × W", "G", "values per statistic", "acts as"]
            parts.append(_details(f"{label}, {named(column.place)}", _plain(header, rows)))
    return _details("Layer by layer", "".join(parts))


def _failures(found: Comparison) -> str:
    """Why runs count as not converged."""
    rows = [
        [label, named(run.recipe.place), str(run.recipe.seed), run.result["reason"]]
        for label, column in product(found.labels, found.firsts)
        for run in found.cells[label, column].runs
        if run.failed and run.result is not None
    ]
    header = ["normaliser", "where", "seed", "why"]
    return (
        _details("Runs that did not converge", _plain(header, rows, "words long")) if rows else ""
    )


def _settings(found: Comparison) -> str:
    """The recipe and what it ran on; where runs differ, all that occurs."""
    recipe = {
        k: str(v)
        for k, v in found.setting.to_json().items()
        if k not in (*COMPARED, "root") and v is not None
    }
    machine: dict[str, dict[str, None]] = {}
    for run in found.runs:
        for name, value in _machine(run).items():
            machine.setdefault(name, {})[value] = None
    rows = {
        **recipe,
        "seeds": ", ".join(map(str, found.seeds)),
        **{name: "; ".join(values) for name, values in machine.items()},
        "training time": f"{sum(result['seconds'] for result in found.results) / 60:.1f} min, all runs together",
    }
    return _details(
        "Settings, versions, machine", _plain(["what", "value"], rows.items(), "words long")
    )


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


def _theirs(source: paper.Table) -> str:
    header, rows = text.printed(source)
    corner = "" if header[0] == "normaliser" else header[0]
    table = _plain([corner, *header[1:]], rows, "printed")
    return (
        f'<section class="theirs"><h2>{escape(text.paper_title(source))}</h2><p>{escape(text.paper_subtitle(source))}</p>'
        f'{table}<p class="caption">{escape(source.note)}</p></section>'
    )

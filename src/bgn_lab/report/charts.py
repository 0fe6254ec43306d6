"""Pictures of the page: accuracy by batch size or by row, the paper's beside it, and curves.

Everything that belongs to a row is a group of class ``s`` and ``s`` with the row's number, which
the page's check boxes switch off. :mod:`bgn_lab.report.figures` draws the same for files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bgn_lab import paper
from bgn_lab.recipe import Measure
from bgn_lab.report import svg
from bgn_lab.report.cells import Cell
from bgn_lab.report.figures import by_epoch, kinds_of
from bgn_lab.report.grid import Comparison, named
from bgn_lab.report.styles import SHAPES, Style, styles
from bgn_lab.training.result import NOT_CONVERGED

MARKED = 12  # epochs from which on marks would hide the lines
ROW, HEAD = 30, 8  # of a row of dots, and what is above the first
MEASURED = "Measured: test accuracy, %"
CROSS = Style("bad", "cross")
Wrap = Callable[[str, str], str]


class Chart(NamedTuple):
    """A picture, its heading, and marks that its rows do not explain."""

    title: str
    picture: str
    key: tuple[tuple[str, str], ...] = ()
    """Names and pictures of marks."""


class Entry(NamedTuple):
    """A line of the key, which switches a row on and off."""

    number: int
    label: str
    sample: str
    """A picture of its line and mark."""


def rows(found: Comparison) -> dict[str, Style]:
    """Styles of all rows, then those of the paper's normalizers that are not among them."""
    printed = [paper.NORMALIZERS[name] for name in found.experiment.paper_tables[0].rows]
    known = {_printed_row(found, name) for name in printed}
    missing = [name for name in printed if _printed_row(found, name) is None]
    assert known
    own = styles(found.labels)
    return own | {f"{name}, paper": styles([name])[name] for name in missing}


def _printed_row(found: Comparison, name: str) -> str | None:
    """The row that the paper's normalizer of this name is in the comparison."""
    return next((label for label in found.labels if label.partition(",")[0] == name), None)


def key(found: Comparison) -> list[Entry]:
    """One entry for each row."""
    entries = []
    for number, (label, style) in enumerate(rows(found).items()):
        line = svg.polyline([(2.0, 8.0), (30.0, 8.0)], **_dashes(style))
        entries.append(Entry(number, label, _sample(style, line)))
    return entries


def _sample(style: Style, line: str = "") -> str:
    """The mark of a style, perhaps on its line."""
    return svg.tag(
        "svg", line + svg.mark(style.shape, 16.0, 8.0, hollow=style.hollow),
        viewBox="0 0 32 16", class_="sample", style=_color(style), aria_hidden="true",
    )  # fmt: skip


def _color(style: Style) -> str:
    return f"--c:var(--{style.color})"


def _dashes(style: Style) -> dict[str, str]:
    return {"stroke_dasharray": style.dashes} if style.dashes else {}


def _groups(found: Comparison) -> Wrap:
    """What puts the marks of a row into its group."""
    all_rows = rows(found)
    numbers = {label: number for number, label in enumerate(all_rows)}

    def group(label: str, content: str) -> str:
        return svg.tag(
            "g", content, class_=f"s s{numbers[label]}", style=_color(all_rows[label])
        ) if content else ""  # fmt: skip

    return group


def accuracies(found: Comparison) -> list[Chart]:
    """What was measured, and what the paper prints for the experiment."""
    if found.by_batch_size:
        return [_by_batch_size(found), _paper_by_batch_size(found)]
    return [_by_row(found), _paper_by_row(found)]


def _by_batch_size(found: Comparison) -> Chart:
    sizes = [place for place in found.places if isinstance(place, int)]
    cells = {(label, n): found.at(label, n) for label in found.labels for n in sizes}
    spreads = [own.accuracy for own in cells.values() if own.accuracy]
    ends = [a.mean + sign * (a.deviation or 0) for a in spreads for sign in (-1, 1)]
    low, high = svg.around(ends)
    gap = min([2.0, *(b / a for a, b in pairwise(sizes))])
    room = gap**0.6 if len(sizes) > 1 else 2.0
    panel = svg.Panel((sizes[0] / room, sizes[-1] * room), (low, high), logarithmic=True)
    group, all_rows = _groups(found), rows(found)
    drawn = []
    for i, label in enumerate(found.labels):
        # beside each other, so that error bars do not hide each other
        shift = gap ** (0.45 * ((i + 0.5) / len(found.labels) - 0.5))
        own = {n: cells[label, n] for n in sizes}
        style = all_rows[label]
        content = _line(panel, style, {n: shift * n for n in sizes}, own, label)
        content += "".join(
            _failure(panel, shift * n, c, f"{label}, {named(n)}", i % 3) for n, c in own.items()
        )
        drawn.append(group(label, content))
    frame = panel.frame(sizes, "batch size (images normalized together)")
    name = "Test accuracy against batch size; the table has the numbers."
    failed = any(own.failed for own in cells.values())
    key = ((NOT_CONVERGED, _sample(CROSS)),) if failed else ()
    return Chart(MEASURED, svg.picture(frame + "".join(drawn), name), key)


def _line(
    panel: svg.Panel, style: Style, across: Mapping[int, float], own: Mapping[int, Cell], label: str
) -> str:
    """A row: line, error bars, marks."""
    shown = {n: cell.accuracy for n, cell in own.items() if cell.accuracy}
    points = {n: panel.at(across[n], a.mean) for n, a in shown.items()}
    parts = [svg.polyline(list(points.values()), **_dashes(style))]
    for n, a in shown.items():
        x, y = points[n]
        if a.deviation:
            parts.append(svg.bar(x, panel.up(a.mean - a.deviation), panel.up(a.mean + a.deviation)))
        parts.append(svg.mark(style.shape, x, y, f"{label}, {named(n)}: {a.text()} %", style.hollow))
    return "".join(parts)


def _failure(panel: svg.Panel, x: float, cell: Cell, what: str, level: int) -> str:
    """A cross for runs that did not converge: at their accuracy, or on the axis if that is below."""
    if not cell.failed:
        return ""
    reached = cell.failed_accuracy
    said = f"{what}: {NOT_CONVERGED}" + (f", {reached.text()} %" if reached else "")
    if reached is not None and reached.mean >= panel.y[0]:
        return svg.mark("cross", *panel.at(x, reached.mean), said)
    at = svg.mark("cross", panel.across(x), panel.floor, said)
    if reached is None:
        return at
    return at + svg.label(
        f"{reached.mean:.0f}", panel.across(x), panel.floor - 8 - 11 * level,
        text_anchor="middle", class_="low",
    )  # fmt: skip


def _paper_by_batch_size(found: Comparison) -> Chart:
    values = [v for row in paper.IMAGENET.rows.values() for v in row if v is not None]
    sizes = sorted(paper.BATCH_SIZES)
    panel = svg.Panel((sizes[0] / 1.5, sizes[-1] * 1.5), svg.around(values), logarithmic=True)
    group, drawn = _groups(found), []
    for short, row in paper.IMAGENET.rows.items():
        name = paper.NORMALIZERS[short]
        style = styles([name])[name]
        shown = {
            n: v for n, v in zip(paper.BATCH_SIZES, row, strict=True) if v is not None
        }  # fmt: skip
        content = svg.polyline([panel.at(n, v) for n, v in shown.items()]) + "".join(
            svg.mark(style.shape, *panel.at(n, v), f"{name}, {named(n)}: {v:.1f} %")
            for n, v in shown.items()
        )
        drawn.append(group(_printed_row(found, name) or f"{name}, paper", content))
    frame = panel.frame(sizes, "batch size (images normalized together)")
    name = "The paper's test accuracy against batch size; its table below has the numbers."
    return Chart("Paper: ResNet-50 on ImageNet, %", svg.picture(frame + "".join(drawn), name))


Dots = Mapping[str, Mapping[str, tuple[float, float | None]]]
"""Mean and ± by row and series."""


def _by_row(found: Comparison) -> Chart:
    values: dict[str, dict[str, tuple[float, float | None]]] = {}
    failed: dict[str, list[float]] = {}
    for label in found.labels:
        own = {column.title: found.cells[label, column] for column in found.columns}
        values[label] = {
            name: (a.mean, a.deviation) for name, cell in own.items() if (a := cell.accuracy)
        }
        failed[label] = [a.mean for cell in own.values() if (a := cell.failed_accuracy)]
    names = [column.title for column in found.columns]
    group = _groups(found)
    return _dots(MEASURED, names, values, group, {n: n for n in values}, failed)


def _paper_by_row(found: Comparison) -> Chart:
    source = found.experiment.paper_tables[0]
    values = {
        paper.NORMALIZERS[short]: {
            name: (v, None) for name, v in zip(source.columns, row, strict=True) if v is not None
        }
        for short, row in source.rows.items()
    }
    rows_of = {name: _printed_row(found, name) or f"{name}, paper" for name in values}
    title = f"Paper, table {source.number}, %"
    return _dots(title, source.columns, values, _groups(found), rows_of, {})


def _dots(
    title: str,
    series: Sequence[str],
    values: Dots,
    group: Wrap,
    rows_of: Mapping[str, str],
    failed: Mapping[str, Sequence[float]],
) -> Chart:
    """A row for each normalizer, its name above its marks; one mark for each series."""
    shapes, colors = list(SHAPES.values()), ("bn", "bgn", "ln", "pn", "gn", "in", "gbgn")
    look = {
        name: Style(colors[i % len(colors)], shapes[i % len(shapes)])
        for i, name in enumerate(series)
    }
    all_values = [v + sign * (e or 0) for own in values.values() for v, e in own.values()
                  for sign in (-1, 1)]  # fmt: skip
    all_values += [v for own in failed.values() for v in own]
    height = HEAD + ROW * len(values) + svg.BOTTOM
    panel = svg.Panel(svg.around(all_values), (0.0, 1.0), height)
    drawn = []
    for i, (row, own) in enumerate(values.items()):
        y = HEAD + ROW * i + 22.0
        content = svg.label(row, 2.0, y - 11, class_="row") + svg.tag(
            "path", d=f"M2 {svg.number(y)}H{svg.WIDTH - svg.RIGHT}", class_="grid"
        )
        for name, (mean, error) in own.items():
            x = panel.across(mean)
            bar = ""
            if error:
                left, right = panel.across(mean - error), panel.across(mean + error)
                path = f"M{svg.number(left)} {svg.number(y)}H{svg.number(right)}"
                bar = svg.tag("path", d=path, class_="bar")
            said = f"{row}, {name}: {mean:.1f}" + (f" ± {error:.1f}" if error else "")
            content += svg.tag(
                "g", bar + svg.mark(look[name].shape, x, y, said), style=_color(look[name])
            )
        content += "".join(
            svg.mark("cross", panel.across(v), y, f"{row}: {NOT_CONVERGED}, {v:.1f}")
            for v in failed.get(row, ())
        )
        drawn.append(group(rows_of[row], content))
    axis = [
        svg.tag("path", d=f"M{svg.LEFT} {svg.number(panel.floor)}H{svg.WIDTH - svg.RIGHT}",
                class_="axis"),
        *(svg.label(f"{v:g}", panel.across(v), panel.floor + 17, text_anchor="middle")
          for v in svg.ticks(*panel.x)),
        svg.label("test accuracy, %", svg.WIDTH / 2, height - 7, text_anchor="middle",
                  class_="name"),
    ]  # fmt: skip
    marks = look | ({NOT_CONVERGED: CROSS} if any(failed.values()) else {})
    key = tuple((name, _sample(style)) for name, style in marks.items())
    name = "Test accuracy by row; a table has the numbers."
    return Chart(title, svg.picture("".join(axis + drawn), name, height), key)


def curves(found: Comparison) -> list[tuple[str, list[Chart]]]:
    """Accuracy by epoch, by what it was measured on; one picture for each place."""
    made = []
    for kind in kinds_of(found):
        by_place = {
            place: {label: by_epoch(found.at(label, place), kind.key) for label in found.labels}
            for place in found.places
        }
        values = [v for own in by_place.values() for line in own.values() for v in line.values()]
        if values:
            ends = svg.around(values)
            charts = [_curve(found, kind, place, own, ends) for place, own in by_place.items()]
            made.append((f"{kind.name[0].upper()}{kind.name[1:]} by epoch, %", charts))
    return made


def _curve(
    found: Comparison,
    kind: Measure,
    place: int | str,
    lines: Mapping[str, Mapping[int, float]],
    ends: tuple[float, float],
) -> Chart:
    last = max((epoch for line in lines.values() for epoch in line), default=1)
    panel = svg.Panel((1 - 0.03 * last, 1.03 * last), ends, 230)
    group, all_rows = _groups(found), rows(found)
    drawn = []
    for label, line in lines.items():
        style = all_rows[label]
        points = [panel.at(epoch, value) for epoch, value in line.items()]
        content = svg.polyline(points, **_dashes(style))
        if last <= MARKED:
            content += "".join(
                svg.mark(style.shape, *panel.at(e, v), f"{label}, epoch {e}: {v:.1f} %",
                         style.hollow)
                for e, v in line.items()
            )  # fmt: skip
        drawn.append(group(label, content))
    steps = [tick for tick in svg.ticks(1, last) if tick == math.floor(tick)]
    name = f"{kind.name} by epoch, {named(place)}"
    title = named(place)
    return Chart(title, svg.picture(panel.frame(steps, "epoch") + "".join(drawn), name, 230))

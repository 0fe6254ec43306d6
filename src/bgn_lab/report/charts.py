"""Pictures of the page: accuracy by batch size or by row, the paper's beside it, and curves.

:mod:`bgn_lab.report.figures` draws the same for files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from bgn_lab import paper
from bgn_lab.recipe import Measure
from bgn_lab.report import dots, svg
from bgn_lab.report.cells import Cell
from bgn_lab.report.figures import by_epoch, kinds_of
from bgn_lab.report.grid import Comparison, named
from bgn_lab.report.series import CROSS, Chart, dashes, groups, measured, paper_row, rows, sample
from bgn_lab.report.styles import Style, styles
from bgn_lab.training.result import NOT_CONVERGED

MARKED = 12  # epochs from which on marks would hide the lines


def accuracies(found: Comparison) -> list[Chart]:
    """What was measured, and what the paper prints for the experiment."""
    several = found.by_batch_size and len(found.places) > 1
    here = _by_batch_size(found) if several else dots.by_row(found)
    if not found.experiment.paper_tables:
        return [here]
    theirs = _paper_by_batch_size(found) if found.is_imagenet else dots.paper_by_row(found)
    return [here, theirs]


def _by_batch_size(found: Comparison) -> Chart:
    sizes = [place for place in found.places if isinstance(place, int)]
    cells = {(label, n): found.at(label, n) for label in found.labels for n in sizes}
    spreads = [own.accuracy for own in cells.values() if own.accuracy]
    ends = [a.mean + sign * (a.deviation or 0) for a in spreads for sign in (-1, 1)]
    low, high = svg.around(ends)
    gap = min([2.0, *(b / a for a, b in pairwise(sizes))])
    room = gap**0.6 if len(sizes) > 1 else 2.0
    panel = svg.Panel((sizes[0] / room, sizes[-1] * room), (low, high), logarithmic=True)
    group, all_rows = groups(found), rows(found)
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
    name = f"{found.score} against batch size; the table has the numbers."
    failed = any(own.failed for own in cells.values())
    key = ((NOT_CONVERGED, sample(CROSS)),) if failed else ()
    return Chart(measured(found), svg.picture(frame + "".join(drawn), name), key)


def _line(
    panel: svg.Panel, style: Style, across: Mapping[int, float], own: Mapping[int, Cell], label: str
) -> str:
    """A row: line, error bars, marks."""
    shown = {n: cell.accuracy for n, cell in own.items() if cell.accuracy}
    points = {n: panel.at(across[n], a.mean) for n, a in shown.items()}
    parts = [svg.polyline(list(points.values()), **dashes(style))]
    for n, a in shown.items():
        x, y = points[n]
        if a.deviation:
            parts.append(svg.bar(x, panel.up(a.mean - a.deviation), panel.up(a.mean + a.deviation)))
        parts.append(
            svg.mark(style.shape, x, y, f"{label}, {named(n)}: {a.text()} %", style.hollow)
        )
    return "".join(parts)


def _failure(panel: svg.Panel, x: float, cell: Cell, what: str, level: int) -> str:
    """A cross for runs that did not converge: at their accuracy, or on the axis below it."""
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
    group, drawn = groups(found), []
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
        drawn.append(group(paper_row(found, name) or f"{name}, paper", content))
    frame = panel.frame(sizes, "batch size (images normalized together)")
    name = "The paper's test accuracy against batch size; its table below has the numbers."
    return Chart("Paper: ResNet-50 on ImageNet, %", svg.picture(frame + "".join(drawn), name))


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
    group, all_rows = groups(found), rows(found)
    drawn = []
    for label, line in lines.items():
        style = all_rows[label]
        points = [panel.at(epoch, value) for epoch, value in line.items()]
        content = svg.polyline(points, **dashes(style))
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

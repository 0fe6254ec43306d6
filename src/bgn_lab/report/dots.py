"""Pictures of experiments without batch sizes to compare: a row of marks for each normalizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bgn_lab import paper
from bgn_lab.report import svg
from bgn_lab.report.grid import Comparison
from bgn_lab.report.series import CROSS, Chart, Wrap, color, groups, measured, paper_row, sample
from bgn_lab.report.styles import SHAPES, Style
from bgn_lab.training.result import NOT_CONVERGED

ROW, HEAD = 30, 8  # height of a row, and what is above the first
COLORS = "bn", "bgn", "ln", "pn", "gn", "in", "gbgn"  # of the marks
Dots = Mapping[str, Mapping[str, tuple[float, float | None]]]
"""Mean and ± by row and series."""


def by_row(found: Comparison) -> Chart:
    values: dict[str, dict[str, tuple[float, float | None]]] = {}
    failed: dict[str, list[float]] = {}
    for label in found.labels:
        own = {column.title: found.cells[label, column] for column in found.columns}
        values[label] = {
            name: (a.mean, a.deviation) for name, cell in own.items() if (a := cell.accuracy)
        }
        failed[label] = [a.mean for cell in own.values() if (a := cell.failed_accuracy)]
    names = [column.title for column in found.columns]
    group = groups(found)
    score = found.experiment.score
    return _dots(measured(found), names, values, group, {n: n for n in values}, failed, score)


def paper_by_row(found: Comparison) -> Chart:
    source = found.experiment.paper_tables[0]
    values = {
        paper.NORMALIZERS[short]: {
            name: (v, None) for name, v in zip(source.columns, row, strict=True) if v is not None
        }
        for short, row in source.rows.items()
    }
    rows_of = {name: paper_row(found, name) or f"{name}, paper" for name in values}
    title = f"Paper, table {source.number}, %"
    return _dots(title, source.columns, values, groups(found), rows_of, {})


def _dots(
    title: str,
    series: Sequence[str],
    values: Dots,
    group: Wrap,
    rows_of: Mapping[str, str],
    failed: Mapping[str, Sequence[float]],
    score: str = "test accuracy",
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
                "g", bar + svg.mark(look[name].shape, x, y, said), style=color(look[name])
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
        svg.label(f"{score}, %", svg.WIDTH / 2, height - 7, text_anchor="middle",
                  class_="name"),
    ]  # fmt: skip
    marks = look | ({NOT_CONVERGED: CROSS} if any(failed.values()) else {})
    key = tuple((name, sample(style)) for name, style in marks.items())
    name = f"{score[0].upper()}{score[1:]} by row; a table has the numbers."
    return Chart(title, svg.picture("".join(axis + drawn), name, height), key)

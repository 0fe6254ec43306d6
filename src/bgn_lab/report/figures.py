"""Pictures as files: accuracy against batch size, as in the paper's first figure, and curves.

:mod:`bgn_lab.report.charts` draws the same for the page.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bgn_lab import paper
from bgn_lab.recipe import TRAINING, Measure
from bgn_lab.report.cells import Cell
from bgn_lab.report.grid import Comparison, named
from bgn_lab.report.palette import LIGHT, colors
from bgn_lab.report.styles import SHAPES, styles
from bgn_lab.training.result import NOT_CONVERGED

WIDE, ACROSS = 5.4, 4  # inches of one of two panels; panels of curves side by side
BAD = LIGHT["bad"]  # what did not converge
_MARKS = {
    "circle": "o", "down": "v", "up": "^", "square": "s", "diamond": "D", "plus": "P", "star": "*",
}  # fmt: skip
STYLES = {shown: (LIGHT[name], _MARKS[SHAPES[shown]]) for name, shown in paper.NORMALIZERS.items()}
"""Color and marker of each normalizer, without partners."""
Point = tuple[float, float | None]  # a value and half the length of its bar


def _style(label: str, labels: Sequence[str]) -> dict[str, Any]:
    """Style of a row's line, the same as on the page."""
    own = styles(labels)[label]
    color = colors("light")[own.color]
    strong = label in ("BN", "BGN")
    dashes = [float(part) / 2 for part in own.dashes.split()]
    return {
        "color": color, "marker": _MARKS[own.shape], "label": label, "markeredgecolor": color,
        "linestyle": (0, dashes) if dashes else "-", "linewidth": 2 if strong else 1.4,
        "zorder": 3 if strong else 2, "markersize": 9 if own.shape == "star" else 5,
        "markerfacecolor": "white" if own.hollow else color,
    }  # fmt: skip


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))


def _panel(axes: Any, title: str, label: str) -> None:
    axes.set_title(textwrap.fill(title, 50), fontsize=11, parse_math=False)
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _batch_panel(axes: Any, title: str, sizes: Sequence[int], score: str = "test accuracy") -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylabel(f"{score}, %")
    _panel(axes, title, "batch size (images normalized together)")


def _key(where: Any, lines: Sequence[Any], columns: int, **place: Any) -> None:
    where.legend(
        handles=lines, ncols=columns, fontsize=10, frameon=False, columnspacing=1.2,
        handlelength=2.4, **place,
    )  # fmt: skip


def _rows_of_key(entries: int) -> float:
    """Inches that a key in three columns needs below a panel."""
    return 0.21 * math.ceil(entries / 3)


def accuracies(found: Comparison) -> Figure:
    """What was measured, and beside it what the paper reports for the same experiment."""
    by_size = found.by_batch_size and (found.is_imagenet or not found.experiment.paper_tables)
    return by_batch_size(found) if by_size else by_normalizer(found)


def by_batch_size(found: Comparison) -> Figure:
    """What was measured, and beside it what the paper reports for ImageNet, where its tables belong
    to the experiment."""
    drawn = (_measured, _printed) if found.is_imagenet else (_measured,)
    figure = _figure(len(drawn) * WIDE, 4 + _rows_of_key(len(found.labels) + 1))
    panels = figure.subplots(1, len(drawn), squeeze=False).flat
    for draw, axes in zip(drawn, panels, strict=True):
        # two columns for long labels: three would be wider than the panel
        lines = draw(axes, found)
        many = 3 if max(len(str(line.get_label())) for line in lines) < 17 else 2
        _key(axes, lines, many, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    return figure


def _measured(axes: Any, found: Comparison) -> list[Any]:
    """Draw the comparison; the lines that a key explains."""
    sizes, lines = [place for place in found.places if isinstance(place, int)], []
    _batch_panel(axes, f"Measured: {found.title()}", sizes, found.experiment.score)
    cross: dict[str, Any] = {"linestyle": "", "marker": "x", "markeredgewidth": 2, "zorder": 4}
    foot = {"transform": axes.get_xaxis_transform(), "clip_on": False, "in_layout": False}
    gap = min([2.0, *(math.log2(b / a) for a, b in pairwise(sizes))])
    means = [cell.accuracy.mean for cell in found.cells.values() if cell.accuracy]
    lowest = min(means) - (max(means) - min(means)) / 2 if means else 0.0
    for i, label in enumerate(found.labels):
        # beside each other, so that error bars do not hide each other
        shift = 2 ** (0.3 * gap * ((i + 0.5) / len(found.labels) - 0.5))
        cells = {shift * size: found.at(label, size) for size in sizes}
        points = [(x, a) for x, cell in cells.items() if (a := cell.accuracy) is not None]
        style = _style(label, found.labels)
        axes.errorbar(
            [x for x, _ in points], [a.mean for _, a in points],
            [a.deviation or 0 for _, a in points], capsize=2, elinewidth=0.8, **style,
        )  # fmt: skip
        lines += axes.plot([], [], **style)
        failed = {x: cell.failed_accuracy for x, cell in cells.items() if cell.failed}
        for x, reached in failed.items():
            if reached is not None and reached.mean >= lowest:
                axes.plot([x], [reached.mean], color=style["color"], **cross)
                continue
            # on the axis, with its accuracy in numbers: at its height it would flatten all others
            axes.plot([x], [0], color=style["color"], **cross, **foot)
            if reached is not None:
                axes.annotate(
                    f"{reached.mean:.1f}", (x, 0), (0, 8 + 11 * (i % 2)), ha="center", fontsize=9,
                    xycoords=foot["transform"], textcoords="offset points", color=style["color"],
                )  # fmt: skip
    if any(cell.failed for cell in found.cells.values()):
        lines += axes.plot([], [], color="black", label=NOT_CONVERGED, **cross)
    return lines


def _printed(axes: Any, _: Comparison) -> list[Any]:
    title = "Paper: ResNet-50 on ImageNet, 120 epochs"
    _batch_panel(axes, title, sorted(paper.BATCH_SIZES))
    names = [paper.NORMALIZERS[name] for name in paper.IMAGENET.rows]
    for name, values in zip(names, paper.IMAGENET.rows.values(), strict=True):
        shown = [math.nan if value is None else value for value in values]
        axes.plot(paper.BATCH_SIZES, shown, **_style(name, names))
    return list(axes.lines)


def by_normalizer(found: Comparison) -> Figure:
    """A row for each normalizer, a mark for each measure; beside it the paper's own figures."""
    source = found.experiment.paper_tables[0]
    names = [paper.NORMALIZERS[name] for name in source.rows]
    high = 0.36 * max(len(found.labels), len(names)) + 2
    figure = _figure(2 * WIDE, high)
    panels = figure.subplots(1, 2).flat
    cells = {
        column.title: [found.cells[label, column] for label in found.labels]
        for column in found.columns
    }
    ours = {
        title: [(a.mean, a.deviation) if (a := cell.accuracy) else None for cell in own]
        for title, own in cells.items()
    }
    failed = [
        (y, a.mean)
        for own in cells.values()
        for y, cell in enumerate(own)
        if (a := cell.failed_accuracy)
    ]
    theirs = {
        title: [
            None if (value := row[i]) is None else (value, None) for row in source.rows.values()
        ]
        for i, title in enumerate(source.columns)
    }
    marks = {name: number for number, name in enumerate(dict.fromkeys([*ours, *theirs]))}
    _dots(panels[0], f"Measured: {found.title()}", found.labels, ours, marks, failed)
    _dots(panels[1], f"Paper: {source.title}", names, theirs, marks)
    return figure


def _dots(
    axes: Any,
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Point | None]],
    marks: Mapping[str, int],
    failed: Sequence[tuple[int, float]] = (),
) -> None:
    for name, values in series.items():
        points = [(y, *value) for y, value in enumerate(values) if value is not None]
        axes.errorbar(
            [x for _, x, _ in points], [y for y, _, _ in points],
            xerr=[wide or 0 for _, _, wide in points], label=name, linestyle="",
            marker="osD^v"[marks[name] % 5], color=f"C{marks[name]}", capsize=2, elinewidth=0.8,
        )  # fmt: skip
    if failed:
        axes.plot(
            [x for _, x in failed], [y for y, _ in failed], linestyle="", marker="x", color=BAD,
            markeredgewidth=2, label=NOT_CONVERGED, zorder=4,
        )  # fmt: skip
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    _panel(axes, title, "test accuracy, %")
    handles = axes.get_legend_handles_labels()[0]
    _key(axes, handles, 3, loc="upper center", bbox_to_anchor=(0.5, -0.2))


def curves(found: Comparison) -> Figure:
    """Accuracy by epoch, one panel per place, one line per row.

    Training accuracy comes first, below it the other accuracies that were measured.
    """
    kinds = kinds_of(found)
    places, columns = found.places, min(ACROSS, len(found.places))
    # more markers would hide the lines
    few = max((epoch.epoch for run in found.runs for epoch in run.metrics), default=0) <= 12
    blocks = [places[i : i + columns] for i in range(0, len(places), columns)]
    rows = len(blocks) * len(kinds)
    wide = max(2.7 * columns, WIDE)
    across = max(1, int(wide / (0.09 * max(map(len, found.labels)) + 0.75)))
    high = 2.4 * rows + 0.24 * math.ceil(len(found.labels) / across) + 0.3
    figure = _figure(wide, high)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    drawn = {}
    for number, (block, kind) in enumerate((block, kind) for block in blocks for kind in kinds):
        for axes, place in zip(panels[number], block, strict=False):
            for label in found.labels:
                if means := by_epoch(found.at(label, place), kind.key):
                    style = _style(label, found.labels) | ({} if few else {"marker": ""})
                    (drawn[label],) = axes.plot(list(means), list(means.values()), **style)
            axes.xaxis.get_major_locator().set_params(integer=True)
            _panel(axes, named(place), "epoch")
        for axes in panels[number][len(block) :]:
            axes.set_visible(False)
        panels[number][0].set_ylabel(f"{kind.name}, %")
    lines = [drawn[label] for label in found.labels if label in drawn]
    if lines:
        _key(figure, lines, across, loc="outside lower center")
    return figure


def kinds_of(found: Comparison) -> list[Measure]:
    """What was measured by epoch: on training images, then on others."""
    known = list(dict.fromkeys((TRAINING, *found.setting.curves)))
    epochs = [epoch for run in found.runs for epoch in run.metrics]
    return [
        kind for kind in known if any(epoch.value(kind.key) is not None for epoch in epochs)
    ] or known[-1:]


def by_epoch(cell: Cell, name: str) -> dict[int, float]:
    """Mean by epoch over the runs that converged, or over all if none did.

    Unfinished runs are left out.
    """
    over = [run for run in cell.runs if run.result is not None]
    found: dict[int, list[float]] = defaultdict(list)
    for run in [run for run in over if not run.failed] or over:
        for metrics in run.metrics:
            if (value := metrics.value(name)) is not None:
                found[metrics.epoch].append(100 * value)
    return {epoch: sum(values) / len(values) for epoch, values in sorted(found.items())}


class Drawn(NamedTuple):
    """The pictures of a comparison, for a wide screen."""

    accuracies: Figure
    curves: Figure
    own: Figure | None = None
    """That of the experiment, if it has one."""


def draw(found: Comparison) -> Drawn:
    """All pictures."""
    return Drawn(accuracies(found), curves(found), found.experiment.picture(found))

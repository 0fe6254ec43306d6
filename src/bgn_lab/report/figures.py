"""Pictures: accuracy against batch size, as in the paper's first figure, and training curves.

Each can be drawn in fewer columns, for narrow screens.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bgn_lab import paper
from bgn_lab.report import text
from bgn_lab.report.cells import Cell
from bgn_lab.report.comparison import Comparison, named

# one colour per normaliser (Okabe and Ito's, which colour-blind readers can tell apart); variants of BGN differ in the dashes
STYLES = {
    "BN": ("#0072B2", "o"), "IN": ("#56B4E9", "v"), "LN": ("#009E73", "^"), "GN": ("#E69F00", "s"),
    "PN": ("#CC79A7", "D"), "GBGN": ("#7a5230", "P"), "BGN": ("#D55E00", "*"),
}  # fmt: skip
NARROW = 4.2  # inches of a panel that has a phone's screen to itself
_DASHES = ("-", "--", ":", "-.")


def _style(label: str, labels: Sequence[str]) -> dict[str, Any]:
    name = label.split(",")[0]
    variant = [other for other in labels if other.split(",")[0] == name].index(label)
    strong = name in ("BN", "BGN")
    return {
        "color": STYLES[name][0], "marker": STYLES[name][1], "linestyle": _DASHES[variant % len(_DASHES)], "label": label,
        "linewidth": 2 if strong else 1.2, "markersize": 9 if name == "BGN" else 5, "zorder": 3 if strong else 2,
        "markerfacecolor": "white" if variant else STYLES[name][0],
    }  # fmt: skip


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))


def _panel(axes: Any, title: str, label: str) -> None:
    axes.set_title(
        textwrap.fill(title, 50 if axes.figure.get_figwidth() > NARROW else 46),
        fontsize=10,
        parse_math=False,
    )
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _batch_panel(axes: Any, title: str, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.minorticks_off()
    axes.set_ylabel("test accuracy, %")
    _panel(axes, title, "batch size (images normalised together)")


def _key(where: Any, lines: Sequence[Any], columns: int, **place: Any) -> None:
    where.legend(
        handles=lines,
        ncols=columns,
        fontsize=9,
        frameon=False,
        columnspacing=1.2,
        handlelength=2.4,
        **place,
    )


def by_batch_size(found: Comparison, columns: int = 2) -> Figure:
    """What was measured, and beside it what the paper reports for ImageNet."""
    figure = _figure((5.2 if columns > 1 else NARROW) * columns, 4.6 * (2 // columns))
    for draw, axes in zip(
        (_measured, _printed), figure.subplots(2 // columns, columns).flat, strict=True
    ):
        _key(axes, draw(axes, found), 3, loc="upper center", bbox_to_anchor=(0.5, -0.15))
    return figure


def accuracies(found: Comparison, columns: int = 2) -> Figure:
    """What was measured, and beside it what the paper reports for the same experiment."""
    return by_batch_size(found, columns) if found.by_batch_size else by_normaliser(found, columns)


def by_normaliser(found: Comparison, columns: int = 2) -> Figure:
    """A row for each normaliser, a mark for each measure; beside it the paper's own figures."""
    printed = text.PAPER_TABLES[found.setting.experiment][0]
    names = [paper.NORMALISERS[name] for name in printed.rows]
    figure = _figure(
        (5.2 if columns > 1 else NARROW) * columns, (0.36 * len(found.labels) + 2) * (2 // columns)
    )
    panels = figure.subplots(2 // columns, columns, squeeze=False).flat
    ours = {
        column.title: [
            (a.mean, a.deviation) if (a := found.cells[label, column].accuracy) else None
            for label in found.labels
        ]
        for column in found.columns
    }
    theirs = {
        title: [
            None if (value := row[i]) is None else (value, None) for row in printed.rows.values()
        ]
        for i, title in enumerate(printed.columns)
    }
    marks = {name: number for number, name in enumerate(dict.fromkeys([*ours, *theirs]))}
    _dots(panels[0], f"Measured: {found.title()}", found.labels, ours, marks)
    _dots(panels[1], f"The paper's own figures: {printed.title}", names, theirs, marks)
    return figure


Point = tuple[float, float | None] | None  # a value and half the length of its bar


def _dots(
    axes: Any,
    title: str,
    labels: Sequence[str],
    series: Mapping[str, Sequence[Point]],
    marks: Mapping[str, int],
) -> None:
    for name, values in series.items():
        points = [(y, *value) for y, value in enumerate(values) if value is not None]
        axes.errorbar(
            [x for _, x, _ in points], [y for y, _, _ in points], xerr=[wide or 0 for _, _, wide in points], label=name,
            linestyle="", marker="osD^v"[marks[name] % 5], color=f"C{marks[name]}", capsize=2, elinewidth=0.8,
        )  # fmt: skip
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    _panel(axes, title, "test accuracy, %")
    _key(
        axes, axes.get_legend_handles_labels()[0], 3, loc="upper center", bbox_to_anchor=(0.5, -0.2)
    )


def _measured(axes: Any, found: Comparison) -> list[Any]:
    """The lines that a key explains."""
    sizes, lines = [place for place in found.places if isinstance(place, int)], []
    _batch_panel(axes, f"Measured: {found.title()}", sizes)
    foot: dict[str, Any] = {
        "transform": axes.get_xaxis_transform(),
        "clip_on": False,
        "in_layout": False,
    }
    foot |= {"linestyle": "", "marker": "x", "markeredgewidth": 2}
    gap = min([2.0, *(math.log2(b / a) for a, b in pairwise(sizes))])
    for i, label in enumerate(found.labels):
        shift = 2 ** (
            0.3 * gap * ((i + 0.5) / len(found.labels) - 0.5)
        )  # so that error bars do not hide each other
        points = [
            (shift * size, a) for size in sizes if (a := found.at(label, size).accuracy) is not None
        ]
        style = _style(label, found.labels)
        deviations = [a.deviation or 0 for _, a in points]
        axes.errorbar(
            [x for x, _ in points],
            [a.mean for _, a in points],
            deviations,
            capsize=2,
            elinewidth=0.8,
            **style,
        )
        lines += axes.plot([], [], **style)
        failed = [shift * size for size in sizes if found.at(label, size).failed]
        axes.plot(failed, [0] * len(failed), color=style["color"], **foot)
    if any(cell.failed for cell in found.cells.values()):
        lines += axes.plot([], [], color="black", label="did not converge", **foot)
    return lines


def _printed(axes: Any, _: Comparison) -> list[Any]:
    _batch_panel(
        axes,
        "The paper's own figures: ResNet-50 on ImageNet, 120 epochs",
        sorted(paper.BATCH_SIZES),
    )
    names = [paper.NORMALISERS[name] for name in paper.IMAGENET.rows]
    for name, values in zip(names, paper.IMAGENET.rows.values(), strict=True):
        axes.plot(
            paper.BATCH_SIZES,
            [math.nan if value is None else value for value in values],
            **_style(name, names),
        )
    return list(axes.lines)


def curves(found: Comparison, columns: int = 3) -> Figure:
    """By epoch, the first of the recipe's curves that there is; one panel per place."""
    places, metrics = found.places, [metrics for run in found.runs for metrics in run.metrics]
    kinds = found.setting.curves
    curve = next((kind for kind in kinds if any(kind.key in epoch for epoch in metrics)), kinds[-1])
    few = (
        max((epoch["epoch"] for epoch in metrics), default=0) <= 12
    )  # more markers would hide the lines
    columns = min(columns, len(places))
    rows = math.ceil(len(places) / columns)
    figure = _figure(3.4 * columns if columns > 1 else NARROW, 3.1 * rows + 0.7)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    drawn = {}
    for axes, place in zip(panels.flat, places, strict=False):
        for label in found.labels:
            if means := _means(found.at(label, place), curve.key):
                style = _style(label, found.labels) | ({} if few else {"marker": ""})
                (drawn[label],) = axes.plot(list(means), list(means.values()), **style)
        axes.xaxis.get_major_locator().set_params(integer=True)
        _panel(axes, named(place), "epoch")
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{curve.name}, %")
    for axes in panels.flat[len(places) :]:
        axes.set_visible(False)
    lines = [drawn[label] for label in found.labels if label in drawn]
    _key(figure, lines, 3 if columns < 3 else 4, loc="outside lower center")
    return figure


def _means(cell: Cell, name: str) -> dict[int, float]:
    """By epoch, over the runs that converged, or over all where none did; without those that are not over."""
    over = [run for run in cell.runs if run.result is not None]
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for run in [run for run in over if not run.failed] or over:
        for metrics in run.metrics:
            if metrics.get(name) is not None:
                by_epoch[metrics["epoch"]].append(100 * metrics[name])
    return {epoch: sum(values) / len(values) for epoch, values in sorted(by_epoch.items())}


def svg(figure: Figure) -> bytes:
    """A figure as SVG; the same figure makes the same bytes."""
    buffer = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "bgn", "svg.fonttype": "path"}):
        figure.savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    return buffer.getvalue()

"""Pictures: accuracy against batch size, as in the paper's first figure, and training curves.

Each can be drawn in fewer columns, for narrow screens.
"""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from bgn_lab import paper
from bgn_lab.recipe import TRAINING, Measure
from bgn_lab.report.cells import Cell
from bgn_lab.report.grid import Comparison, named
from bgn_lab.system import files
from bgn_lab.training.result import NOT_CONVERGED

# one color per normalizer (Okabe and Ito's, which color-blind readers can distinguish)
STYLES = {
    "BN": ("#0072B2", "o"), "IN": ("#56B4E9", "v"), "LN": ("#009E73", "^"), "GN": ("#E69F00", "s"),
    "PN": ("#CC79A7", "D"), "GBGN": ("#7a5230", "P"), "BGN": ("#D55E00", "*"),
}  # fmt: skip
OWN_STYLE = ("#555555", "X")  # people's own normalizers
BAD = "#a3262a"  # what did not converge, as on the page
NARROW = 4.2  # inches of a panel that has a phone's screen to itself
_DASHES = ("-", "--", ":", "-.")
_MARKS = "*ovs^DPX<>hd"
Point = tuple[float, float | None]  # a value and half the length of its bar


def _style(label: str, labels: Sequence[str]) -> dict[str, Any]:
    """Style of a row's line.

    Rows of one normalizer differ in their dashes or, if there are many, in color and marker.
    """
    name = label.split(",")[0]
    color, marker = STYLES.get(name, OWN_STYLE)
    variants = [other for other in labels if other.split(",")[0] == name]
    variant = variants.index(label)
    strong = name in ("BN", "BGN")
    style: dict[str, Any] = {
        "color": color, "marker": marker, "linestyle": _DASHES[variant % len(_DASHES)],
        "label": label, "linewidth": 2 if strong else 1.4, "zorder": 3 if strong else 2,
        "markersize": 9 if marker == "*" else 5, "markerfacecolor": "white" if variant else color,
    }  # fmt: skip
    if variant and len(variants) > len(_DASHES):
        shade = mpl.colormaps["plasma"](0.8 * (variant - 1) / (len(variants) - 2))
        style |= {
            "color": shade, "linestyle": "-", "linewidth": 1.4, "markersize": 5,
            "marker": _MARKS[variant % len(_MARKS)], "markerfacecolor": shade, "zorder": 2,
        }  # fmt: skip
    return style


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))


def _panel(axes: Any, title: str, label: str) -> None:
    wide = 50 if axes.figure.get_figwidth() > NARROW else 46
    axes.set_title(textwrap.fill(title, wide), fontsize=11, parse_math=False)
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


def accuracies(found: Comparison, columns: int = 2) -> Figure:
    """What was measured, and beside it what the paper reports for the same experiment."""
    return by_batch_size(found, columns) if found.by_batch_size else by_normalizer(found, columns)


def by_batch_size(found: Comparison, columns: int = 2) -> Figure:
    """What was measured, and beside it what the paper reports for ImageNet, where its tables belong
    to the experiment."""
    drawn = (_measured, _printed) if found.experiment.paper_tables else (_measured,)
    wide = 5.4 if columns > 1 else NARROW
    columns = min(columns, len(drawn))
    high = 4 + _rows_of_key(len(found.labels) + 1)
    figure = _figure(wide * columns, high * (len(drawn) // columns))
    panels = figure.subplots(len(drawn) // columns, columns, squeeze=False).flat
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
    title = "The paper's own figures: ResNet-50 on ImageNet, 120 epochs"
    _batch_panel(axes, title, sorted(paper.BATCH_SIZES))
    names = [paper.NORMALIZERS[name] for name in paper.IMAGENET.rows]
    for name, values in zip(names, paper.IMAGENET.rows.values(), strict=True):
        shown = [math.nan if value is None else value for value in values]
        axes.plot(paper.BATCH_SIZES, shown, **_style(name, names))
    return list(axes.lines)


def by_normalizer(found: Comparison, columns: int = 2) -> Figure:
    """A row for each normalizer, a mark for each measure; beside it the paper's own figures."""
    source = found.experiment.paper_tables[0]
    names = [paper.NORMALIZERS[name] for name in source.rows]
    high = 0.36 * max(len(found.labels), len(names)) + 2
    figure = _figure((5.4 if columns > 1 else NARROW) * columns, high * (2 // columns))
    panels = figure.subplots(2 // columns, columns, squeeze=False).flat
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
    _dots(panels[1], f"The paper's own figures: {source.title}", names, theirs, marks)
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


def curves(found: Comparison, columns: int = 4) -> Figure:
    """Accuracy by epoch, one panel per place, one line per row.

    Training accuracy comes first, below it the other accuracies that were measured.
    """
    kinds = _kinds(found)
    places, columns = found.places, min(columns, len(found.places))
    # more markers would hide the lines
    few = max((epoch.epoch for run in found.runs for epoch in run.metrics), default=0) <= 12
    blocks = [places[i : i + columns] for i in range(0, len(places), columns)]
    rows = len(blocks) * len(kinds)
    wide = NARROW if columns == 1 else max(2.7 * columns, 5.4)
    across = max(1, int(wide / (0.09 * max(map(len, found.labels)) + 0.75)))
    high = 2.4 * rows + 0.24 * math.ceil(len(found.labels) / across) + 0.3
    figure = _figure(wide, high)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    drawn = {}
    for number, (block, kind) in enumerate((block, kind) for block in blocks for kind in kinds):
        for axes, place in zip(panels[number], block, strict=False):
            for label in found.labels:
                if means := _means(found.at(label, place), kind.key):
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


def _kinds(found: Comparison) -> list[Measure]:
    """What was measured by epoch: on training images, then on others."""
    known = list(dict.fromkeys((TRAINING, *found.setting.curves)))
    epochs = [epoch for run in found.runs for epoch in run.metrics]
    return [
        kind for kind in known if any(epoch.value(kind.key) is not None for epoch in epochs)
    ] or known[-1:]


def _means(cell: Cell, name: str) -> dict[int, float]:
    """Mean by epoch over the runs that converged, or over all if none did.

    Unfinished runs are left out.
    """
    over = [run for run in cell.runs if run.result is not None]
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for run in [run for run in over if not run.failed] or over:
        for metrics in run.metrics:
            if (value := metrics.value(name)) is not None:
                by_epoch[metrics.epoch].append(100 * value)
    return {epoch: sum(values) / len(values) for epoch, values in sorted(by_epoch.items())}


class Drawn(NamedTuple):
    """The pictures of a comparison, for a wide screen."""

    accuracies: Figure
    curves: Figure
    own: Figure | None = None
    """That of the experiment, if it has one."""


def draw(found: Comparison) -> Drawn:
    """All pictures."""
    return Drawn(accuracies(found), curves(found), found.experiment.picture(found))


def svg(figure: Figure) -> bytes:
    """A figure as SVG; the same figure makes the same bytes."""
    with mpl.rc_context({"svg.hashsalt": "bgn", "svg.fonttype": "path"}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        return files.render_figure(figure, "svg", metadata=nothing)

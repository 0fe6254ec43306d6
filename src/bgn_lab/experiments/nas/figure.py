"""Pictures of cells in the colors of the paper's figure, and of how a search moved.

Inputs are green, nodes blue, the output is yellow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bgn_lab.experiments.nas.genotype import (
    EDGES,
    INPUTS,
    NODES,
    OPERATIONS,
    Cell,
    Genotype,
    reductions,
)
from bgn_lab.system import files

Point = tuple[float, float]
GREEN, BLUE, YELLOW = "#b7e1c0", "#bcd6f2", "#f7e3a1"
# left to right, every node at a height of its own, so that edges do not run through nodes
PLACES = [(0.0, 0.9), (0.0, -0.9), (2.0, 1.75), (3.4, -1.75), (5.0, 0.75), (6.4, -0.75), (8.2, 0.0)]
PER_INCH = 1.17, 1.55  # units of the axes, to the right and up
LETTER, NODE, DOT = (
    (0.072, 0.22),
    (0.5, 0.5),
    (0.05, 0.05),
)  # boxes: of a letter of an edge, of a node, of a piece of an edge
ALONG = (
    0.55,
    0.5,
    0.6,
    0.45,
    0.65,
    0.4,
    0.7,
    0.35,
    0.75,
    0.3,
)  # where on an edge its operation may stand, the best first
NAMES = ["c(k-2)", "c(k-1)", *(str(i) for i in range(NODES)), "c(k)"]


def write(genotype: Genotype, folder: Path) -> None:
    """cells.png and cells.svg."""
    figure = draw(genotype)
    for kind in ("png", "svg"):
        files.write_figure(folder / f"cells.{kind}", figure)


def movement(history: Sequence[Any], rows: Sequence[str], folder: Path) -> None:
    """mix.png: the weight of every operation on every edge, epoch by epoch."""
    high = 1.15 * len(rows) + 1.3
    figure = Figure(figsize=(1.15 * len(EDGES) + 1, high))
    figure.subplots_adjust(
        left=0.05, right=0.99, bottom=0.9 / high, top=1 - 0.3 / high, wspace=0.08, hspace=0.12
    )
    panels = figure.subplots(len(rows), len(EDGES), sharex=True, sharey=True, squeeze=False)
    numbers = range(1, len(history) + 1)
    for i, row in enumerate(rows):
        for j, (state, to) in enumerate(EDGES):
            for k, name in enumerate(OPERATIONS):
                values = [mix[i][j][k] for mix in history]
                panels[i, j].plot(
                    numbers,
                    values,
                    color=f"C{k}",
                    linewidth=1,
                    label=name,
                    marker="." if len(history) == 1 else "",
                )
            if i == 0:
                panels[i, j].set_title(f"{NAMES[state]} → {NAMES[to]}", fontsize=7)
            panels[i, j].tick_params(labelsize=6)
        panels[i, 0].set_ylabel(row, fontsize=8)
    figure.text(0.52, 0.5 / high, "epoch", ha="center", fontsize=8)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="lower center", ncols=len(OPERATIONS), fontsize=8, frameon=False
    )
    files.write_figure(folder / "mix.png", figure)


def draw(genotype: Genotype) -> Figure:
    """A panel for each kind of cell, or for each cell where all are different."""
    small = reductions(len(genotype.cells))
    cells = {
        f"cell {i + 1}{', reduction' if i in small else ''}": cell
        for i, cell in enumerate(genotype.cells)
    }
    cells = cells or {"normal cell": genotype.normal, "reduction cell": genotype.reduction}
    columns = 1 if len(cells) <= 2 else 2
    rows = -(-len(cells) // columns)
    figure = Figure(figsize=(8.2 * columns, 3.5 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, (title, cell) in zip(panels.flat, cells.items(), strict=False):
        _cell(axes, title, cell)
    for axes in panels.flat[len(cells) :]:
        axes.set_visible(False)
    return figure


def _cell(axes: Any, title: str, cell: Cell) -> None:
    edges = [
        (PLACES[edge.state], PLACES[INPUTS + i], edge.operation)
        for i, node in enumerate(cell)
        for edge in node
    ]
    for begin, end, _ in edges:
        _arrow(axes, begin, end, _bend(begin, end), "0.35")
    for begin in PLACES[INPUTS:-1]:
        _arrow(
            axes, begin, PLACES[-1], 0.25 if begin[1] < 0 else -0.25, "0.75"
        )  # around nodes on the way to the output
    _label(axes, edges)
    colors = [GREEN] * INPUTS + [BLUE] * NODES + [YELLOW]
    for place, name, color in zip(PLACES, NAMES, colors, strict=True):
        box = {"boxstyle": "round,pad=0.35", "facecolor": color, "edgecolor": "0.35"}
        axes.text(*place, name, ha="center", va="center", fontsize=10, bbox=box, zorder=4)
    axes.set(xlim=(-0.7, 8.8), ylim=(-2.5, 2.3))
    axes.set_axis_off()
    axes.set_title(title, fontsize=11)


def _bend(begin: Point, end: Point) -> float:
    return 0.1 if end[1] < begin[1] else -0.1


def _arrow(axes: Any, begin: Point, end: Point, bend: float, color: str) -> None:
    style = {"arrowstyle": "-|>", "color": color, "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", end, begin, arrowprops={**style, "shrinkA": 14, "shrinkB": 14})


def _label(axes: Any, edges: Sequence[tuple[Point, Point, str]]) -> None:
    """Write each operation on its edge, where it hides no other, no node and little of other edges.

    Those of short edges, which leave less choice, come first.
    """
    taken = [(place, NODE) for place in PLACES]
    for begin, end, operation in sorted(edges, key=lambda edge: math.dist(*edge[:2])):
        size = len(operation) * LETTER[0], LETTER[1]
        dots = [
            (_on_arc(*edge[:2], t / 50), DOT)
            for edge in edges
            if edge[:2] != (begin, end)
            for t in range(51)
        ]
        places = [_on_arc(begin, end, t) for t in ALONG]
        place = min(
            places, key=lambda place: sum(_overlap(place, size, *other) for other in taken + dots)
        )
        taken.append((place, size))
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        axes.text(*place, operation, ha="center", va="center", fontsize=7, bbox=box, zorder=3)


def _on_arc(begin: Point, end: Point, t: float) -> Point:
    """At a share of its way; its middle is off the straight line by half the bend, in inches."""
    (x0, y0), (x1, y1) = begin, end
    off, (wide, high) = 2 * t * (1 - t) * _bend(begin, end), PER_INCH
    return x0 + t * (x1 - x0) + off * (y1 - y0) * wide / high, y0 + t * (y1 - y0) - off * (
        x1 - x0
    ) * high / wide


def _overlap(place: Point, size: Point, other: Point, its: Point) -> float:
    """Area that two boxes around points have in common.

    >>> _overlap((0, 0), (2, 1), (1, 0.5), (2, 1)), _overlap((0, 0), (1, 1), (2, 0), (1, 1))
    (0.5, 0.0)
    """
    sides = [max((size[i] + its[i]) / 2 - abs(place[i] - other[i]), 0.0) for i in (0, 1)]
    return min(sides[0], size[0], its[0]) * min(sides[1], size[1], its[1])

"""Cells as pictures, in the colours of the paper's figure: inputs green, nodes blue, the output yellow."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bgn_lab import files
from bgn_lab.genotype import INPUTS, NODES, Cell, Genotype

GREEN, BLUE, YELLOW = "#b7e1c0", "#bcd6f2", "#f7e3a1"
# left to right; the two inputs and, alternately, nodes are above each other, so that edges do not run through nodes
PLACES = [(0.0, 0.55), (0.0, -0.55), (1.7, 0.9), (3.0, -0.9), (4.3, 0.9), (5.6, -0.9), (7.4, 0.0)]
NAMES = ["c(k-2)", "c(k-1)", *(str(i) for i in range(NODES)), "c(k)"]


def write(genotype: Genotype, folder: Path) -> None:
    """cells.png and cells.svg."""
    figure = draw(genotype)
    for kind in ("png", "svg"):
        content = BytesIO()
        figure.savefig(content, format=kind, dpi=130)
        files.write(folder / f"cells.{kind}", content.getvalue())


def draw(genotype: Genotype) -> Figure:
    """A panel for each kind of cell, or for each cell where all are different."""
    cells = {f"cell {i + 1}": cell for i, cell in enumerate(genotype.cells)}
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
    for i, node in enumerate(cell):
        for edge in node:
            _arrow(axes, PLACES[edge.state], PLACES[INPUTS + i], edge.operation)
    for i in range(NODES):
        _arrow(axes, PLACES[INPUTS + i], PLACES[-1], "")
    colours = [GREEN] * INPUTS + [BLUE] * NODES + [YELLOW]
    for place, name, colour in zip(PLACES, NAMES, colours, strict=True):
        box = {"boxstyle": "round,pad=0.35", "facecolor": colour, "edgecolor": "0.35"}
        axes.text(*place, name, ha="center", va="center", fontsize=10, bbox=box, zorder=4)
    axes.set(xlim=(-0.7, 8.0), ylim=(-2.1, 2.1))
    axes.set_axis_off()
    axes.set_title(title, fontsize=11)


def _arrow(axes: Any, begin: tuple[float, float], end: tuple[float, float], operation: str) -> None:
    bend = 0.0 if not operation else 0.22 if end[1] < begin[1] else -0.22
    style = {"arrowstyle": "-|>", "color": "0.35" if operation else "0.75", "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", end, begin, arrowprops={**style, "shrinkA": 14, "shrinkB": 14})
    if operation:
        (x0, y0), (x1, y1) = begin, end
        # the middle of the arc, a little nearer to its end, where edges that begin together are apart
        x, y = x0 + 0.55 * (x1 - x0) + 0.5 * bend * (y1 - y0), y0 + 0.55 * (y1 - y0) - 0.5 * bend * (x1 - x0)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85}
        axes.text(x, y, operation, ha="center", va="center", fontsize=7, bbox=box, zorder=3)

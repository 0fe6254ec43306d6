"""The picture of a run: BGN's time by its rivals' on each feature map, by the size of the map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.targets import TARGETS, TRAINING, Row, Target, Verdict, judge, ratio
from bgn_lab.system.files import write_figure

# darker is larger; markers too, for eyes and printers without color
SIZES = {2: ("o", "#f4a259"), 8: ("s", "#d1495b"), 32: ("^", "#7b2d6b"), 128: ("D", "#1b1b3a")}
TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1, 1.5, 2, 3, 5)
MEGABYTES = (0.1, 0.3, 1, 3, 10, 30, 100, 300)
FASTER, LIMIT = "#e9f3ee", "#2a7f62"
Point = tuple[float, float, int, str]  # megabytes, ratio, batch size, shape


def picture(rows: Sequence[Row], path: Path) -> bool:
    """Draw training on ResNet-50's shapes; False where none was measured."""
    from matplotlib.figure import Figure

    targets = [t for t in TARGETS if t.where == TRAINING and t.ours == "bgn"]
    panels = [(target, own) for target in targets if (own := _points(target, rows))]
    if not panels:
        return False
    drawing = Figure(figsize=(3.7 * len(panels) + 0.5, 4.6), layout="constrained")
    axes = drawing.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, (target, points) in zip(axes, panels, strict=True):
        _panel(axis, target, points, judge(target, rows))
    every = [y for _, points in panels for _, y, _, _ in points]
    low, high = min([*every, 0.4]) / 1.15, max([*every, 1.3]) * 1.25
    axes[0].set_ylim(low, high)
    axes[0].set_yticks(*_ticks(TICKS, low, high))
    low, high = axes[0].get_xlim()
    axes[0].set_xticks(*_ticks(MEGABYTES, low, high))
    for axis in axes:
        axis.axhspan(axis.get_ylim()[0], 1, color=FASTER, zorder=0)
        axis.set_axisbelow(True)
        axis.minorticks_off()
    axes[0].set_ylabel("BGN's time / rival's time")
    handles, labels = axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False)
    drawing.suptitle("Training on each feature map of ResNet-50, float32: in green, BGN is faster")
    write_figure(path, drawing)
    return True


def _points(target: Target, rows: Sequence[Row]) -> list[Point]:
    return [
        (row["megabytes"], value, row["N"], f"{row['N']}x{row['shape']}")
        for row in rows
        if target.covers(row) and (value := ratio(row, target.ours, target.theirs)) is not None
    ]


def _ticks(ticks: Sequence[float], low: float, high: float) -> tuple[list[float], list[str]]:
    shown = [tick for tick in ticks if low <= tick <= high]
    return shown, [f"{tick:g}" for tick in shown]


def _panel(axis: Any, target: Target, points: list[Point], found: Verdict) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    for N, (marker, color) in SIZES.items():
        own = [(x, y) for x, y, size, _ in points if size == N]
        if own:
            axis.scatter(
                *zip(*own, strict=True), s=28, marker=marker, color=color, label=f"batch {N}",
                edgecolors="white", linewidths=0.5, zorder=3,
            )  # fmt: skip
    axis.axhline(1, color="black", lw=1, zorder=2)
    axis.axhline(target.mean, color=LIMIT, lw=1.3, ls="--", label="target: mean", zorder=2)
    if target.worst is not None:
        axis.axhline(target.worst, color=LIMIT, lw=1.3, ls=":", label="target: worst", zorder=2)
    x, y, _, name = max(points, key=lambda point: point[1])
    middle = sorted(point[0] for point in points)[len(points) // 2]
    axis.annotate(
        f"{name}: {y:.2f}", (x, y), (0, 7), textcoords="offset points", fontsize=8,
        ha="left" if x < middle else "right",
    )  # fmt: skip
    least = f", {target.least_megabytes:g} MB and more" if target.least_megabytes else ""
    theirs = "floor (x + 1, x + gy)" if target.theirs == "floor" else target.theirs
    axis.set_title(
        f"BGN / {theirs}{least}\nmean {found.mean:.2f}, target {target.mean:.2f}", fontsize=10
    )
    axis.set_xlabel("feature map, MB")
    axis.grid(color="#d4dcd8", lw=0.5)

"""Pictures of the study "Which G?"."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from bgn_lab.system import files
from studies.which_g_report import FLOOR, Entry, Key, regrets

BESIDE = 700  # where marks of other rows are on the axis of G
FIXED = re.compile(r"BGN, G = (\d+)")


def accuracy_by_groups(found: dict[Key, dict[str, Entry]], path: Path) -> None:
    """One panel for each data set and network: accuracy against G, a line for each batch size.

    BN and auto stand beside.
    """
    from matplotlib.figure import Figure

    places = list(
        dict.fromkeys(
            key[:2] for key in sorted(found) if sum(map(bool, map(FIXED.fullmatch, found[key]))) > 1
        )
    )
    figure = Figure(figsize=(5.2 * len(places), 4.2), layout="constrained")
    panels = figure.subplots(1, len(places), squeeze=False)[0]
    for panel, (where, epochs) in zip(panels, places, strict=True):
        sizes = sorted(key[2] for key in found if key[:2] == (where, epochs))
        for number, size in enumerate(sizes):
            rows = found[where, epochs, size]
            points = sorted(
                (int(m[1]), entry.test)
                for label, entry in rows.items()
                if (m := FIXED.fullmatch(label))
            )
            if len(points) < 2:
                continue
            (line,) = panel.plot(
                *zip(*points, strict=True), marker="o", label=f"batch {size}", color=f"C{number}"
            )
            for label, mark in (("BN", "_"), (FLOOR, "*")):
                if label in rows:
                    panel.scatter(
                        [BESIDE], [rows[label].test], marker=mark, s=90, color=line.get_color()
                    )
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
        panel.set_xlabel(f"G, the same in all layers   (right: _ BN, * {FLOOR})")
        panel.set_ylabel("test accuracy, %")
        panel.set_title(f"{where}, {epochs} epochs")
        panel.grid(alpha=0.3)
        panel.legend()
    files.write_figure(path, figure)


def regret_by_row(found: dict[Key, dict[str, Entry]], path: Path) -> None:
    """Mean regret of each row, and every cell as a dot."""
    from matplotlib.figure import Figure

    lost = {label: own for label, own in regrets(found).items() if own}
    order = sorted(lost, key=lambda label: statistics.mean(lost[label].values()), reverse=True)
    figure = Figure(figsize=(7.5, 0.3 * len(order) + 1), layout="constrained")
    panel = figure.subplots()
    panel.barh(order, [statistics.mean(lost[label].values()) for label in order], color="0.8")
    for label in order:
        panel.scatter(
            list(lost[label].values()), [label] * len(lost[label]), s=14, color="C0", zorder=3
        )
    panel.axvline(0, color="0.3", linewidth=1)
    panel.margins(y=0.01)
    panel.set_xlabel("points behind the best of BN, GN, LN, IN\n(bar: mean; dot: a cell)")
    panel.grid(axis="x", alpha=0.3)
    files.write_figure(path, figure)

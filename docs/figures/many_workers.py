"""Draw what many workers of two images reach, beside BN of workers with 32.

    python -m docs.figures.many_workers

reads results/many-workers and writes docs/assets/many-workers.png.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from docs.figures import style
from studies.ledger import Ledger
from studies.many_workers.diagnosis import Diagnoses
from studies.many_workers.report import Row, collect
from studies.many_workers.run import DIAGNOSES, LEDGER

MINI = Path("mini100_32.npz")  # its name is part of a run's; nothing is read
SHOWN = (
    "bgn+ws, G = 1", "bgn+ws, G = 8", "gn+ws", "bn+ws", "bn", "bgn, auto", "bgn, G = 8",
    "bgn, G = 1", "gn",
)  # fmt: skip


def found() -> dict[str, dict[str, Row]]:
    """Rows by cell and name."""
    ledger, diagnoses = Ledger(style.ROOT / LEDGER), Diagnoses(style.ROOT / DIAGNOSES)
    return {
        cell: {row.name: row for row in rows}
        for cell, rows in collect(MINI, ledger, diagnoses).items()
    }


def color(name: str) -> str:
    return style.BLUE if name.startswith("bgn") else style.GRAY


def bars(axes: Any, rows: dict[str, Row]) -> None:
    shown = [rows[name] for name in SHOWN if name in rows]
    shown.sort(key=lambda row: statistics.mean(row.tests.values()))
    means = [statistics.mean(row.tests.values()) for row in shown]
    spread = [
        statistics.stdev(o) if len(o := [*row.tests.values()]) > 1 else math.nan for row in shown
    ]
    places = range(len(shown))
    axes.barh(
        places, means, xerr=spread, color=[color(row.name) for row in shown],
        alpha=0.85, error_kw={"capsize": 4},
    )  # fmt: skip
    for place, mean, own in zip(places, means, spread, strict=True):
        axes.text(mean + (0 if math.isnan(own) else own) + 0.3, place, f"{mean:.1f}", va="center")
    axes.set_yticks(places, [row.label for row in shown])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("test accuracy with 2 images per worker, %")


def main() -> None:
    cells = found()
    drawn = style.figure(9, 5.4)
    axes = drawn.subplots()
    bars(axes, cells["mini-2"])
    large = cells.get("mini-32", {})
    lines = {"bn": ("BN, 32 images", "--"), "bn+ws": ("BN + WS, 32 images", ":")}
    for name, (label, dashes) in lines.items():
        if name in large:
            mean = statistics.mean(large[name].tests.values())
            axes.axvline(mean, color="black", linestyle=dashes, label=f"{label}: {mean:.1f}")
    if axes.get_legend_handles_labels()[0]:
        drawn.legend(loc="outside lower center", ncols=2, frameon=False)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.06)
    style.save(drawn, "many-workers")


if __name__ == "__main__":
    main()

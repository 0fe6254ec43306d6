"""What the pictures share: letters that can be read at half the picture's size, and colors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bgn_lab.system import files

ROOT = Path(__file__).parent.parent.parent
ASSETS = ROOT / "docs" / "assets"
RESULTS = ROOT / "results"
DPI = 160  # 9 inches are 1440 pixels
LETTERS = 15  # points: 33 pixels, 16 at half the size
BLUE, ORANGE, GRAY, LIGHT = "#0072B2", "#D55E00", "#595959", "#d9d9d9"

mpl.rcParams.update(
    {
        "font.size": LETTERS,
        "axes.titlesize": LETTERS,
        "axes.labelsize": LETTERS,
        "legend.fontsize": LETTERS,
        "lines.markersize": 9,
        "lines.linewidth": 2.2,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e3e3e3",
    }
)


def figure(width: float, height: float) -> Figure:
    """An empty figure, in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def save(drawn: Figure, name: str) -> None:
    """Write a picture; the same figure makes the same bytes."""
    metadata: dict[str, Any] = {"Software": None}
    files.write_figure(ASSETS / f"{name}.png", drawn, dpi=DPI, metadata=metadata)

"""Training and validation accuracy by epoch, a line for each row of a study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bgn_lab.report.collect import Run
from bgn_lab.system import files

PARTS = {"train": "training images", "validation": "validation images"}
COLORS = {"bn": "tab:blue", "gn": "tab:green", "bgn": "tab:red"}
"""By normalizer."""


class Line(NamedTuple):
    """A run, and how it is drawn."""

    run: Run
    label: str
    norm: str
    style: str


def draw(lines: Sequence[Line], title: str, path: Path) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for panel, (part, images) in zip(panels, PARTS.items(), strict=True):
        for own in lines:
            values = [getattr(one, f"{part}_accuracy") for one in own.run.metrics]
            panel.plot(
                range(1, len(values) + 1),
                [None if value is None else 100 * value for value in values],
                color=COLORS[own.norm],
                linestyle=own.style,
                label=own.label,
            )
        panel.set_xlabel("epoch")
        panel.set_title(images)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy, %")
    panels[1].legend(fontsize=8)
    figure.suptitle(title)
    files.write_figure(path, figure)

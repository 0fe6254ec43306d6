"""Picture of one episode of few-shot learning: base classes, labeled images, queries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bgn_lab.system import files
from bgn_lab.system.printable import shorten

RIGHT, WRONG, PLAIN = "#009E73", "#D55E00", "0.4"
EACH = 2  # images of a base class
Base = tuple[Tensor, Sequence[str]]


def choose(x: Tensor, y: Tensor, classes: Sequence[str], most: int = 8) -> Base:
    """The first images of the first base classes: (classes, EACH, C, H, W) and the names.

    Classes with fewer images are left out.
    """
    index = {k: (y == k).nonzero().flatten()[:EACH] for k in range(len(classes))}
    shown = [k for k, own in index.items() if len(own) == EACH][:most]
    if not shown:
        return x[:0].unsqueeze(1), ()
    return x[torch.stack([index[k] for k in shown])], [classes[k] for k in shown]


def picture(
    base: Base,
    support: Tensor,
    queries: Tensor,
    given: Tensor,
    names: Sequence[str],
    title: str,
    path: Path,
) -> None:
    """Draw an episode.

    base: images and names of classes that the network learned from;
    support: (ways, shots, C, H, W) labeled images; queries: (ways, queries, C, H, W);
    given: (ways, queries) classes that the network gave them.
    """
    from matplotlib.figure import Figure

    (ways, shots), columns = support.shape[:2], support.shape[1] + queries.shape[1]
    known, known_names = base
    wide = 0.8 * max(columns, len(known_names)) + 1.9
    high = (2.4 if len(known_names) else 0.7) + 1.02 * ways
    figure = Figure(figsize=(wide, high), layout="constrained")
    if len(known_names):
        figure.suptitle(title, fontsize=11)
    below: Any = figure
    if len(known_names):
        parts: Any = figure.subfigures(2, 1, height_ratios=[1.9, 1.02 * ways + 0.5])
        above, below = parts
        _base(above, known, known_names)
    panels = below.subplots(
        ways, columns, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04}
    )
    for k in range(ways):
        for i in range(shots):
            _image(panels[k, i], support[k, i], PLAIN)
        for i in range(queries.shape[1]):
            taken = int(given[k, i])
            right = taken == k
            color, name = (RIGHT, "") if right else (WRONG, names[taken])
            _image(panels[k, shots + i], queries[k, i], color, name)
        name = shorten(names[k], 15)
        panels[k, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
    panels[0, 0].set_title("labeled", fontsize=9)
    panels[0, shots].set_title("queries", fontsize=9, loc="left")
    explained = "Novel classes. Green: recognized; red: taken for the class named below"
    below.suptitle(explained if len(known_names) else f"{title}\n{explained}", fontsize=10)
    files.write_figure(path, figure)


def _base(figure: Any, images: Tensor, names: Sequence[str]) -> None:
    panels = figure.subplots(EACH, len(names), squeeze=False)
    for j, name in enumerate(names):
        for i in range(EACH):
            _image(panels[i, j], images[j, i], PLAIN, name if i == EACH - 1 else "", 0.8)
    figure.suptitle("Base classes, learned from many labeled images", fontsize=10)


def _image(axes: Any, x: Tensor, color: str, below: str = "", line: float = 2.5) -> None:
    axes.imshow(x.permute(1, 2, 0).expand(-1, -1, 3).numpy())
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=color, linewidth=line)
    axes.set_xlabel(shorten(below, 13), fontsize=8, color=color, labelpad=1)

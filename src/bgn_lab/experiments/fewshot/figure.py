"""A picture of one episode of few-shot learning: the labelled images, the queries, and which class each query was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from bgn_lab.system import files

RIGHT, WRONG = "#009E73", "#D55E00"


def picture(
    support: Tensor, queries: Tensor, given: Tensor, names: Sequence[str], title: str, path: Path
) -> None:
    """Draw (ways, shots, C, H, W) labelled images, (ways, queries, C, H, W) queries and their (ways, queries) classes."""
    from matplotlib.figure import Figure

    (ways, shots), columns = support.shape[:2], support.shape[1] + queries.shape[1]
    figure = Figure(figsize=(0.72 * columns + 1.6, 0.95 * ways + 0.9), layout="constrained")
    panels = figure.subplots(
        ways, columns, squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04}
    )
    for k in range(ways):
        for i in range(shots):
            _image(panels[k, i], support[k, i], "0.25", "")
        for i in range(queries.shape[1]):
            right = int(given[k, i]) == k
            _image(
                panels[k, shots + i],
                queries[k, i],
                RIGHT if right else WRONG,
                "" if right else names[int(given[k, i])],
            )
        panels[k, 0].set_ylabel(_short(names[k]), rotation=0, ha="right", va="center", fontsize=8)
    panels[0, 0].set_title("labelled", fontsize=8)
    panels[0, shots].set_title("queries", fontsize=8, loc="left")
    figure.suptitle(f"{title}\ngreen: recognised; red: taken for the class named below", fontsize=9)
    files.write_figure(path, figure)


def _short(name: str) -> str:
    """
    >>> _short("a very long name of a class"), _short("robin")
    ('a very long na…', 'robin')
    """
    return name if len(name) <= 15 else f"{name[:14]}…"


def _image(axes: Any, x: Tensor, colour: str, below: str) -> None:
    axes.imshow(x.permute(1, 2, 0).expand(-1, -1, 3).numpy())
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=2.5)
    axes.set_xlabel(_short(below), fontsize=6, color=colour, labelpad=1)

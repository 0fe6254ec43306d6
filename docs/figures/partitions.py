"""Draw which elements of a feature map share a statistic, from the package's own partitions.

    python -m docs.figures.partitions

writes docs/assets/partitions.png (the paper's Figure 1, top) and one picture per normalizer. Blue:
the elements of the first statistic; strong lines: borders between statistics.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure
from torch import Tensor

from bgn.partition import channel_groups, slices

ASSETS = Path(__file__).parent.parent / "assets"
N, C, P = 4, 6, 6
FIRST, OTHER, GRID, BORDER = "#3f77c4", "#f4f1ea", "#c9c3b6", "#33322e"
DEPTH = (0.42, 0.30)  # one step along the batch axis, in the plane of the picture


def positional_labels() -> Tensor:
    """PN: one statistic per sample and position."""
    return torch.arange(N * P).view(N, 1, P).expand(N, C, P)


PARTITIONS: dict[str, tuple[str, Tensor]] = {
    "bn": ("BN", slices(N, C, P, G=C).labels()),
    "in": ("IN", slices(N, C, P, G=C, B=N).labels()),
    "ln": ("LN", slices(N, C, P, G=1, B=N).labels()),
    "gn": ("GN, G = 3", slices(N, C, P, G=3, B=N).labels()),
    "pn": ("PN", positional_labels()),
    "gbgn": ("GBGN, G = 3, 2 blocks", channel_groups(N, C, P, G=3, B=2).labels()),
    "bgn-few": ("BGN, G = 2 < C", slices(N, C, P, G=2).labels()),
    "bgn-many": ("BGN, G = 12 > C", slices(N, C, P, G=12).labels()),
}
Point = tuple[float, float]


def project(c: float, p: float, n: float) -> Point:
    """Channels to the right, positions downwards, samples backwards."""
    return c + n * DEPTH[0], -p + n * DEPTH[1]


def faces(labels: Tensor) -> list[tuple[Tensor, Any]]:
    """The three visible faces: their labels, and the projection of a corner (row, column)."""
    return [
        (
            labels[0].T,
            lambda r, k: project(k, r, 0),
        ),  # front: positions x channels of the first sample
        (
            labels[:, :, 0],
            lambda r, k: project(k, 0, r),
        ),  # top: samples x channels of the first position
        (
            labels[:, -1, :].T,
            lambda r, k: project(C, r, k),
        ),  # side: positions x samples of the last channel
    ]


def draw(axes: Any, title: str, labels: Tensor) -> None:
    """One feature map as a box."""
    cells: list[list[Point]] = []
    colors: list[str] = []
    borders: list[list[Point]] = []
    for face, corner in faces(labels):
        rows, columns = face.shape
        for r in range(rows):
            for k in range(columns):
                cells.append(
                    [corner(r, k), corner(r, k + 1), corner(r + 1, k + 1), corner(r + 1, k)]
                )
                colors.append(FIRST if face[r, k] == 0 else OTHER)
                if r == 0 or face[r, k] != face[r - 1, k]:
                    borders.append([corner(r, k), corner(r, k + 1)])
                if k == 0 or face[r, k] != face[r, k - 1]:
                    borders.append([corner(r, k), corner(r + 1, k)])
        borders += [
            [corner(rows, 0), corner(rows, columns)],
            [corner(0, columns), corner(rows, columns)],
        ]
    axes.add_collection(PolyCollection(cells, facecolors=colors, edgecolors=GRID, linewidths=0.5))
    axes.add_collection(LineCollection(borders, colors=BORDER, linewidths=1.3, capstyle="round"))
    axes.set_title(title, fontsize=16, pad=4)
    axes.text(C / 2, -P - 0.25, "C", ha="center", va="top", fontsize=13)
    axes.text(-0.25, -P / 2, "H, W", ha="right", va="center", fontsize=13, rotation=90)
    axes.text(*project(C + 0.45, P + 0.1, N / 2), "N", ha="left", va="center", fontsize=13)
    axes.set(
        xlim=(-1.0, C + N * DEPTH[0] + 0.6), ylim=(-P - 1.0, N * DEPTH[1] + 0.2), aspect="equal"
    )
    axes.axis("off")


def save(figure: Figure, name: str) -> None:
    figure.savefig(ASSETS / f"{name}.png", dpi=150, facecolor="white", metadata={"Software": None})


def main() -> None:
    ASSETS.mkdir(exist_ok=True)
    together = Figure(figsize=(9.6, 5.2), layout="constrained")
    for axes, (title, labels) in zip(
        together.subplots(2, 4).flat, PARTITIONS.values(), strict=True
    ):
        draw(axes, title, labels)
    save(together, "partitions")
    for name, (title, labels) in PARTITIONS.items():
        figure = Figure(figsize=(2.8, 2.8), layout="constrained")
        draw(figure.subplots(), title, labels)
        save(figure, name)


if __name__ == "__main__":
    main()

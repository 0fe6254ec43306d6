"""Draw the pictures of the study "Which G?" from its record.

    python -m docs.figures.which_g

reads results/which-g/results.json and writes docs/assets/which-g-groups.png (accuracy against G)
and docs/assets/which-g-regret.png, which shows the rows and cells of the page's first table.
"""

from __future__ import annotations

import re
import statistics
from typing import Any

from docs.figures import style
from studies.which_g_report import FLOOR, HELD_OUT, MIXTURES, Entry, Key, mixed, recorded, regrets

FIXED = re.compile(r"BGN, G = (\d+)")
GROUPS = (1, 8, 64, 256)
COLORS = {2: style.ORANGE, 8: style.BLUE, 32: "#009E73"}
TITLES = {
    "fashion-mnist, resnet14": "Fashion-MNIST, ResNet-14",
    "mini20, resnet10": "miniImageNet, ResNet-10",
}
SHOWN = ("IN up to 2 images, BN above", "GN up to 2 images, BN above")  # of the mixtures


def groups(found: dict[Key, dict[str, Entry]]) -> None:
    """A panel for each data set, a line for each batch size; BN and 16+ values stand beside."""
    columns = [*(f"BGN, G = {G}" for G in GROUPS), FLOOR, "BN"]
    names = [*map(str, GROUPS), "16+", "BN"]
    drawn = style.figure(10.5, 6)
    panels = drawn.subplots(1, len(TITLES))
    for axes, (cell, title) in zip(panels, TITLES.items(), strict=True):
        for size, color in COLORS.items():
            rows = next(own for key, own in found.items() if key[0] == cell and key[2] == size)
            points = [(x, rows[name].test) for x, name in enumerate(columns) if name in rows]
            fixed = [point for point in points if point[0] < len(GROUPS)]
            if len(fixed) > 1:
                axes.plot(*zip(*fixed, strict=True), marker="o", color=color, label=f"batch {size}")
                beside = [point for point in points if point[0] >= len(GROUPS)]
                axes.plot(*zip(*beside, strict=True), marker="D", linestyle="", color=color)
        axes.axvline(len(GROUPS) - 0.5, color=style.GRAY, linewidth=1, linestyle=":")
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.4, len(names) - 0.5)
        axes.set_xlabel("G, the same in all layers")
        axes.set_ylabel("test accuracy, %")
        axes.set_title(title)
    handles, labels = panels[-1].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    style.save(drawn, "which-g-groups")


def chosen_on(found: dict[Key, dict[str, Entry]]) -> dict[str, dict[Key, float]]:
    """Regrets of the rows of the page's first table: those that were run in every cell of it."""
    own = {key: rows for key, rows in mixed(found).items() if HELD_OUT not in key[0]}
    lost = regrets(own)
    cells = max(map(len, lost.values()))
    hidden = set(MIXTURES) - set(SHOWN)
    return {name: by for name, by in lost.items() if len(by) == cells and name not in hidden}


def regret(found: dict[Key, dict[str, Entry]]) -> None:
    """The mean as a bar and in numbers, every cell as a dot."""
    lost = chosen_on(found)
    means = {name: statistics.mean(by.values()) for name, by in lost.items()}
    order = sorted(means, key=lambda name: means[name])
    drawn = style.figure(10, 0.46 * len(order) + 1.6)
    axes: Any = drawn.subplots()
    places = range(len(order))
    axes.barh(places, [means[name] for name in order], color=style.LIGHT)
    for y, name in zip(places, order, strict=True):
        values = list(lost[name].values())
        axes.scatter(values, [y] * len(values), s=42, color=style.BLUE, alpha=0.75, zorder=3)
        axes.text(24.6, y, f"{means[name]:.1f}", ha="right", va="center", fontweight="bold")
    axes.axvline(0, color="black", linewidth=1.4)
    axes.set_yticks(places, order)
    axes.set_ylim(len(order) - 0.4, -0.6)
    axes.set_xlim(-3, 25)
    axes.grid(visible=False, axis="y")
    cells = len(next(iter(lost.values())))
    axes.set_xlabel(
        f"points behind the best of BN, GN, LN and IN\n({cells} cells: a dot each; bar: their mean)"
    )
    style.save(drawn, "which-g-regret")


def main() -> None:
    found = recorded(style.RESULTS / "which-g/results.json")
    groups(found)
    regret(found)


if __name__ == "__main__":
    main()

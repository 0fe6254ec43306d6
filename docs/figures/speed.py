"""Draw how long BGN takes beside BN and GN, by the size of the feature map.

    python -m docs.figures.speed

reads results/bench/xeon and results/bench/epyc, two runs each, and writes docs/assets/speed.png. A
bar is the geometric mean over ResNet-50's feature maps of that size at batch 2, 8, 32 and 128; the
line through it goes from the fastest map to the slowest.
"""

from __future__ import annotations

from typing import Any

from benchmarks import results
from benchmarks.targets import BN, GN, TRAINING, geometric_mean, ratio
from docs.figures import style

MACHINES = {"Intel Xeon": ("xeon", style.BLUE), "AMD EPYC": ("epyc", style.ORANGE)}
SIZES = (0, 1, 3, 10, 30, 100, 1000)  # megabytes
NAMES = ("below 1 MB", "1 to 3 MB", "3 to 10 MB", "10 to 30 MB", "30 to 100 MB", "100 MB and more")


def ratios(folder: str, theirs: str) -> list[list[tuple[float, int]]]:
    """For each size of a map: BGN's time by the other's, and how often it counts."""
    rows = [
        row
        for run in ("run1", "run2")
        for row in results.load(style.RESULTS / "bench" / folder / run)["rows"]
        if all(row[field] == value for field, value in TRAINING.items())
    ]
    made: list[list[tuple[float, int]]] = [[] for _ in NAMES]
    for row in rows:
        value = ratio(row, "bgn", theirs)
        if value is not None:
            place = next(i for i, most in enumerate(SIZES[1:]) if row["megabytes"] < most)
            made[place].append((value, row["count"]))
    return made


def panel(axes: Any, theirs: str) -> None:
    """One rival: two bars for each size, small maps above."""
    for shift, (name, (folder, color)) in zip((-0.2, 0.2), MACHINES.items(), strict=True):
        found = ratios(folder, theirs)
        places = [y + shift for y in range(len(NAMES))]
        means = [geometric_mean(pairs) for pairs in found]
        axes.barh(places, means, height=0.36, color=color, label=name)
        for y, mean, pairs in zip(places, means, found, strict=True):
            values = [value for value, _ in pairs]
            axes.plot([min(values), max(values)], [y, y], color="black", linewidth=1.4)
            axes.text(0.03, y, f"{mean:.2f}", va="center", color="white", fontsize=13)
    axes.axvline(1, color="black", linewidth=1.6)
    axes.set_yticks(range(len(NAMES)), NAMES)
    axes.set_ylim(len(NAMES) - 0.5, -0.5)
    axes.set_xlim(0, 1.5)
    axes.grid(visible=False, axis="y")
    axes.set_title(f"BGN's time / {theirs}'s")


def main() -> None:
    drawn = style.figure(10, 6)
    left, right = drawn.subplots(1, 2, sharey=True)
    panel(left, BN)
    panel(right, GN)
    handles, labels = left.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    left.set_ylabel("feature map, float32")
    style.save(drawn, "speed")


if __name__ == "__main__":
    main()

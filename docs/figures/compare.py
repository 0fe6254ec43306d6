"""Draw accuracy against batch size: what `make compare` measured, and what the paper reports.

    python -m docs.figures.compare

reads results/compare/results.json and writes docs/assets/compare.png.
"""

from __future__ import annotations

import json
from typing import Any

from docs.figures import style

from bgn_lab import paper
from bgn_lab.report.figures import STYLES

ORDER = ("BN", "IN", "LN", "GN", "PN", "GBGN", "BGN")
OURS = "BGN, paper's G"  # the row that the paper's BGN is compared with
SIZES = (2, 8, 32)


def measured() -> dict[str, dict[int, tuple[float, float]]]:
    """Mean and deviation in percent by normalizer and batch size."""
    (found,) = json.loads((style.RESULTS / "compare/results.json").read_text())["comparisons"]
    made: dict[str, dict[int, tuple[float, float]]] = {}
    for cell in found["cells"]:
        name = "BGN" if cell["normalizer"] == OURS else cell["normalizer"]
        if name in ORDER:
            accuracy = cell["accuracy"]
            made.setdefault(name, {})[cell["place"]] = (
                accuracy["mean"],
                accuracy["deviation"],
            )
    return made


def look(name: str) -> dict[str, Any]:
    color, marker = STYLES[name]
    strong = name in ("BN", "BGN")
    return {
        "color": color, "marker": marker, "label": name, "linewidth": 3.4 if strong else 1.8,
        "markersize": 16 if marker == "*" else 9, "zorder": 3 if strong else 2,
    }  # fmt: skip


def left(axes: Any) -> None:
    found = measured()
    for number, name in enumerate(ORDER):
        shift = 2 ** (0.12 * (number - 3))  # so that bars do not hide each other
        points = [found[name][size] for size in SIZES]
        axes.errorbar(
            [shift * size for size in SIZES], [mean for mean, _ in points],
            [deviation for _, deviation in points], capsize=3, elinewidth=1.2, **look(name),
        )  # fmt: skip
    axes.set_title("measured: ResNet-8, Fashion-MNIST,\n3,240 images, 2 epochs")
    finish(axes, SIZES)


def right(axes: Any) -> None:
    for key, values in paper.IMAGENET.rows.items():
        axes.plot(paper.BATCH_SIZES, values, **look(paper.NORMALIZERS[key]))
    axes.set_title("the paper's: ResNet-50, ImageNet,\n1.3 million images, 120 epochs")
    finish(axes, paper.BATCH_SIZES)


def finish(axes: Any, sizes: tuple[int, ...]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("images normalized together")
    axes.set_ylabel("test accuracy, %")


def main() -> None:
    drawn = style.figure(10.5, 6)
    panels = drawn.subplots(1, 2)
    left(panels[0])
    right(panels[1])
    handles, labels = panels[1].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False,
                 columnspacing=1.1, handlelength=1.6)  # fmt: skip
    style.save(drawn, "compare")


if __name__ == "__main__":
    main()

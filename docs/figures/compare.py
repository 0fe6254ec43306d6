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
STANDARDIZED = ("BN + WS", "GN + WS", "BGN + WS")  # dashed
PAPERS = ", paper's G"  # of the rows that are compared with the paper's BGN
SIZES = (2, 8)


def measured() -> dict[str, dict[int, tuple[float, float]]]:
    """Mean and deviation in percent by normalizer and batch size."""
    (found,) = json.loads((style.RESULTS / "compare/results.json").read_text())["comparisons"]
    made: dict[str, dict[int, tuple[float, float]]] = {}
    for cell in found["cells"]:
        name = cell["normalizer"].removesuffix(PAPERS)
        if name in (*ORDER, *STANDARDIZED):
            accuracy = cell["accuracy"]
            made.setdefault(name, {})[cell["place"]] = (
                accuracy["mean"],
                accuracy["deviation"],
            )
    return made


def look(name: str) -> dict[str, Any]:
    color, marker = STYLES[name.removesuffix(" + WS")]
    strong = name in ("BN", "BGN")
    return {
        "color": color, "marker": marker, "label": name,
        "linestyle": "--" if name in STANDARDIZED else "-", "linewidth": 3.4 if strong else 1.8,
        "markersize": 16 if marker == "*" else 9, "zorder": 3 if strong else 2,
    }  # fmt: skip


def left(axes: Any) -> None:
    found = measured()
    for number, name in enumerate((*ORDER, *STANDARDIZED)):
        shift = 2 ** (0.04 * (number - 4.5))  # so that bars do not hide each other
        points = [found[name][size] for size in SIZES]
        axes.errorbar(
            [shift * size for size in SIZES], [mean for mean, _ in points],
            [deviation for _, deviation in points], capsize=3, elinewidth=1.2, **look(name),
        )  # fmt: skip
    axes.set_title("measured: ResNet-8, Fashion-MNIST,\n3,240 images, 7 epochs; 8 workers")
    finish(axes, SIZES)


def right(axes: Any) -> None:
    for key, values in paper.IMAGENET.rows.items():
        axes.plot(paper.BATCH_SIZES, values, **look(paper.NORMALIZERS[key]))
    axes.set_title("the paper's: ResNet-50, ImageNet,\n1.3 million images, 120 epochs; 8 workers")
    finish(axes, paper.BATCH_SIZES)


def finish(axes: Any, sizes: tuple[int, ...]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("images per worker")
    axes.set_ylabel("test accuracy, %")


def main() -> None:
    drawn = style.figure(10.5, 6)
    panels = drawn.subplots(1, 2)
    left(panels[0])
    right(panels[1])
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False,
                 columnspacing=1.1, handlelength=2.4)  # fmt: skip
    style.save(drawn, "compare")


if __name__ == "__main__":
    main()

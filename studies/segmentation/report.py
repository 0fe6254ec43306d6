"""Tables and pictures of the study "real streets, one and two images at a time".

python -m studies.segmentation.report --data camvid_240.npz --weights mobilenet_v2.pth
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bgn_lab import norms
from bgn_lab.experiments.segmentation import figure
from bgn_lab.report.collect import Run
from bgn_lab.report.text import table
from bgn_lab.system import files
from studies import rates
from studies.intervals import Scores, compared, spread
from studies.ledger import Ledger
from studies.runner import folder_name
from studies.segmentation.plan import SEEDS, best
from studies.segmentation.rows import CELLS, ROWS, Sources
from studies.segmentation.run import FOLDER, LEDGER, RESULTS, arguments

BN, FROZEN = "bn", "bn+frozen"
EXACT = "test_iou_recalibrated"


@dataclass(frozen=True)
class Row:
    """Runs of one row in one cell, at the rate that was chosen for it."""

    name: str
    runs: tuple[Run, ...]

    @property
    def label(self) -> str:
        """Name in tables."""
        return norms.label(self.runs[0].recipe)

    def scores(self, key: str = "test_iou") -> dict[int, float]:
        """A measure in %, by seed."""
        found = {r.recipe.seed: r.result.measure(key) for r in self.runs if r.result is not None}
        return {seed: 100 * value for seed, value in found.items() if value is not None}


Found = Mapping[str, Mapping[str, Row]]
"""Rows by cell and name, the best on validation images first."""


def collect(sources: Sources, ledger: Ledger) -> dict[str, dict[str, Row]]:
    """Rows that were trained to the end."""
    found: dict[str, dict[str, Row]] = {}
    for cell, own in CELLS.items():
        chosen = {name: best(cell, name, sources, ledger) for name in own.rows}
        full = {name: recipe for name, recipe in chosen.items() if recipe is not None}
        for name, recipe in rates.ordered(full, ledger).items():
            runs = (ledger.get(replace(recipe, seed=seed)) for seed in SEEDS)
            done = tuple(run for run in runs if run is not None)
            found.setdefault(cell, {})[name] = Row(name, done)
    return found


def scores(rows: Mapping[str, Row]) -> str:
    """Markdown table of a cell."""
    lines = []
    for own in rows.values():
        against = [
            compared(own.scores(), rows[name].scores()) if name in rows and own.name != name else ""
            for name in (BN, FROZEN)
        ]
        gain = _recalibrated(own)
        tested = own.scores(), own.scores("validation_iou"), own.scores("test_accuracy")
        rate = f"{own.runs[0].recipe.lr:g}"
        lines.append([own.label, rate, *map(spread, tested), str(len(own.runs)), *against, gain])
    header = [
        "row", "lr", "test IoU", "validation IoU", "pixel accuracy", "seeds", "to BN",
        "to frozen BN", "recalibrated",
    ]  # fmt: skip
    return table(header, lines)


def sizes(found: Found, prefix: str) -> str:
    """Markdown table: mean IoU by images that share statistics."""
    cells = [cell for cell in found if cell.startswith(prefix)]
    names = [name for name in ROWS if sum(name in found[cell] for cell in cells) > 1]
    labels = {name: own.label for cell in cells for name, own in found[cell].items()}
    lines = [
        [labels[n], *(spread(found[c][n].scores()) if n in found[c] else "" for c in cells)]
        for n in names
    ]
    return table(["row", *(cell.partition("-")[2] for cell in cells)], lines)


def answers(found: Found, prefix: str) -> str:
    """What the rules say to the questions, as a Markdown list."""
    said = []
    for n in (1, 2):
        rows = found.get(f"{prefix}-{n}", {})
        if not rows:
            continue
        ranked = sorted(rows.values(), key=lambda own: -_mean(own.scores()))
        near = [
            own.label
            for own in ranked[1:]
            if not compared(ranked[0].scores(), own.scores()).startswith("leads")
        ]
        beside = f"; not told apart from it: {', '.join(near)}" if near else ""
        said.append(f"- At {n}: {ranked[0].label} is best, {spread(ranked[0].scores())}{beside}.")
        said += [
            f"- At {n}: {own.label} to frozen BN: {compared(own.scores(), rows[FROZEN].scores())}."
            for own in ranked
            if own.name.startswith("bgn+renorm") and FROZEN in rows
        ]
        said += [
            f"- At {n}: recalibration of {own.label}: {_recalibrated(own)}."
            for own in ranked
            if own.scores(EXACT)
        ]
    said += [
        f"- Four neighboring windows instead of four images, {own.label}:"
        f" {compared(own.scores(), found[f'{prefix}-4'][name].scores())}."
        for name, own in found.get(f"{prefix}-4-neighbors", {}).items()
        if name in found.get(f"{prefix}-4", {})
    ]
    return "\n".join(said) + "\n" if said else ""


def _recalibrated(row: Row) -> str:
    """What exact statistics change, with the same weights."""
    words = "helps", "hurts", "no difference seen"
    return compared(row.scores(EXACT), row.scores(), words)


def _mean(values: Scores) -> float:
    return statistics.mean(values.values()) if values else 0.0


def text(found: Found) -> str:
    """The whole report."""
    parts = [
        "# Real streets, one and two images at a time\n",
        "Written by `python -m studies.segmentation.report`; what was asked and what counts as"
        " what: `studies/segmentation/README.md`. Mean IoU of CamVid's 11 classes in %, mean ±"
        " standard deviation over seeds; differences paired by seed, with 95 % intervals"
        " (Student's t).\n",
    ]
    for prefix in dict.fromkeys(cell.partition("-")[0] for cell in found):
        if said := answers(found, prefix):
            parts += [f"## {prefix}: what the rules say\n", said]
        if sum(cell.startswith(prefix) for cell in found) > 1:
            parts += [f"## {prefix}: test IoU by images that share statistics\n"]
            parts += [sizes(found, prefix)]
    for cell, rows in found.items():
        parts += [f"## `{cell}`\n", scores(rows)]
    return "\n".join(parts)


COLORS = {"bn": "tab:blue", "gn": "tab:orange", "bgn": "tab:red", "ln": "tab:green"}
STYLES = {"": "-", "frozen": "--", "renorm": ":", "ws": "-."}


def curves(found: Found, path: Path) -> None:
    """Mean IoU against the images that share statistics, a panel for each network."""
    from matplotlib.figure import Figure

    prefixes = list(dict.fromkeys(cell.partition("-")[0] for cell in found))
    drawing = Figure(figsize=(5.4 * len(prefixes), 4.4), layout="constrained")
    panels = drawing.subplots(1, len(prefixes), squeeze=False)[0]
    titles = {"mobilenet": "FPN on ImageNet's MobileNetV2", "unet": "U-Net from scratch"}
    for panel, prefix in zip(panels, prefixes, strict=True):
        cells = {
            CELLS[cell].n: rows
            for cell, rows in found.items()
            if cell.startswith(prefix) and CELLS[cell].neighbors == 1
        }
        for name in ROWS:
            points = {n: rows[name].scores() for n, rows in sorted(cells.items()) if name in rows}
            points = {n: own for n, own in points.items() if own}
            if len(points) < 2:
                continue
            norm, _, rest = name.partition("+")
            row = next(rows[name] for rows in cells.values() if name in rows)
            panel.errorbar(
                list(points),
                [_mean(own) for own in points.values()],
                [statistics.stdev(o.values()) if len(o) > 1 else 0 for o in points.values()],
                color=COLORS.get(norm.partition(",")[0], "0.5"),
                linestyle=STYLES.get(rest.partition(",")[0], "-"),
                marker="o",
                markersize=4,
                capsize=2,
                label=row.label,
            )
        panel.set_xscale("log", base=2)
        panel.set_xticks(sorted(cells), [str(n) for n in sorted(cells)])
        panel.set_xlabel("images that share statistics")
        panel.set_title(titles[prefix])
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    panels[0].set_ylabel("mean IoU on test images, %")
    files.write_figure(path, drawing)


def pictures(found: Found, out: Path) -> None:
    """Answers side by side at two images, where the folders of the runs are still there."""
    for prefix in dict.fromkeys(cell.partition("-")[0] for cell in found):
        rows: Sequence[Row] = list(found.get(f"{prefix}-2", {}).values())
        folders = {own.label: FOLDER / folder_name(own.runs[0].recipe) for own in rows[:8]}
        shown = {label: figure.stored(folder) for label, folder in folders.items()}
        known = {label: own for label, own in shown.items() if own is not None}
        drawing = figure.side_by_side(known, "CamVid's test images, two images at a time")
        if drawing is not None:
            files.write_figure(out / f"answers-{prefix}.png", drawing)


def main() -> None:
    """Read the runs; write tables and pictures."""
    parser = arguments(__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    sources = Sources(options.data.resolve(), options.weights.resolve())
    found = collect(sources, Ledger(LEDGER))
    if not found:
        parser.error(f"{LEDGER} has no row that was trained to the end")
    options.out.mkdir(parents=True, exist_ok=True)
    said = text(found)
    files.write(options.out / "table.md", said)
    curves(found, options.out / "iou.png")
    pictures(found, options.out)
    print(said)


if __name__ == "__main__":
    main()

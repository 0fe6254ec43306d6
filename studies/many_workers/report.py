"""Tables and curves of the study "many workers of two images, trained to the end".

python -m studies.many_workers.report --mini mini100_32.npz --out results/many-workers
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bgn_lab import norms
from bgn_lab.report.collect import Run
from bgn_lab.report.text import table
from bgn_lab.system import files
from studies import curves, rates
from studies.intervals import compared, spread
from studies.ledger import Ledger
from studies.many_workers import diagnosis, verdicts
from studies.many_workers.cells import (
    ALONE,
    CELLS,
    EPOCHS,
    MOST_RATES,
    RATES,
    ROWS,
    SHORT,
    STEP,
    row,
)
from studies.many_workers.diagnosis import Diagnoses
from studies.many_workers.plan import FIRST, best, deciding
from studies.many_workers.run import DIAGNOSES, LEDGER, RESULTS

SEEDS = (0, 1, 2)
KINDS = (diagnosis.TRAINING, diagnosis.FIRST, diagnosis.ALL, diagnosis.EXACT)


@dataclass(frozen=True)
class Row:
    """Runs of one row in one cell."""

    name: str
    tried: Mapping[float, Run]
    """The short runs, by learning rate."""
    runs: tuple[Run, ...]
    """To the end, at the best rate."""
    statistics: Mapping[str, float]
    """Validation accuracy of the first seed, by kind of statistics."""

    @property
    def label(self) -> str:
        """Name in tables."""
        return norms.label(self.runs[0].recipe)

    @property
    def tests(self) -> dict[int, float]:
        """Test accuracy in %, by seed."""
        return self.measured("test_accuracy")

    def measured(self, key: str) -> dict[int, float]:
        """A measure in %, by seed."""
        found = {run.recipe.seed: run.result for run in self.runs if run.result is not None}
        values = {seed: result.measure(key) for seed, result in found.items()}
        return {seed: 100 * value for seed, value in values.items() if value is not None}


def collect(mini: Path, ledger: Ledger, diagnoses: Diagnoses) -> dict[str, list[Row]]:
    """Rows that were trained to the end, by cell, the best on validation images first.

    A cell that has nothing but runs of others is left out.
    """
    found: dict[str, list[Row]] = {}
    for cell in CELLS:
        chosen = {name: best(cell, name, mini, ledger) for name in ROWS}
        full = {name: recipe for name, recipe in chosen.items() if recipe is not None}
        for name, recipe in rates.ordered(full, ledger).items():
            own = row(CELLS[cell], name, mini)
            tried = rates.runs(own, rates.widened(own, RATES, ledger, MOST_RATES), ledger)
            runs = (ledger.get(replace(recipe, seed=seed)) for seed in SEEDS)
            found.setdefault(cell, []).append(
                Row(
                    name,
                    {} if CELLS[cell].paper else {run.recipe.lr: run for run in tried},
                    tuple(run for run in runs if run is not None),
                    diagnoses.get(recipe) or {},
                )
            )
    shared = {name for name in ROWS if name.partition("+")[0] in ALONE}
    return {cell: rows for cell, rows in found.items() if {own.name for own in rows} - shared}


def accuracies(rows: Sequence[Row]) -> str:
    """Markdown table of a cell."""
    bn = next((own.tests for own in rows if own.name == "bn"), {})
    lines = []
    for own in rows:
        rate = own.runs[0].recipe.lr * STEP / 32
        against = compared(own.tests, bn) if own.name != "bn" else ""
        parts = (own.measured(f"{part}_accuracy") for part in ("train", "validation", "test"))
        line = [own.label, f"{rate:g}", *map(spread, parts), str(len(own.runs)), against]
        lines.append(line)
    header = ["row", "lr of a step", "train", "validation", "test", "seeds", "test, to BN"]
    return table(header, lines)


def sizes(found: Mapping[str, Sequence[Row]], prefix: str) -> str:
    """Markdown table: test accuracy by images that share statistics."""
    cells = [cell for cell in CELLS if cell.startswith(prefix) and cell in found]
    by_cell = {cell: {own.name: own for own in found[cell]} for cell in cells}
    names = [name for name in ROWS if sum(name in by_cell[cell] for cell in cells) > 1]
    labels = {own.name: own.label for cell in cells for own in found[cell]}
    lines = [
        [
            labels[name],
            *(spread(by_cell[cell][name].tests) if name in by_cell[cell] else "" for cell in cells),
        ]
        for name in names
    ]
    return table(["row", *(f"n = {CELLS[cell].n}" for cell in cells)], lines)


def answers(found: Mapping[str, Sequence[Row]], names: Sequence[str], prefix: str) -> str:
    """What the rules say of the cells with n = 2 and n = 32, as Markdown lists: of all rows, then
    of those with standardized weights alone."""
    small, large = (
        {own.name: own for own in found.get(f"{prefix}-{n}", ()) if own.name in names}
        for n in (2, 32)
    )
    standardized = {name: own for name, own in small.items() if "+ws" in name}
    said = _family(small, large, "bn")
    if said and (among := _family(standardized, large, "bn+ws")):
        said += ["", "Among rows with standardized weights:", "", *among]
    return "\n".join(said) + "\n" if said else ""


def _family(small: Mapping[str, Row], large: Mapping[str, Row], base: str) -> list[str]:
    """What the rules say of rows, where this one has the place of BN."""
    if base not in small or base not in large:
        return []
    bn, many, label = small[base].tests, large[base].tests, small[base].label
    if len(bn.keys() & many.keys()) < 2:
        return []
    groups = [own.tests for name, own in small.items() if name.startswith("bgn")]
    fallen = "collapses" if verdicts.collapses(bn, many) else "does not collapse"
    said = [f"- {label} {fallen}: at 2 images against 32 it {compared(bn, many)}."]
    for name, own in small.items():
        if name != base:
            keeps = "holds" if verdicts.holds(own.tests, bn, many) else "does not hold"
            to_bn, to_many = compared(own.tests, bn), compared(own.tests, many)
            said.append(f"- {own.label} {keeps}: to {label} at 2 {to_bn}; at 32 {to_many}.")
    verdict = "refuted" if verdicts.refuted(groups, bn) else "not refuted"
    said.append(f"- The paper's claim is {verdict} for this setting.")
    means = [statistics.mean(own.tests.values()) for own in small.values()]
    if max(means) - min(means) < verdicts.ALIKE:
        said.append("- All rows are within 2 points: the cell says nothing about normalizers.")
    return said


def diagnosed(rows: Sequence[Row]) -> str:
    """Markdown table of validation accuracies by kind of statistics."""
    lines = [
        [
            own.label,
            *(f"{100 * own.statistics[k]:.1f}" if k in own.statistics else "" for k in KINDS),
        ]
        for own in rows
        if diagnosis.EXACT in own.statistics
    ]
    return table(["row", *KINDS], lines) if lines else ""


def text(found: Mapping[str, Sequence[Row]], names: Sequence[str]) -> str:
    """The whole report."""
    parts = [
        "# Many workers of two images\n",
        "Written by `python -m studies.many_workers.report`; what was asked and what counts as"
        f" what: `studies/many_workers/README.md`. {EPOCHS} epochs; accuracies in %, the median of"
        " the last five epochs; mean ± standard deviation over seeds; differences paired by seed,"
        " with 95 % intervals (Student's t).\n",
    ]
    for prefix in dict.fromkeys(cell.partition("-")[0] for cell in found):
        said = answers(found, names, prefix)
        if said:
            parts += [f"## {prefix}: what the rules say\n", said]
        if sum(cell.startswith(prefix) for cell in found) > 1:
            parts += [f"## {prefix}: test accuracy by images that share statistics\n"]
            parts += [sizes(found, prefix)]
    for cell, rows in found.items():
        parts += [f"## `{cell}`\n", accuracies(rows)]
        if told := diagnosed(rows):
            parts += ["Validation accuracy of the first seed by the statistics used:\n", told]
    return "\n".join(parts)


SHOWN = ("bn", "bn+ws", "gn", "gn+ws", "bgn, G = 1", "bgn+ws, G = 1", "bgn+ws, G = 8")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Training and validation accuracy by epoch in the first cell, first seed."""
    by_name = {own.name: own for own in rows}
    lines = []
    for name in SHOWN:
        if name in by_name:
            own = by_name[name]
            style = ":" if name.endswith("8") else "--" if "ws" in name else "-"
            norm = name.partition("+")[0].partition(",")[0]
            lines.append(curves.Line(own.runs[0], own.label, norm, style))
    title = "64 workers of two images, 100 classes, ResNet-20 of width 8, first seed"
    curves.draw(lines, title, path)


def main() -> None:
    """Read the runs; write tables and curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mini", type=Path, required=True, help="as the runs had it")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    mini, ledger = options.mini.resolve(), Ledger(LEDGER)
    found = collect(mini, ledger, Diagnoses(DIAGNOSES))
    if not found:
        parser.error(f"{LEDGER} has no row that was trained to the end after {SHORT} epochs")
    options.out.mkdir(parents=True, exist_ok=True)
    said = text(found, deciding(mini, ledger))
    files.write(options.out / "table.md", said)
    if FIRST in found:
        draw(found[FIRST], options.out / "curves.png")
    print(said)


if __name__ == "__main__":
    main()

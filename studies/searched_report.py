"""Tables and cells of the study "searched or drawn" from its runs.

    python -m studies.searched_report --out results/search

Beside each search stands the best of as many random genotypes as could be trained in the time of search and training together,
chosen on validation images.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgn_lab import files, norms
from bgn_lab.experiments import cell_pictures
from bgn_lab.experiments.nas_train import NasTrainRecipe
from bgn_lab.genotype import RANDOM, Genotype
from bgn_lab.report.collect import Run, collect
from bgn_lab.report.text import table
from studies.searched import FOLDER, METHODS

NOTE = (
    "Accuracy in %; ± the standard deviation over seeds, where there are several. Minutes are of one core: for search and one"
    " training, or for all random trainings that one is the best of, chosen on validation images. The last row of each normaliser"
    " is the mean and standard deviation of all random ones."
)


@dataclass(frozen=True)
class Done:
    """A run that is over."""

    label: str
    experiment: str
    genotype: str  # the recipe's, of a training
    folder: str
    result: dict[str, Any]

    @property
    def minutes(self) -> float:
        """Of one core."""
        return float(self.result["seconds"]) / 60


@dataclass(frozen=True)
class Row:
    """Of the table; accuracies in percent."""

    norm: str
    source: str
    validation: float
    tests: tuple[float, ...]
    minutes: float
    parameters: int
    genotype: dict[str, Any]

    def cells(self) -> list[str]:
        """As text."""
        spread = f" ± {statistics.stdev(self.tests):.1f}" if len(self.tests) > 1 else ""
        test = f"{statistics.mean(self.tests):.1f}{spread}"
        return [self.norm, self.source, f"{self.validation:.1f}", test, f"{self.parameters:,}", f"{self.minutes:.0f}"]


def done(runs: Sequence[Run]) -> list[Done]:
    """Those that are."""
    return [
        Done(
            norms.label(run.recipe), run.recipe.experiment,
            run.recipe.genotype if isinstance(run.recipe, NasTrainRecipe) else "", run.folder.name, run.result,
        )
        for run in runs
        if run.result is not None
    ]  # fmt: skip


def rows(runs: Sequence[Done]) -> list[Row]:
    """By normaliser: each search and what chance finds at its cost, then the mean of chance."""
    made = []
    for label in dict.fromkeys(run.label for run in runs):
        own = [run for run in runs if run.label == label]
        trained = [run for run in own if run.genotype]
        chance = sorted((run for run in trained if run.genotype.startswith(RANDOM)), key=_number)
        for search in (run for run in own if run.experiment in METHODS):
            found = [run for run in trained if Path(run.genotype).parent.name == search.folder]
            if found:
                row = _row(METHODS[search.experiment], found, search.minutes)
                made += [row, *_at_cost(row, chance)]
        if chance:
            made.append(_row(f"random, mean of {len(chance)}", chance, 0.0))
    return made


def _number(run: Done) -> int:
    return int(run.genotype.removeprefix(RANDOM))


def _at_cost(row: Row, chance: Sequence[Done]) -> list[Row]:
    """The best on validation images of as many random ones as the time of a row allows, at least one."""
    spent, many = 0.0, 0
    for run in chance:
        if many and spent + run.minutes > row.minutes:
            break
        spent, many = spent + run.minutes, many + 1
    if not many:
        return []
    best = max(chance[:many], key=lambda run: run.result["validation_accuracy"])
    return [replace(_row(f"random, best of {many} at the cost of {row.source}", [best], 0.0), minutes=spent)]


def _row(source: str, found: Sequence[Done], minutes: float) -> Row:
    results = [run.result for run in found]
    return Row(
        found[0].label, source,
        statistics.mean(100 * (result["validation_accuracy"] or 0) for result in results),
        tuple(100 * (result["test_accuracy"] or 0) for result in results),
        minutes + statistics.mean(run.minutes for run in found),
        round(statistics.mean(result["parameters"] for result in results)),
        results[0]["genotype"],
    )  # fmt: skip


def write(folder: Path, out: Path) -> str:
    """table.md, results.json, and the cells that were found; the table."""
    runs = collect([folder])
    made = rows(done(runs))
    if not made:
        raise SystemExit(f"no training is over in {folder}; expected a folder that studies.searched wrote")
    heading = ["normaliser", "genotype", "validation", "test", "weights", "minutes"]
    text = f"# Searched and drawn\n\n{table(heading, [row.cells() for row in made])}\n{NOTE}\n"
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "table.md", text.encode())
    commands = sorted({" ".join(run.command) for run in runs})
    values = {"commands": commands, "rows": [vars(row) for row in made]}
    files.write(out / "results.json", json.dumps(values, indent=1).encode())
    for row in made:
        if row.source in METHODS.values():
            name = f"{row.source}-{row.norm.split(',')[0]}".lower()
            found = Genotype.from_json(row.genotype)
            (out / name).mkdir(exist_ok=True)
            files.write(out / name / "genotype.json", json.dumps(found.to_json()).encode())
            cell_pictures.write(found, out / name)
    return text


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    print(write(options.runs, options.out))


if __name__ == "__main__":
    main()

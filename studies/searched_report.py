"""Tables and cells of the study "searched or drawn" from its runs.

    python -m studies.searched_report --out results/search

Beside each search stands the best of as many random genotypes of the same kind as could be trained
in the time of search and training together, chosen on validation images.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bgn_lab import norms, paper
from bgn_lab.experiments.nas import figure
from bgn_lab.experiments.nas.genotype import RANDOM, Genotype, find
from bgn_lab.experiments.nas.recipe import CellsRecipe, DartsRecipe, NasTrainRecipe
from bgn_lab.recipe import Recipe
from bgn_lab.report.cells import count
from bgn_lab.report.collect import Run, collect
from bgn_lab.report.text import table, theirs
from bgn_lab.system import files
from bgn_lab.training.result import NOT_CONVERGED, Result
from studies.searched import FOLDER, LISTS, METHODS

COMPARED = ("norm", "groups", "genotype", "seed")
BEST, MEAN = "random, best of ", "random, mean of "
NOTE = (
    "Test accuracy in %. Each search was run once: ± is the standard deviation over trainings of"
    " the one genotype that it found, with other seeds, and tells nothing of other searches; for"
    " random ones it is over genotypes. Minutes are those of one process: for search and one"
    " training, or for all random trainings that one is the best of, chosen on validation"
    " images. A search has learned from these images too, so what it found has no figure there."
    " MANAS finds a list of cells, DARTS two cells: each stands beside random ones of its kind."
    " Everything is trained with the normalizer that it was searched with, so that what a search is"
    " worth is the difference to random genotypes of the same normalizer. Runs that did not"
    " converge count in time and not in means."
)


@dataclass(frozen=True)
class Row:
    """Row of the table; accuracies in percent, of the runs that converged."""

    norm: str
    method: str  # of the search
    source: str
    validation: float | None
    tests: tuple[float, ...]
    failed: int
    minutes: float
    parameters: int
    lost: bool  # a search that did not converge itself
    genotype: dict[str, Any] | None

    def cells(self) -> list[str]:
        """As text."""
        spread = f" ± {statistics.stdev(self.tests):.1f}" if len(self.tests) > 1 else ""
        parts = [f"{statistics.mean(self.tests):.1f}{spread}"] if self.tests else []
        if self.failed:
            parts.append(
                f"{self.failed} of {self.failed + len(self.tests)} {NOT_CONVERGED}"
                if self.tests
                else NOT_CONVERGED
            )
        validation = "·" if self.validation is None else f"{self.validation:.1f}"
        source = (
            f"{self.source} (the search {NOT_CONVERGED})"
            if self.lost and self.tests
            else self.source
        )
        return [
            self.norm,
            source,
            validation,
            ", ".join(parts),
            f"{self.parameters:,}",
            f"{self.minutes:.0f}",
        ]


def rows(runs: Sequence[Run]) -> list[Row]:
    """Rows by normalizer: each search, what chance finds at its cost, and the mean of chance."""
    over = [run for run in runs if run.result is not None]
    made = []
    for norm in sorted({run.recipe.norm for run in over}, key=list(paper.NORMALIZERS).index):
        own = [run for run in over if run.recipe.norm == norm]
        for search in own:
            if search.recipe.experiment in METHODS:
                made += _beside(
                    search, [run for run in own if isinstance(run.recipe, NasTrainRecipe)]
                )
    return made


def _beside(search: Run, trained: Sequence[Run]) -> list[Row]:
    """A search and what chance does."""
    method, kind = METHODS[search.recipe.experiment], search.recipe.experiment in LISTS
    own = _result(search).details.get("genotype")
    chance = [
        run
        for run in trained
        if _named(run).startswith(RANDOM) and bool(find(_named(run)).cells) == kind
    ]
    chance.sort(key=_number)
    found = [
        run
        for run in trained
        if not _named(run).startswith(RANDOM) and find(_named(run)).to_json() == own
    ]
    made = []
    if found or own is None:
        row = _row(method, method, found or [search], _minutes(search) if found else 0.0)
        made = [replace(row, validation=None, lost=search.failed), *_at_cost(row, chance)]
    if chance and made:
        made.append(_row(method, f"{MEAN}{len(chance)}", chance, 0.0))
    return made


def _result(run: Run) -> Result:
    assert run.result is not None
    return run.result


def _validation(run: Run) -> float:
    return _result(run).validation_accuracy or 0


def _named(run: Run) -> str:
    assert isinstance(run.recipe, NasTrainRecipe)
    return run.recipe.genotype


def _number(run: Run) -> int:
    return int(_named(run).split("-")[1])


def _minutes(run: Run) -> float:
    return _result(run).seconds / 60


def _at_cost(row: Row, chance: Sequence[Run]) -> list[Row]:
    """The best random genotype on validation images, of as many as the time of a row allows.

    There is at least one.
    """
    spent, many = 0.0, 0
    for run in chance:
        if many and spent + _minutes(run) > row.minutes:
            break
        spent, many = spent + _minutes(run), many + 1
    if not many:
        return []
    right = [run for run in chance[:many] if not run.failed]
    best = max(right, key=_validation, default=chance[0])
    rest = row.minutes - spent
    cost = " at the cost of"
    if many == len(chance) and rest > spent / many:  # no more were drawn, though there was time
        cost = f", {rest:.0f} minutes less than"
    elif rest < 0:  # one alone took longer
        cost = f", {-rest:.0f} minutes more than"
    source = f"{BEST}{many}{cost} {row.method}"
    return [replace(_row(row.method, source, [best], 0.0), minutes=spent)]


def _row(method: str, source: str, runs: Sequence[Run], minutes: float) -> Row:
    right = [run for run in runs if not run.failed]
    return Row(
        _label(runs[0].recipe), method, source,
        statistics.mean(100 * _validation(run) for run in right) if right else None,
        tuple(100 * (_result(run).test_accuracy or 0) for run in right),
        len(runs) - len(right),
        minutes + statistics.mean(map(_minutes, runs)),
        round(statistics.mean(_result(run).parameters for run in runs)),
        False,
        _result(runs[0]).details.get("genotype"),
    )  # fmt: skip


def _label(recipe: Recipe) -> str:
    """The normalizer with its G: that of GN is not the paper's in cells as narrow as these."""
    groups = f", {recipe.usual_name}" if recipe.norm == "gn" and recipe.groups is None else ""
    return norms.label(recipe) + groups


def settings(runs: Sequence[Run]) -> str:
    """What was run: the same for all normalizers."""
    parts: dict[str, str] = {}
    for r in (run.recipe for run in runs):
        assert isinstance(r, CellsRecipe)
        images = "all" if r.limit is None else f"{r.limit:,}"
        order = (
            f"{r.order} order, {r.arch_lr} for the mixture, " if isinstance(r, DartsRecipe) else ""
        )
        parts[r.experiment] = (
            f"{order}{count(r.epochs, 'epoch')}, batches of {r.batch_size}, "
            f"learning rate {r.lr}, {images} training images, {r.cells} cells, C = {r.width}"
        )
    place = next(
        run.recipe.data if run.recipe.root is None else run.recipe.root.name for run in runs
    )
    return (
        f"{place}. "
        + "; ".join(
            f"{METHODS.get(name, 'training')}: {said}" for name, said in sorted(parts.items())
        )
        + "."
    )


def _same(runs: Sequence[Run], folder: Path) -> None:
    """Refuse what is not to be compared."""
    known: dict[str, dict[str, Any]] = {}
    for r in (run.recipe for run in runs):
        own = {name: value for name, value in r.settings().items() if name not in COMPARED}
        images = {name: own.get(name) for name in ("data", "root", "limit")}
        for what, mine in ((r.experiment, own), ("images", images)):
            first = known.setdefault(what, mine)
            odd = [
                f"{name} {first.get(name)} and {value}"
                for name, value in mine.items()
                if value != first.get(name)
            ]
            if odd:
                raise SystemExit(
                    f"{folder} has runs of several settings: {', '.join(odd)}; "
                    "expected those of one study"
                )


def write(folder: Path, out: Path) -> str:
    """Write table.md, results.json, a picture, and the cells that were found; return the table."""
    runs = collect([folder])
    _same(runs, folder)
    made = rows(runs)
    if not made:
        raise SystemExit(
            f"no training of what a search found is over in {folder}; "
            "expected a folder that studies.searched wrote"
        )
    heading = ["normalizer", "genotype", "validation", "test", "weights", "minutes"]
    body = table(heading, [row.cells() for row in made])
    measured = f"# Searched and drawn\n\n{settings(runs)}\n\n{body}\n{NOTE}\n"
    text = "\n".join([measured, *map(theirs, (paper.DARTS, paper.MANAS))])
    out.mkdir(parents=True, exist_ok=True)
    files.write(out / "table.md", text.encode())
    files.write_json(
        out / "results.json",
        {"rows": [vars(row) for row in made], "runs": [_plain(run) for run in runs if run.result]},
    )
    picture(made, out / "accuracy.png")
    for row in made:
        if row.source == row.method and row.genotype is not None:
            name = f"{row.method}-{row.norm.split(',')[0]}".lower()
            found = Genotype.from_json(row.genotype)
            (out / name).mkdir(exist_ok=True)
            files.write(out / name / "genotype.json", json.dumps(found.to_json()).encode())
            figure.write(found, out / name)
    return text


def _plain(run: Run) -> dict[str, Any]:
    """A run for results.json, without what is long and the same in all: its layers."""
    result = {name: value for name, value in _result(run).to_json().items() if name != "layers"}
    return {**run.to_json(), "result": result}


def picture(made: Sequence[Row], path: Path) -> None:
    """What was found among what was drawn, a panel for each method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.2), layout="constrained")
    methods = list(dict.fromkeys(row.method for row in made))
    for axes, method in zip(
        figure.subplots(1, len(methods), squeeze=False, sharey=True)[0], methods, strict=True
    ):
        own = [row for row in made if row.method == method]
        labels = list(dict.fromkeys(row.norm for row in own))
        for k, source, style in (
            (0, MEAN, {"marker": "o", "color": "0.65", "label": "random genotypes"}),
            (
                1,
                BEST,
                {
                    "marker": "o",
                    "facecolor": "none",
                    "edgecolor": "black",
                    "s": 90,
                    "label": "best at the search's cost",
                },
            ),
            (
                2,
                method,
                {"marker": "*", "color": "#D55E00", "s": 90, "label": "what was found, by seed"},
            ),
        ):
            points = [
                (labels.index(row.norm), test)
                for row in own
                if row.source.startswith(source)
                for test in row.tests
            ]
            axes.scatter(
                [x + (0.18 if k == 2 else 0) for x, _ in points],
                [y for _, y in points],
                zorder=2 + k,
                **style,
            )
        axes.set_xticks(range(len(labels)), labels)
        axes.set(title=f"searched with {method}", xlim=(-0.5, len(labels) - 0.5))
        axes.grid(axis="y", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        fontsize=9,
        frameon=False,
    )
    figure.supylabel("test accuracy, %", fontsize=10)
    files.write_figure(path, figure)


def main() -> None:
    """Write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=FOLDER)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    print(write(options.runs, options.out))


if __name__ == "__main__":
    main()

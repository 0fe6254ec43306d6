"""Table and curves of the study of BGN's partners.

python -m studies.partners.report --data cifar10 --root FOLDER --out results/partners
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bgn_lab import norms
from bgn_lab.report.collect import Run
from bgn_lab.report.text import table
from bgn_lab.system import files
from studies import curves, rates
from studies.intervals import difference, spread
from studies.ledger import Ledger
from studies.partners.rows import (
    EPOCHS,
    LEDGER,
    RATES,
    ROWS,
    SEEDS,
    SHORT,
    alone,
    rows,
    tuned_as,
)
from studies.partners.run import chosen

BASELINE = "bn"
PARTS = ("validation", "train", "test")
HELPS = 2.0
"""Points on validation images from which on a difference of single runs counts."""


@dataclass(frozen=True)
class Row:
    """Runs of one row."""

    name: str
    tried: dict[float, Run]
    """The short runs, by learning rate; none where those of another row chose the rate."""
    runs: tuple[Run, ...]
    """To the end, with eight workers at the best rate, the first seed first."""
    alone: Run | None
    """One worker."""

    @property
    def rate(self) -> float:
        """The best on validation images."""
        return self.runs[0].recipe.lr

    @property
    def label(self) -> str:
        """Name in tables."""
        momentum = self.name.partition("momentum ")[2]
        label = norms.label(self.runs[0].recipe)
        return f"{label}, momentum {momentum}" if momentum else label


def collect(data: str, root: Path | None, ledger: Ledger) -> list[Row]:
    """Rows that were trained to the end, the best on validation images first."""
    found, wanted = [], rows(data, root)
    for name, best in rates.ordered(chosen(data, root, ledger), ledger).items():
        tried = rates.runs(wanted[name], RATES, ledger)
        runs = (ledger.get(replace(best, seed=seed)) for seed in (best.seed, *SEEDS))
        found.append(
            Row(
                name,
                {run.recipe.lr: run for run in tried} if tuned_as(name) == name else {},
                tuple(run for run in runs if run is not None),
                ledger.get(replace(alone(name, data, root), lr=best.lr)),
            )
        )
    return found


def percent(runs: Sequence[Run], key: str) -> str:
    """Mean of a measure over runs, with the standard deviation where there are several."""
    found = {run.recipe.seed: _measure(run, key) for run in runs}
    return spread({seed: 100 * value for seed, value in found.items() if value is not None})


def _measure(run: Run, key: str) -> float | None:
    return None if run.result is None else run.result.measure(key)


def _at(rate: float) -> str:
    return f"lr {rate * 16 / 32:g}"  # 16 images per step


def eight(rows: Sequence[Row]) -> str:
    """Markdown table of the runs with eight workers."""
    baseline = next((row for row in rows if row.name == BASELINE), None)
    lines = []
    for row in rows:
        by_rate = [
            _bold(
                f"{100 * rates.score(row.tried[rate]):.1f}" if row.tried else "", rate == row.rate
            )
            for rate in sorted(RATES)
        ]
        against = ""
        if baseline is not None and row is not baseline:
            against = difference(_tests(row), _tests(baseline))
        accuracies = (percent(row.runs, f"{part}_accuracy") for part in PARTS)
        lines.append([row.label, *by_rate, *accuracies, str(len(row.runs)), against])
    header = ["row", *map(_at, sorted(RATES)), *PARTS, "seeds", "test, to BN"]
    return table(header, lines)


def _bold(text: str, is_best: bool) -> str:
    return f"**{text}**" if is_best and text else text


def _tests(row: Row) -> dict[int, float]:
    found = {run.recipe.seed: _measure(run, "test_accuracy") for run in row.runs}
    return {seed: 100 * value for seed, value in found.items() if value is not None}


def single(rows: Sequence[Row]) -> str:
    """Markdown table of the runs with one worker, the best on validation images first."""
    alone = [row for row in rows if row.alone is not None]
    alone.sort(key=lambda row: -rates.score(row.alone) if row.alone else 0.0)
    return table(
        ["row", *PARTS],
        [
            [row.label, *(percent([row.alone], f"{part}_accuracy") for part in PARTS)]
            for row in alone
            if row.alone is not None
        ],
    )


def effects(rows: Sequence[Row]) -> str:
    """What each partner changes: validation accuracy of the first seed, less that without it."""
    scores = {row.name: 100 * rates.score(row.runs[0]) for row in rows}
    lines = []
    for row in sorted(rows, key=lambda row: list(ROWS).index(row.name)):
        norm, comma, rest = row.name.partition(",")
        plain = norm.partition("+")[0] + ("" if "momentum" in rest else comma + rest)
        if plain == row.name or plain not in scores:
            continue
        gain = scores[row.name] - scores[plain]
        verdict = "helps" if gain >= HELPS else "hurts" if gain <= -HELPS else "no difference seen"
        lines.append([row.label, f"{scores[plain]:.1f}", f"{gain:+.1f}", verdict])
    return table(["row", "without", "difference", "verdict"], lines)


def text(rows: Sequence[Row]) -> str:
    """The whole report."""
    return "\n".join(
        [
            "# Partners of BGN at two images\n",
            "Written by `python -m studies.partners.report`; what was asked and what counts as"
            " what: `studies/partners/README.md`. Accuracies in %.\n",
            f"## Eight workers of two images, {EPOCHS} epochs\n",
            eight(rows),
            f"lr: validation accuracy after {SHORT} epochs at that learning rate, bold where it was"
            " chosen. The other accuracies are those after all epochs at that rate, all seeds,"
            " mean ± standard deviation. To BN: paired by seed, with a 95 % interval (Student's t)"
            " where there are several.\n",
            "## What each partner changes\n",
            effects(rows),
            f"On 5,000 validation images, first seed, each at its own rate. Less than"
            f" {HELPS:g} points are no difference.\n",
            f"## One worker of two images, {SHORT} epochs\n",
            single(rows),
            "One seed, at the rate per image that was chosen with eight workers.\n",
        ]
    )


SHOWN = ("bn", "bn+ws", "gn", "gn+ws", "bgn", "bgn+ws", "bgn+renorm", "bgn+ws+renorm")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Training and validation accuracy by epoch; a partner changes the line's style."""
    styles = {"": "-", "ws": "--", "renorm": ":", "ws+renorm": "-."}
    by_name = {row.name: row for row in rows}
    lines = []
    for name in SHOWN:
        if name in by_name:
            norm, _, partner = name.partition("+")
            row = by_name[name]
            lines.append(curves.Line(row.runs[0], row.label, norm, styles[partner]))
    title = "Eight workers of two images, CIFAR-10, ResNet-20 of width 8, first seed"
    curves.draw(lines, title, path)


def main() -> None:
    """Read the runs; write table and curves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10", help="as studies.partners.run had it")
    parser.add_argument("--root", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/partners"))
    options = parser.parse_args()
    found = collect(options.data, options.root, Ledger(LEDGER))
    if not found:
        parser.error(f"{LEDGER} has no row that was trained to the end")
    options.out.mkdir(parents=True, exist_ok=True)
    files.write(options.out / "table.md", text(found))
    draw(found, options.out / "curves.png")
    print(text(found))


if __name__ == "__main__":
    main()

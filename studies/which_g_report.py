"""Tables and pictures of the study "Which G?" from its runs.

    python -m studies.which_g_report --out results/which-g

The learning rate of a row is the one with the best validation accuracy of the first seed; its test accuracy is the mean over
all seeds at that rate. The rival of a cell (data, network, schedule, batch size) is whichever of BN, GN, LN and IN is best on
the validation images, so that the luckiest on the test images is not chosen. Regret is the rival's test accuracy minus the row's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bgn_lab import files, norms
from bgn_lab.recipe import Recipe
from bgn_lab.report.collect import Run, collect
from bgn_lab.report.text import table
from studies.which_g import FOLDER, ROWS, same_as

RIVALS = ("BN", "GN", "LN", "IN")


@dataclass(frozen=True)
class Entry:
    """A row in a cell: at the rate chosen, accuracies in percent."""

    lr: float
    validation: float
    test: float
    deviation: float | None
    seeds: int


Key = tuple[str, int, int]  # data and network, epochs, batch size


def place(run: Run) -> str:
    """Data and network."""
    r = run.recipe
    return f"{r.data if r.root is None else r.root.stem}, {r.model}"


def entries(runs: Iterable[Run]) -> dict[Key, dict[str, Entry]]:
    """By cell and row."""
    found: dict[tuple[Key, str], dict[float, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        if run.result is not None:
            r = run.recipe
            found[(place(run), r.epochs, r.batch_size), norms.label(r)][r.lr][r.seed] = run
    made: dict[Key, dict[str, Entry]] = defaultdict(dict)
    for (key, label), by_rate in found.items():
        lr = max((rate for rate, own in by_rate.items() if 0 in own), key=lambda rate: _validation(by_rate[rate][0]))
        tests = [100 * (run.result["test_accuracy"] or 0) for run in by_rate[lr].values() if run.result is not None]
        spread = statistics.stdev(tests) if len(tests) > 1 else None
        made[key][label] = Entry(lr, 100 * _validation(by_rate[lr][0]), statistics.mean(tests), spread, len(tests))
    for (where, _, size), rows in made.items():  # run once under two names
        model = where.split(", ")[1]
        for row in ROWS.values():
            same = norms.label(Recipe(**same_as(row, model, size)))
            if same in rows:
                rows[norms.label(Recipe(**row))] = rows[same]
    return made


def _validation(run: Run) -> float:
    assert run.result is not None
    return float(run.result["validation_accuracy"] or 0)


def regrets(found: dict[Key, dict[str, Entry]]) -> dict[str, dict[Key, float]]:
    """By row and cell, where all rivals have been run."""
    made: dict[str, dict[Key, float]] = defaultdict(dict)
    for key, rows in found.items():
        if all(name in rows for name in RIVALS):
            rival = max(RIVALS, key=lambda name: rows[name].validation)
            for label, entry in rows.items():
                made[label][key] = rows[rival].test - entry.test
    return made


def tables(found: dict[Key, dict[str, Entry]]) -> str:
    """Markdown."""
    parts = ["# Which G?\n"]
    for where, epochs in dict.fromkeys(key[:2] for key in sorted(found)):
        sizes = sorted(key[2] for key in found if key[:2] == (where, epochs))
        labels = list(dict.fromkeys(label for size in sizes for label in found[where, epochs, size]))
        rows = []
        for label in labels:
            cells = [found[where, epochs, size].get(label) for size in sizes]
            rows.append([label, *("" if e is None else _text(e) for e in cells)])
        parts += [f"## {where}, {epochs} epochs\n", table(["row", *(f"batch {size}" for size in sizes)], rows)]
    lost = regrets(found)
    order = sorted(lost, key=lambda label: statistics.mean(lost[label].values()))
    summary = [
        [label, str(len(own)), f"{statistics.mean(own.values()):.1f}", f"{max(own.values()):.1f}"]
        for label in order
        if (own := lost[label])
    ]
    parts += ["## Regret in points, over all cells\n", table(["row", "cells", "mean", "worst"], summary)]
    return "\n".join(parts)


def _text(e: Entry) -> str:
    spread = "" if e.deviation is None else f" ± {e.deviation:.1f}"
    return f"{e.test:.1f}{spread} (lr {e.lr:g})"


def main() -> None:
    """Read the runs, write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/which-g"))
    options = parser.parse_args()
    found = entries(collect([FOLDER]))
    options.out.mkdir(parents=True, exist_ok=True)
    text = tables(found)
    files.write(options.out / "table.md", text)
    plain = [
        {"cell": key[0], "epochs": key[1], "batch_size": key[2], "row": label, **vars(entry)}
        for key, rows in found.items()
        for label, entry in rows.items()
    ]
    files.write(options.out / "results.json", json.dumps(plain, indent=1) + "\n")
    from studies import which_g_figures

    which_g_figures.accuracy_by_groups(found, options.out / "groups.png")
    which_g_figures.regret_by_row(found, options.out / "regret.png")
    print(text)


if __name__ == "__main__":
    main()

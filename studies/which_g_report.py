"""Tables of the study "Which G?" from its runs; `make figures` draws its pictures from the record.

    python -m studies.which_g_report --out results/which-g

Rows that are in --out already stay, unless they were run again.

The learning rate of a row is the one with the best validation accuracy of the first seed; its test
accuracy is the mean over all seeds at that rate. The rival of a cell (data, network, schedule,
batch size) is whichever of BN, GN, LN and IN is best on the validation images, so that the luckiest
on the test images is not chosen. Regret is the rival's test accuracy minus the row's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bgn.groups import ENOUGH
from bgn_lab import norms
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.report.collect import Run, collect
from bgn_lab.report.text import table
from bgn_lab.system import files
from studies.which_g import FOLDER, ROWS, same_as

RIVALS = ("BN", "GN", "LN", "IN")
HELD_OUT = "resnet18"
FLOOR = norms.label(Recipe(norm="bgn", instances=ENOUGH))
FLOORED = f"G = 1 for one image, {FLOOR} above"
MIXTURES = {  # rules of two: up to so many images one row, above another
    FLOORED: ("BGN, G = 1", 1, FLOOR),
    f"GN for one image, {FLOOR} above": ("GN", 1, FLOOR),
    "GN for one image, BN above": ("GN", 1, "BN"),
    "GN up to 2 images, BN above": ("GN", 2, "BN"),
    "IN up to 2 images, BN above": ("IN", 2, "BN"),
}


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
    found: dict[tuple[Key, str], dict[float, dict[int, Run]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for run in runs:
        if run.result is not None:
            r = run.recipe
            found[(place(run), r.epochs, r.batch_size), norms.label(r)][r.lr][r.seed] = run
    made: dict[Key, dict[str, Entry]] = defaultdict(dict)
    for (key, label), by_rate in found.items():
        lr = max(
            (rate for rate, own in by_rate.items() if 0 in own),
            key=lambda rate: _validation(by_rate[rate][0]),
        )
        tests = [
            100 * (run.result.test_accuracy or 0)
            for run in by_rate[lr].values()
            if run.result is not None
        ]
        spread = statistics.stdev(tests) if len(tests) > 1 else None
        made[key][label] = Entry(
            lr, 100 * _validation(by_rate[lr][0]), statistics.mean(tests), spread, len(tests)
        )
    for (where, _, size), rows in made.items():  # run once under two names
        model = where.split(", ")[1]
        for row in ROWS.values():
            same = norms.label(Recipe(**same_as(row, model, size)))
            if same in rows:
                rows[norms.label(Recipe(**row))] = rows[same]
    return made


def merged(
    record: dict[Key, dict[str, Entry]], new: dict[Key, dict[str, Entry]]
) -> dict[Key, dict[str, Entry]]:
    """Rows of the record that no run at hand replaces, and the new ones."""
    return {key: record.get(key, {}) | new.get(key, {}) for key in dict.fromkeys((*record, *new))}


def recorded(path: Path) -> dict[Key, dict[str, Entry]]:
    """Every row of every cell in a results.json; nothing where there is none."""
    made: dict[Key, dict[str, Entry]] = {}
    for row in json.loads(path.read_text()) if path.exists() else ():
        key = row.pop("cell"), row.pop("epochs"), row.pop("batch_size")
        name = row.pop("row")
        made.setdefault(key, {})[name] = Entry(**row)
    return made


def _validation(run: Run) -> float:
    assert run.result is not None
    return run.result.validation_accuracy or 0


def regrets(found: dict[Key, dict[str, Entry]], by: str = "test") -> dict[str, dict[Key, float]]:
    """By row and cell, where all rivals have been run; on test or on validation images."""
    made: dict[str, dict[Key, float]] = defaultdict(dict)
    for key, rows in found.items():
        if all(name in rows for name in RIVALS):
            rival = max(RIVALS, key=lambda name: rows[name].validation)
            for label, entry in rows.items():
                made[label][key] = getattr(rows[rival], by) - getattr(entry, by)
    return made


def mixed(found: dict[Key, dict[str, Entry]]) -> dict[Key, dict[str, Entry]]:
    """With rules that take one row or another by the batch size: nothing is run for them."""
    made = {}
    for key, rows in found.items():
        rules = {
            label: few if key[2] <= most else many for label, (few, most, many) in MIXTURES.items()
        }
        made[key] = rows | {label: rows[own] for label, own in rules.items() if own in rows}
    return made


def tables(found: dict[Key, dict[str, Entry]]) -> str:
    """Markdown: accuracies by cell, then regrets."""
    parts = [
        "# Which G?\n",
        "Made by `python -m studies.which_g_report` from the runs of `python -m studies.which_g`; "
        "see docs/studies/small-data.md.\n",
    ]
    for where, epochs in dict.fromkeys(key[:2] for key in sorted(found)):
        sizes = sorted(key[2] for key in found if key[:2] == (where, epochs))
        labels = dict.fromkeys(label for size in sizes for label in found[where, epochs, size])
        rows = []
        for label in sorted(labels, key=_order):
            cells = [found[where, epochs, size].get(label) for size in sizes]
            rows.append([label, *("" if e is None else _text(e) for e in cells)])
        parts += [
            f"## {where}, {epochs} epochs\n",
            table(["row", *(f"batch {size}" for size in sizes)], rows),
        ]
    for title, held in (
        ("Regret in points, cells that the rule was chosen on", False),
        ("Regret in points, held-out cells", True),
    ):
        if own := {key: rows for key, rows in mixed(found).items() if (HELD_OUT in key[0]) == held}:
            parts += [f"## {title}\n", _regret_table(own)]
    return "\n".join(parts)


def _order(label: str) -> tuple[int, str]:
    return (RIVALS.index(label), "") if label in RIVALS else (len(RIVALS), label)


def _regret_table(found: dict[Key, dict[str, Entry]]) -> str:
    """Table of regrets: mean over the cells with its standard error, worst cell, by batch size.

    It has only rows that were run everywhere.
    """
    lost, on_validation = regrets(found), regrets(found, "validation")
    cells = max((len(own) for own in lost.values()), default=0)
    full = {label: own for label, own in lost.items() if len(own) == cells and cells}
    sizes = sorted({key[2] for own in full.values() for key in own})
    rows = []
    for label in sorted(full, key=lambda label: statistics.mean(full[label].values())):
        own = full[label]
        values = list(own.values())
        error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
        by_size = [
            f"{statistics.mean(v for key, v in own.items() if key[2] == size):.1f}"
            for size in sizes
        ]
        rows.append(
            [
                label,
                f"{statistics.mean(values):.1f}{error}",
                f"{max(values):.1f}",
                *by_size,
                f"{statistics.mean(on_validation[label].values()):.1f}",
            ]
        )
    return table(
        [
            "row",
            f"mean of {cells} cells",
            "worst",
            *(f"batch {size}" for size in sizes),
            "on validation images",
        ],
        rows,
    )


def _text(e: Entry) -> str:
    spread = "" if e.deviation is None else f" ± {e.deviation:.1f}"
    return f"{e.test:.1f}{spread} (lr {e.lr:g})"


def main() -> None:
    """Read the runs, write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results/which-g"))
    options = parser.parse_args()
    found = merged(recorded(options.out / "results.json"), entries(collect([FOLDER])))
    options.out.mkdir(parents=True, exist_ok=True)
    text = tables(found)
    files.write(options.out / "table.md", text)
    plain = [
        {"cell": key[0], "epochs": key[1], "batch_size": key[2], "row": label, **vars(entry)}
        for key, rows in found.items()
        for label, entry in rows.items()
    ]
    files.write(options.out / "results.json", json.dumps(plain, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()

"""Which G? Every normaliser, and BGN with many numbers of groups, at every batch size, on several data sets and networks.

    python -m studies.which_g --stage rates --mini runs/which-g/mini20.npz --cifar cifar10_12k.npz --hours 1

Stages, most informative first; each goes on where it was stopped:

- ``rates``: every row with three learning rates, one seed. The rate is chosen on validation images, for each normaliser and
  batch size alike.
- ``seeds``: the rates chosen, further seeds.
- ``long``: three times the epochs, for the rows that matter.
- ``large``: batches of 256 and 512, for the paper's claim that BN saturates.

The cell ``cifar``, another data set with another network, is held out: it is run once everything is decided. Test accuracies
are read by the report alone, never by this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgn.groups import paper_groups
from bgn_lab.recipe import Recipe
from bgn_lab.report.collect import Run, read
from studies.runner import run

FOLDER = Path("runs/which-g/runs")
BATCH_SIZES = (2, 8, 32, 1, 4, 128)  # the most informative first
LARGE = (256, 512)
FACTORS = (1.0, 3.0, 0.3)  # of the paper's learning rate, 0.1 at 32 images in proportion
VALIDATION = 0.2

ROWS: dict[str, dict[str, Any]] = {
    "bn": {"norm": "bn"},
    "gn": {"norm": "gn"},
    "bgn 64+": {"norm": "bgn", "instances": 64},
    "bgn G=1": {"norm": "bgn", "groups": 1},
    "in": {"norm": "in"},
    "ln": {"norm": "ln"},
    "bgn 256+": {"norm": "bgn", "instances": 256},
    "bgn 16+": {"norm": "bgn", "instances": 16},
    "bgn G=8": {"norm": "bgn", "groups": 8},
    "bgn G=64": {"norm": "bgn", "groups": 64},
    "bgn G=256": {"norm": "bgn", "groups": 256},
    "bgn paper": {"norm": "bgn"},
    "gbgn": {"norm": "gbgn"},
    "pn": {"norm": "pn"},
}
MATTER = ("bn", "gn", "bgn 64+", "bgn G=1", "bgn 256+")


def cells(mini: Path, cifar: Path | None) -> dict[str, Recipe]:
    """Data sets with a network each, by name; the last one is held out."""
    found = {
        "mini": Recipe(data=str(mini), model="resnet10", width=8, epochs=12, validation=VALIDATION),
        "fashion": Recipe(model="resnet14", width=8, stride=2, epochs=3, limit=3600, validation=VALIDATION),
    }
    if cifar is not None:
        found["cifar"] = Recipe(data=str(cifar), model="resnet18", width=8, stride=1, epochs=3, validation=VALIDATION)
    return found


def rates(cell: Recipe, sizes: tuple[int, ...] = BATCH_SIZES) -> Iterator[Recipe]:
    """One seed of every row with every learning rate."""
    for size in sizes:
        for factor in FACTORS:
            for name, row in ROWS.items():
                if name == "bgn paper" and {"norm": "bgn", "groups": paper_groups(size)} in ROWS.values():
                    continue  # the same run under another name
                yield replace(cell, batch_size=size, lr=round(0.1 * factor, 4), onednn=size > 4, **row)


def chosen(recipe: Recipe) -> Recipe | None:
    """The recipe with the learning rate that was best on the validation images; None while that is not known."""
    tried: list[Run] = []
    for factor in FACTORS:
        path = FOLDER / replace(recipe, lr=round(0.1 * factor, 4), seed=0).key()
        if not (path / "result.json").exists():
            return None
        tried.append(read(path))
    results = [(r.result["validation_accuracy"] or 0.0, r.recipe.lr) for r in tried if r.result is not None]
    return replace(recipe, lr=max(results)[1])


def further(cell: Recipe, seeds: tuple[int, ...], sizes: tuple[int, ...]) -> Iterator[Recipe]:
    """More seeds at the rates chosen."""
    for seed in seeds:
        for recipe in rates(cell, sizes):
            if recipe.lr == 0.1 and (best := chosen(recipe)) is not None:
                yield replace(best, seed=seed)


def longer(cell: Recipe, sizes: tuple[int, ...]) -> Iterator[Recipe]:
    """Three times the epochs."""
    patient = replace(cell, epochs=3 * cell.epochs)
    for size in sizes:
        for name in MATTER:
            for factor in FACTORS[:2]:
                yield replace(patient, batch_size=size, lr=round(0.1 * factor, 4), onednn=size > 4, **ROWS[name])


def main() -> None:
    """Run a stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=("rates", "seeds", "long", "large"), default="rates")
    parser.add_argument("--cell", choices=("mini", "fashion", "cifar"), default="mini")
    parser.add_argument("--mini", type=Path, default=Path("runs/which-g/mini20.npz"))
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=BATCH_SIZES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--hours", type=float, default=1.0)
    options = parser.parse_args()
    if options.cell == "cifar" and options.cifar is None:
        parser.error("--cell cifar needs --cifar, an .npz of its images")
    cell, sizes = cells(options.mini, options.cifar)[options.cell], tuple(options.sizes)
    stages = {
        "rates": lambda: rates(cell, sizes),
        "seeds": lambda: further(cell, (1, 2), sizes),
        "long": lambda: longer(cell, sizes),
        "large": lambda: rates(cell, LARGE),
    }
    run(stages[options.stage](), FOLDER, options.jobs, options.hours)


if __name__ == "__main__":
    main()

"""Which G? Normalizers, and BGN with many numbers of groups, at every batch size.

The study has several data sets and networks.

    python -m studies.which_g --stage rates --hours 1 \\
        --mini runs/which-g/mini20.npz --cifar cifar10_12k.npz

Stages, most informative first; each resumes where it was stopped:

- ``rates``: every row with three learning rates, one seed. The rate is chosen on validation images,
  for each normalizer and batch size alike.
- ``seeds``: the rates chosen, further seeds.
- ``long``: three times the epochs, for the rows that matter.
- ``large``: batches up to 512, with four times the epochs so that they have steps enough, for the
  paper's claim that BN saturates.

The cell ``cifar``, another data set with another network, is held out: it is run once everything is
decided. Test accuracies are read by the report alone, never by this file.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgn.groups import AUTO, ENOUGH, FEW_IMAGES, paper_groups
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.report.collect import Run, read
from studies.runner import add_options, engine_of, folder_name, run

FOLDER = Path("runs/which-g/runs")
BATCH_SIZES = (2, 8, 32, 1, 4, 128)  # the most informative first
LARGE = (128, 256, 512)
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
    "bgn 16+": {"norm": "bgn", "instances": ENOUGH},
    "bgn auto": {"norm": "bgn", "groups": AUTO},
    "bgn G=8": {"norm": "bgn", "groups": 8},
    "bgn G=64": {"norm": "bgn", "groups": 64},
    "bgn G=256": {"norm": "bgn", "groups": 256},
    "bgn paper": {"norm": "bgn"},
    "gbgn": {"norm": "gbgn"},
    "pn": {"norm": "pn"},
}
SMALLEST_MAP = {
    "resnet10": 4,
    "resnet14": 16,
    "resnet18": 4,
}  # values per image and channel, in the cells' networks


def cells(mini: Path, cifar: Path | None) -> dict[str, Recipe]:
    """Data sets with a network each, by name; the last one is held out."""
    found = {
        "mini": Recipe(data=str(mini), model="resnet10", width=8, epochs=12, validation=VALIDATION),
        "fashion": Recipe(
            model="resnet14", width=8, stride=2, epochs=3, limit=3600, validation=VALIDATION
        ),
    }
    if cifar is not None:
        found["cifar"] = Recipe(
            data=str(cifar),
            model="resnet18",
            width=8,
            stride=1,
            epochs=3,
            limit=5000,
            validation=VALIDATION,
        )
    return found


def same_as(row: dict[str, Any], model: str, size: int) -> dict[str, Any]:
    """The row with the same network and the same normalizers at this batch size.

    It is the row itself, or one with a simpler name.
    """
    if row.get("groups") == AUTO and size == 1:
        return {**row, "groups": 1}
    if row.get("groups") == AUTO and size >= FEW_IMAGES:
        row = {"norm": "bgn", "instances": ENOUGH}
    if row.get("instances", math.inf) <= size * SMALLEST_MAP.get(model, 1):
        return {"norm": "bn"}  # no layer merges channels
    if row == {"norm": "bgn"} and {**row, "groups": paper_groups(size)} in ROWS.values():
        return {**row, "groups": paper_groups(size)}
    return row


def rates(
    cell: Recipe, sizes: tuple[int, ...] = BATCH_SIZES, names: Iterable[str] = ROWS
) -> Iterator[Recipe]:
    """One seed of every row with every learning rate; what is the same under two names once."""
    for size in sizes:
        for factor in FACTORS:
            for name in names:
                if same_as(ROWS[name], cell.model, size) == ROWS[name]:
                    yield replace(
                        cell,
                        batch_size=size,
                        lr=round(0.1 * factor, 4),
                        onednn=size > 4,
                        **ROWS[name],
                    )


def chosen(recipe: Recipe) -> Recipe | None:
    """The recipe with the learning rate that was best on the validation images.

    It is None while that is not known.
    """
    tried: list[Run] = []
    for factor in FACTORS:
        path = FOLDER / folder_name(replace(recipe, lr=round(0.1 * factor, 4), seed=0))
        if not (path / "result.json").exists():
            return None
        tried.append(read(path))
    results = [
        (r.result.validation_accuracy or 0.0, r.recipe.lr) for r in tried if r.result is not None
    ]
    return replace(recipe, lr=max(results)[1])


def further(
    cell: Recipe, seeds: tuple[int, ...], sizes: tuple[int, ...], names: Iterable[str]
) -> Iterator[Recipe]:
    """More seeds at the rates chosen."""
    for seed in seeds:
        for recipe in rates(cell, sizes, names):
            if recipe.lr == 0.1 and (best := chosen(recipe)) is not None:
                yield replace(best, seed=seed)


def longer(cell: Recipe, sizes: tuple[int, ...], names: Iterable[str]) -> Iterator[Recipe]:
    """Three times the epochs, at the rates that were chosen with the short schedule."""
    for recipe in further(cell, (0,), sizes, names):
        yield replace(recipe, epochs=3 * cell.epochs)


def main() -> None:
    """Run a stage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", choices=("rates", "seeds", "long", "large"), default="rates")
    parser.add_argument("--cell", choices=("mini", "fashion", "cifar"), default="mini")
    parser.add_argument("--mini", type=Path, default=Path("runs/which-g/mini20.npz"))
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--sizes", type=int, nargs="*", default=BATCH_SIZES)
    parser.add_argument("--rows", nargs="*", choices=tuple(ROWS), default=tuple(ROWS))
    add_options(parser)
    parser.add_argument("--hours", type=float, default=1.0)
    options = parser.parse_args()
    if options.cell == "cifar" and options.cifar is None:
        parser.error("--cell cifar needs --cifar, an .npz of its images")
    cell, sizes = cells(options.mini, options.cifar)[options.cell], tuple(options.sizes)
    names = tuple(options.rows)
    stages = {
        "rates": lambda: rates(cell, sizes, names),
        "seeds": lambda: further(cell, (1, 2), sizes, names),
        "long": lambda: longer(cell, sizes, names),
        "large": lambda: rates(replace(cell, epochs=4 * cell.epochs), LARGE, names),
    }
    run(stages[options.stage](), FOLDER, engine_of(options), options.hours)


if __name__ == "__main__":
    main()

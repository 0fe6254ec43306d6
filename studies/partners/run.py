"""Train the rows of the study "what do partners do for BGN at two images?".

    python -m studies.partners.run --data cifar10 --root FOLDER --hours 3

Stages, in this order; each resumes where it was stopped:

- ``rates``: eight workers of two images, every row with three learning rates, one seed. The rate is
  chosen on validation images.
- ``seeds``: two more seeds, at the rates chosen, for the six best rows on validation images and BN.
- ``one``: one worker of two images, every row at the rate chosen with eight, one seed.

Test accuracies are read by the report alone (studies.partners.report).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from studies import rates
from studies.partners.rows import FOLDER, RATES, ROWS, SEEDS, WORKERS, recipe
from studies.runner import run

STAGES = ("rates", "seeds", "one")
BEST = 6


def chosen(data: str, root: Path | None) -> dict[str, Recipe]:
    """Rows whose rates have all been tried, at the best rate, the best row first."""
    found = {}
    for name in ROWS:
        row = recipe(name, data, root, WORKERS[0])
        if (best := rates.best(row, RATES, FOLDER)) is not None:
            (done,) = rates.runs(row, (best.lr,), FOLDER)
            found[name] = best, rates.score(done)
    ordered = sorted(found, key=lambda name: -found[name][1])
    return {name: found[name][0] for name in ordered}


def wanted(stage: str, data: str, root: Path | None) -> Iterator[Recipe]:
    """Recipes of a stage, as far as the stages before it decide them."""
    if stage == "rates":
        yield from rates.each((recipe(name, data, root, WORKERS[0]) for name in ROWS), RATES)
    elif stage == "seeds":
        at_best = chosen(data, root)
        for seed in SEEDS:
            for name in dict.fromkeys([*list(at_best)[:BEST], "bn"]):
                if name in at_best:
                    yield replace(at_best[name], seed=seed)
    else:
        for name, best in chosen(data, root).items():
            yield replace(recipe(name, data, root, WORKERS[1]), lr=best.lr)


def main() -> None:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10", help="data set or .npz (default: cifar10)")
    parser.add_argument("--root", type=Path, help="where the data set lies")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (default: 2)")
    parser.add_argument("--hours", type=float, default=3.0, help="per stage (default: 3)")
    options = parser.parse_args()
    for stage in options.stages:
        print(f"stage {stage}", flush=True)
        if not run(wanted(stage, options.data, options.root), FOLDER, options.jobs, options.hours):
            break


if __name__ == "__main__":
    main()

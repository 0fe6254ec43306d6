"""Train the rows of the study "what do partners do for BGN at two images?".

    python -m studies.partners.run --data cifar10 --root FOLDER --hours 3

Stages, in this order; each resumes where it was stopped:

- ``rates``: eight workers of two images, every row with three learning rates, a few epochs. The
  rate is chosen on validation images.
- ``rows``: every row at the rate chosen, trained to the end, one seed.
- ``seeds``: two more seeds for the six best rows on validation images and BN.
- ``one``: one worker of two images, some rows at the rate chosen with eight, one seed.

Finished runs are kept in results/partners/runs.jsonl. Test accuracies are read by the report alone
(studies.partners.report).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from studies import rates
from studies.ledger import Ledger
from studies.partners.rows import (
    ALONE,
    FOLDER,
    LEDGER,
    RATES,
    ROWS,
    SEEDS,
    alone,
    recipe,
    short,
)
from studies.runner import run

STAGES = ("rates", "rows", "seeds", "one")
BEST = 6


def chosen(data: str, root: Path | None, ledger: Ledger) -> dict[str, Recipe]:
    """Rows whose rates have all been tried, at the best rate."""
    found = {}
    for name in ROWS:
        if (best := rates.best(short(name, data, root), RATES, ledger)) is not None:
            found[name] = replace(recipe(name, data, root), lr=best.lr)
    return found


def ordered(data: str, root: Path | None, ledger: Ledger) -> dict[str, Recipe]:
    """Rows that were trained to the end, the best on validation images first."""
    rows = chosen(data, root, ledger)
    done = {name: run for name, row in rows.items() if (run := ledger.get(row)) is not None}
    return {name: rows[name] for name in sorted(done, key=lambda name: -rates.score(done[name]))}


def wanted(stage: str, data: str, root: Path | None, ledger: Ledger) -> Iterator[Recipe]:
    """Recipes of a stage, as far as the stages before it decide them."""
    if stage == "rates":
        yield from rates.each((short(name, data, root) for name in ROWS), RATES)
    elif stage == "rows":
        yield from chosen(data, root, ledger).values()
    elif stage == "seeds":
        rows = ordered(data, root, ledger)
        for seed in SEEDS:
            for name in dict.fromkeys([*list(rows)[:BEST], "bn"]):
                if name in rows:
                    yield replace(rows[name], seed=seed)
    else:
        rows = chosen(data, root, ledger)
        for name in ALONE:
            if name in rows:
                yield replace(alone(name, data, root), lr=rows[name].lr)


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
    ledger = Ledger(LEDGER)
    for stage in options.stages:
        print(f"stage {stage}", flush=True)
        recipes = wanted(stage, options.data, options.root, ledger)
        if not run(recipes, FOLDER, options.jobs, options.hours, ledger):
            break


if __name__ == "__main__":
    main()

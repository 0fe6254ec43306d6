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

from bgn_lab.recipe import Recipe
from studies import rates
from studies.ledger import Ledger
from studies.partners.rows import ALONE, FOLDER, LEDGER, RATES, SEEDS, alone, rows
from studies.runner import add_options, engine_of, run

STAGES = ("rates", "rows", "seeds", "one")
BEST = 6


def chosen(data: str, root: Path | None, ledger: Ledger) -> dict[str, Recipe]:
    """Rows whose rates have all been tried, at the best rate."""
    found = {name: (row, rates.best(row, RATES, ledger)) for name, row in rows(data, root).items()}
    return {name: replace(row.full, lr=lr) for name, (row, lr) in found.items() if lr is not None}


def wanted(stage: str, data: str, root: Path | None, ledger: Ledger) -> Iterator[Recipe]:
    """Recipes of a stage, as far as the stages before it decide them."""
    if stage == "rates":
        yield from rates.each(rows(data, root), RATES)
    elif stage == "rows":
        yield from chosen(data, root, ledger).values()
    elif stage == "seeds":
        done = rates.ordered(chosen(data, root, ledger), ledger)
        for seed in SEEDS:
            for name in dict.fromkeys([*list(done)[:BEST], "bn"]):
                if name in done:
                    yield replace(done[name], seed=seed)
    else:
        at_best = chosen(data, root, ledger)
        for name in ALONE:
            if name in at_best:
                yield replace(alone(name, data, root), lr=at_best[name].lr)


def main() -> None:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="cifar10", help="data set or .npz (default: cifar10)")
    parser.add_argument("--root", type=Path, help="where the data set lies")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES)
    add_options(parser)
    parser.add_argument("--hours", type=float, default=3.0, help="per stage (default: 3)")
    options = parser.parse_args()
    ledger = Ledger(LEDGER)
    where = engine_of(options)
    for stage in options.stages:
        print(f"stage {stage}", flush=True)
        recipes = wanted(stage, options.data, options.root, ledger)
        if not run(recipes, FOLDER, where, options.hours, ledger):
            break


if __name__ == "__main__":
    main()

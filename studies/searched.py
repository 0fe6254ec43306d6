"""Does a search find more than chance does, and does the normaliser matter to it?

    python -m studies.searched --data cifar10_12k.npz --hours 3

DARTS and MANAS search with BN, GN and BGN; what they find, and genotypes drawn at random, are trained with the same
normaliser, all with the laboratory's presets for laptops. The same command goes on where it was stopped. Test accuracies are
read by the report alone (studies.searched_report).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bgn_lab import genotype
from bgn_lab.commands.run import PRESETS
from bgn_lab.experiments.nas_train import NasTrainRecipe
from bgn_lab.experiments.search import GENOTYPE
from bgn_lab.recipe import Recipe
from studies.runner import run

FOLDER = Path("runs/searched")
NORMS = ("bn", "gn", "bgn")
METHODS = {"darts-search": "DARTS", "manas-search": "MANAS"}
LISTS = ("manas-search",)  # finds a list of cells: chance draws of the same space


def searches(data: str, norm: str) -> Iterator[Recipe]:
    """One of each method."""
    for method in METHODS:
        yield replace(PRESETS[method]["laptop"], data=data, norm=norm)


def trainings(data: str, norm: str, drawn: int, seeds: int) -> Iterator[Recipe]:
    """Of what the searches have found so far, and of random ones of the same kind, which have one seed each."""
    plain = PRESETS["nas-train"]["laptop"]
    assert isinstance(plain, NasTrainRecipe)
    own = replace(plain, data=data, norm=norm)
    for recipe in searches(data, norm):
        found = FOLDER / recipe.key() / GENOTYPE
        if found.exists():
            yield from (replace(own, genotype=str(found), seed=seed) for seed in range(seeds))
        many = f"-of-{own.cells}" if recipe.experiment in LISTS else ""
        yield from (replace(own, genotype=f"{genotype.RANDOM}{k}{many}") for k in range(drawn))


def main() -> None:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="an .npz of images of 32x32, or the name of a data set")
    parser.add_argument("--norms", nargs="*", default=NORMS)
    parser.add_argument("--drawn", type=int, default=4, help="random genotypes for each search (default: 4)")
    parser.add_argument("--seeds", type=int, default=2, help="of the training of what was found (default: 2)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--hours", type=float, default=3.0, help="for the searches, and again for the trainings (default: 3)")
    options = parser.parse_args()
    data, drawn, seeds = options.data, options.drawn, options.seeds
    if run((recipe for norm in options.norms for recipe in searches(data, norm)), FOLDER, options.jobs, options.hours):
        wanted = [recipe for norm in options.norms for recipe in trainings(data, norm, drawn, seeds)]
        run(wanted, FOLDER, options.jobs, options.hours)


if __name__ == "__main__":
    main()

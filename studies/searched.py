"""Does a search find more than chance does, and does the normalizer matter to it?

    python -m studies.searched --data cifar10_12k.npz --hours 3

DARTS and MANAS search with BN, GN and BGN; what they find, and genotypes drawn at random, are
trained with the same normalizer, all with the laboratory's presets for laptops. Run the same
command to resume. Test accuracies are read by the report alone (studies.searched_report).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bgn_lab import experiments
from bgn_lab.experiments.nas import genotype
from bgn_lab.experiments.nas.recipe import NasTrainRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.recipe import Recipe
from studies.runner import add_options, engine_of, folder_name, run

FOLDER = Path("runs/searched")
NORMS = ("bn", "gn", "bgn")
METHODS = {"darts-search": "DARTS", "manas-search": "MANAS-LS"}
LISTS = ("manas-search",)  # finds a list of cells: chance draws of the same space


def searches(norm: str, **changes: Any) -> Iterator[Recipe]:
    """One of each method: the preset with ``changes``."""
    for method in METHODS:
        yield replace(experiments.get(method).presets["laptop"].recipe, norm=norm, **changes)


def trainings(norms: Sequence[str], drawn: int, seeds: int, **changes: Any) -> Iterator[Recipe]:
    """Trainings of what the searches have found so far, and of random genotypes of the same kind.

    Random ones have one seed each. Trainings come in rounds, so that each normalizer has as many
    when the time is up.
    """
    plain = experiments.get("nas-train").presets["laptop"].recipe
    assert isinstance(plain, NasTrainRecipe)
    for k in range(max(drawn, seeds)):
        for norm in norms:
            own = replace(plain, norm=norm, **changes)
            for search in searches(norm, **changes):
                found = FOLDER / folder_name(search) / GENOTYPE
                if k < seeds and found.exists():
                    yield replace(own, genotype=str(found), seed=k)
                if k < drawn:
                    many = f"-of-{own.cells}" if search.experiment in LISTS else ""
                    yield replace(own, genotype=f"{genotype.RANDOM}{k}{many}")


def main() -> None:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", required=True, help="an .npz of images of 32x32, or the name of a data set"
    )
    parser.add_argument(
        "--images",
        type=int,
        default=10_000,
        help="training images, for searches and trainings (default: 10000)",
    )
    parser.add_argument("--norms", nargs="*", default=NORMS)
    parser.add_argument(
        "--drawn", type=int, default=4, help="random genotypes for each search (default: 4)"
    )
    parser.add_argument(
        "--seeds", type=int, default=2, help="of the training of what was found (default: 2)"
    )
    add_options(parser)
    parser.add_argument(
        "--hours",
        type=float,
        default=3.0,
        help="for the searches, and again for the trainings (default: 3)",
    )
    options = parser.parse_args()
    where = engine_of(options)
    same = {"data": options.data, "limit": options.images}
    wanted = (recipe for norm in options.norms for recipe in searches(norm, **same))
    if run(wanted, FOLDER, where, options.hours):
        run(
            trainings(options.norms, options.drawn, options.seeds, **same),
            FOLDER,
            where,
            options.hours,
        )


if __name__ == "__main__":
    main()

"""Descriptors of architecture search: two searches, and training of what they find."""

from bgn_lab import paper
from bgn_lab.experiments.experiment import Choice, Experiment, Preset, in_paper
from bgn_lab.experiments.nas import genotype
from bgn_lab.experiments.nas.darts import Darts
from bgn_lab.experiments.nas.manas import Manas
from bgn_lab.experiments.nas.recipe import DartsRecipe, ManasRecipe, NasTrainRecipe
from bgn_lab.experiments.nas.train import NasTrain

# DARTS' paper: the best of four searches, judged by trainings of 100 epochs
SEARCHES, SHORT = 4, 100

DARTS_SEARCH = Experiment(
    name="darts-search",
    title="architecture search by gradients",
    recipe=DartsRecipe,
    task=Darts,
    presets={
        "laptop": Preset(
            DartsRecipe(
                width=8, cells=5, epochs=4, limit=10_000, lr=0.1, arch_lr=3e-3, order="first"
            ),
            "5 cells, 8 channels, first order; half an hour on two cores",
        ),
        "paper": Preset(
            DartsRecipe(data="cifar10"), "CIFAR-10, 8 cells, second order; best of 4 searches"
        ),
    },
    choices={
        "": Choice(1, "", SHORT),
        "laptop": Choice(1, "laptop", 5),
        "paper": Choice(SEARCHES, "paper", SHORT),
    },
    comparable=False,
)

MANAS_SEARCH = Experiment(
    name="manas-search",
    title="architecture search by agents",
    recipe=ManasRecipe,
    task=Manas,
    presets={
        "laptop": Preset(
            ManasRecipe(width=8, cells=5, epochs=12, limit=10_000),
            "5 cells, 8 channels; minutes on two cores, whatever the data",
        ),
        "paper": Preset(ManasRecipe(data="cifar10"), "CIFAR-10, 8 cells; best of 4 searches"),
        "paper-20": Preset(
            ManasRecipe(data="cifar10", cells=20, epochs=500),
            "20 cells, 500 epochs: the paper's network was found so; best of 4 searches",
        ),
    },
    choices={
        "": Choice(1, "", SHORT),
        "laptop": Choice(1, "laptop", 5),
        "paper": Choice(SEARCHES, "paper-manas", SHORT),
        "paper-20": Choice(SEARCHES, "paper-manas", SHORT),
    },
    comparable=False,
)


def _list_of_cells(recipe: NasTrainRecipe) -> None:
    """Refuse 600 epochs of another network than the one that was meant."""
    if not genotype.find(recipe.genotype).cells:
        raise ValueError(
            f"preset='paper-manas' trains a list of cells, and genotype={recipe.genotype!r} is "
            "none; expected the genotype.json that bgn run manas-search --preset paper-20 leaves"
        )


def paper_value(recipe: NasTrainRecipe, measure: str) -> float | None:  # noqa: ARG001
    """DARTS trains one pair of cells, MANAS a list."""
    table = paper.MANAS if genotype.find(recipe.genotype).cells else paper.DARTS
    return in_paper(table, recipe, "accuracy")


NAS_TRAIN = Experiment(
    name="nas-train",
    title="a network of cells",
    recipe=NasTrainRecipe,
    task=NasTrain,
    presets={
        "laptop": Preset(
            NasTrainRecipe(
                width=8, cells=5, epochs=10, limit=10_000, lr=0.1, drop_path=0.1, cutout=8
            ),
            "minutes on two cores, whatever the data",
        ),
        "paper": Preset(
            NasTrainRecipe(data="cifar10", validation=0), "CIFAR-10, all training images"
        ),
        "paper-manas": Preset(
            NasTrainRecipe(data="cifar10", validation=0, batch_size=64),
            "the same with batches of 64, for the --genotype that"
            " `bgn run manas-search --preset paper-20` found",
            needs=("genotype",),
            check=_list_of_cells,
        ),
    },
    paper_tables=(paper.DARTS, paper.MANAS),
    paper_value=paper_value,
)

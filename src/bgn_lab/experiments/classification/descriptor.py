"""Descriptor of classification."""

from dataclasses import replace

from bgn.factory import NAMES
from bgn_lab import paper, partners
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.experiments.classification.task import Classification
from bgn_lab.experiments.experiment import Experiment, Preset, in_paper
from bgn_lab.experiments.grid import Grid

_TABLE_1 = Grid(
    norms=("bgn",),
    batch_sizes=tuple(int(size) for size in paper.GROUP_SWEEP.rows),
    groups=tuple(int(G) for G in paper.GROUP_SWEEP.columns),
    seeds=1,
)
_TABLE_2 = Grid(batch_sizes=paper.BATCH_SIZES, seeds=1)


def paper_value(recipe: ClassificationRecipe, measure: str) -> float | None:  # noqa: ARG001
    """The value of table 1 where G is given, else of table 2."""
    size = str(recipe.batch_size)
    if partners.name(recipe) == "bgn" and recipe.groups is not None:
        found = paper.GROUP_SWEEP
        return found.row(size).get(str(recipe.groups)) if size in found.rows else None
    return in_paper(paper.IMAGENET, recipe, size)


EXPERIMENT = Experiment(
    name="classification",
    title="classification",
    recipe=ClassificationRecipe,
    task=Classification,
    presets={
        "laptop": Preset(
            ClassificationRecipe(stride=2, limit=3600, epochs=7, simulate_workers=paper.WORKERS),
            "ResNet-8 on a part of Fashion-MNIST, 8 workers; seconds on two cores",
            shipped_only=("stride", "limit", "epochs", "simulate_workers"),
        ),
        "laptop-workers": Preset(
            ClassificationRecipe(
                model="resnet8",
                width=8,
                simulate_workers=paper.WORKERS,
                limit=10_000,
                epochs=4,
                lr=paper.LEARNING_RATES[32] / paper.WORKERS,
                decay=paper.WEIGHT_DECAY,
            ),
            "ResNet-8 of width 8 with 8 workers, 10,000 images; minutes on a core",
        ),
        "paper-imagenet": Preset(
            ClassificationRecipe(
                data="imagenet",
                model=paper.MODEL,
                simulate_workers=paper.WORKERS,
                epochs=paper.EPOCHS,
                schedule="steps",
                milestones=paper.MILESTONES,
                lr=paper.LEARNING_RATES[32] / paper.WORKERS,
                decay=paper.WEIGHT_DECAY,
                validation=0,
                median_of=paper.MEDIAN_EPOCHS,
                decoders=4,
            ),
            "ResNet-50 on ImageNet with 8 workers, as in the paper's tables 1 and 2",
            needs=("root",),
        ),
    },
    grids={
        "laptop": Grid(
            norms=(*NAMES, "bn+ws", "gn+ws", "bgn+ws"),
            batch_sizes=(2, 8),
            groups=("paper", "auto"),
            seeds=3,
        ),
        **{
            f"{size}-table-{number}": replace(own, preset=preset, help=help.format(what))
            for size, preset, what in (
                ("laptop", "laptop-workers", "ResNet-8 with 8 workers, for two cores"),
                ("paper", "paper-imagenet", "ResNet-50 on ImageNet"),
            )
            for number, own, help in (
                (1, _TABLE_1, "the paper's table 1, BGN with ten G at batch 128 and 2: {}"),
                (2, _TABLE_2, "its table 2, seven normalizers at seven batch sizes: {}"),
            )
        },
    },
    paper_tables=(paper.IMAGENET, paper.GROUP_SWEEP),
    paper_value=paper_value,
)

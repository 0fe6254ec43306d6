"""Descriptor of classification."""

from bgn_lab import paper
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.experiments.classification.task import Classification
from bgn_lab.experiments.experiment import Experiment, Preset

EXPERIMENT = Experiment(
    name="classification",
    title="classification",
    recipe=ClassificationRecipe,
    task=Classification,
    presets={
        "laptop": Preset(
            ClassificationRecipe(stride=2, limit=3600, epochs=2), "a minute on two cores"
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
    paper_tables=(paper.IMAGENET, paper.GROUP_SWEEP),
)

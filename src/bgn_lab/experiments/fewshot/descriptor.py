"""Descriptor of few-shot learning."""

from bgn_lab import paper
from bgn_lab.experiments.experiment import Experiment, Preset, in_paper
from bgn_lab.experiments.fewshot.recipe import FewShotRecipe
from bgn_lab.experiments.fewshot.task import FewShot


def explain(recipe: FewShotRecipe) -> str:
    """What an episode is."""
    found = (
        f"{recipe.classes}-way, {recipe.queries} queries of each class, {recipe.episodes} episodes,"
        " the same for all."
    )
    if recipe.transductive:
        found += " Transductive: normalizers saw the queries of an episode together."
    return found


def paper_value(recipe: FewShotRecipe, measure: str) -> float | None:
    """The figure for a number of shots."""
    return in_paper(paper.FEWSHOT, recipe, measure)


EXPERIMENT = Experiment(
    name="fewshot",
    title="few-shot learning",
    recipe=FewShotRecipe,
    task=FewShot,
    presets={
        "laptop": Preset(
            FewShotRecipe(
                width=16, batch_size=64, epochs=8, milestones=(4, 6, 7), limit=10_000, image_size=48
            ),
            "minutes on two cores, whatever the data",
        ),
        "paper": Preset(
            FewShotRecipe(epochs=60, iterations=1000, milestones=(20, 40, 50), validation=0),
            "60 epochs of 1000 steps; miniImageNet as --data",
            needs=("data",),
        ),
    },
    paper_tables=(paper.FEWSHOT,),
    paper_value=paper_value,
    explain=explain,
)

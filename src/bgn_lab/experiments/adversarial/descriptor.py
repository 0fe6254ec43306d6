"""Descriptor of adversarial training."""

from bgn_lab import paper
from bgn_lab.experiments.adversarial.recipe import AdversarialRecipe
from bgn_lab.experiments.adversarial.task import Adversarial
from bgn_lab.experiments.experiment import Experiment, Preset, in_paper


def explain(recipe: AdversarialRecipe) -> str:
    """Which attacks, and which epoch."""
    found = (
        f"Robust: under PGD of {recipe.test_steps} steps of {recipe.step_size:.4f} within"
        f" {recipe.bound}, begun at the image."
    )
    if recipe.strong_images:
        found += (
            f" Stronger attacks: {recipe.strong_restarts} random starts,"
            f" {recipe.strong_images} images."
        )
    if not recipe.validation:
        found += " Last epoch: without validation images none was chosen."
    return found


def paper_value(recipe: AdversarialRecipe, measure: str) -> float | None:
    """Robust or clean accuracy."""
    return in_paper(paper.ADVERSARIAL, recipe, measure)


EXPERIMENT = Experiment(
    name="adversarial",
    title="adversarial training",
    recipe=AdversarialRecipe,
    task=Adversarial,
    presets={
        "laptop": Preset(
            AdversarialRecipe(stride=2, limit=10_000, strong_images=500),
            "minutes on two cores, whatever the data",
        ),
        "paper": Preset(
            AdversarialRecipe(
                data="cifar10",
                epochs=200,
                milestones=(100, 150),
                validation=0,
                strong_images=1000,
                strong_restarts=5,
            ),
            "all 50,000 training images of CIFAR-10, 200 epochs; the last one is reported",
        ),
    },
    paper_tables=(paper.ADVERSARIAL,),
    paper_value=paper_value,
    explain=explain,
)

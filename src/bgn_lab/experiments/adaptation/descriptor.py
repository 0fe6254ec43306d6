"""Descriptor of domain adaptation."""

from bgn_lab import paper
from bgn_lab.data.domains import PLAIN, TEXTURED
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.experiments.adaptation.task import Adaptation
from bgn_lab.experiments.experiment import Columns, Experiment, Preset, in_paper


def explain(recipe: AdaptationRecipe) -> str:  # noqa: ARG001
    """Which images, which loop."""
    return (
        "Accuracies are of all images of the target, which are also those that were adapted to,"
        " without their labels; last loop. Source only: learned from the source alone, and compared"
        " with BN of that kind. Nothing was chosen by the target's labels."
    )


def columns(data: str, tasks: tuple[str, ...]) -> Columns:
    """Tasks, each with and without adaptation."""
    shipped = (f"{PLAIN}-{TEXTURED}",)
    usual = shipped if data == "fashion-mnist" else tuple(paper.ADAPTATION_GROUPS)
    wanted = tasks or usual
    return tuple({"task": task, "adapt": adapt} for task in wanted for adapt in (False, True))


_OFFICE = ("data", "weights")


def paper_value(recipe: AdaptationRecipe, measure: str) -> float | None:  # noqa: ARG001
    """The figure of a task; the paper has none without adaptation."""
    return in_paper(paper.ADAPTATION, recipe, recipe.task or "") if recipe.adapt else None


EXPERIMENT = Experiment(
    name="adaptation",
    title="domain adaptation",
    recipe=AdaptationRecipe,
    task=Adaptation,
    presets={
        "laptop": Preset(
            AdaptationRecipe(stride=2, epochs=10, warm=4, lr=0.01, limit=2000, iterations=60),
            "the two domains that ship with the package; minutes on two cores",
            shipped_only=("stride", "limit"),
        ),
        "laptop-office": Preset(
            AdaptationRecipe(
                model="mobilenet-v2", image_size=112, epochs=5, iterations=30, channels_last=True
            ),
            "Office-31 with MobileNetV2 at 112 pixels",
            needs=_OFFICE,
        ),
        "paper": Preset(
            AdaptationRecipe(model="resnet50"),
            "Office-31 with ResNet-50 and the settings of CAN as released",
            needs=_OFFICE,
        ),
        "paper-table": Preset(
            AdaptationRecipe(model="resnet50", printed="table"),
            "the same with the other G for ad and aw",
            needs=_OFFICE,
        ),
        "paper-text": Preset(
            AdaptationRecipe(model="resnet50", optimizer="adam", schedule="steps", stop="gap"),
            "the same with optimizer and stop rule of the paper's text",
            needs=_OFFICE,
        ),
    },
    paper_tables=(paper.ADAPTATION,),
    paper_value=paper_value,
    explain=explain,
    columns=columns,
)

"""Descriptor of semantic segmentation."""

from bgn_lab.experiments.experiment import Experiment, Preset
from bgn_lab.experiments.grid import Grid
from bgn_lab.experiments.segmentation import report
from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe
from bgn_lab.experiments.segmentation.task import Segmentation

MADE_UP = ("scenes", "volumes")
IN_3D = ("bn", "in", "ln", "gn", "bgn")
_CAMVID = SegmentationRecipe(
    model="fpn-mobilenet-v2", crop=(120, 160), scale=(0.75, 1.5), epochs=15, recalibrate=True
)


def explain(recipe: SegmentationRecipe) -> str:
    """What is counted, and on what."""
    found = (
        "Over the classes, from the pixels of all test images together; last epoch. Pixels without"
        " a class do not count."
    )
    if recipe.data in MADE_UP:
        found += " The images are made up."
    return found


EXPERIMENT = Experiment(
    name="segmentation",
    title="segmentation",
    recipe=SegmentationRecipe,
    task=Segmentation,
    presets={
        "laptop": Preset(
            SegmentationRecipe(width=8, epochs=12, scale=(0.9, 1.2), lr=0.2),
            "made-up scenes, a narrow U-Net; a minute on a core",
            shipped_only=("width",),
        ),
        "laptop-volumes": Preset(
            SegmentationRecipe(
                data="volumes", width=8, epochs=12, scale=(0.8, 1.25), lr=0.2,
                class_weights="balanced",
            ),
            "made-up volumes, a narrow U-Net in 3D; minutes",
        ),
        "camvid": Preset(
            _CAMVID,
            "street scenes in CamVid's form, a head on ImageNet's MobileNetV2",
            needs=("data", "weights"),
        ),
        "camvid-unet": Preset(
            SegmentationRecipe(
                crop=(120, 160), scale=(0.75, 1.5), epochs=30, recalibrate=True, width=16
            ),
            "the same images, a U-Net from scratch",
            needs=("data",),
        ),
    },
    grids={
        "laptop": Grid(batch_sizes=(1, 2, 8), groups=("paper", "auto"), seeds=1),
        "laptop-volumes": Grid(norms=IN_3D, batch_sizes=(1, 2), seeds=1),
        "camvid": Grid(
            norms=("bn", "bn+frozen", "bn+renorm", "in", "ln", "gn", "pn", "gbgn", "bgn",
                   "bgn+renorm"),
            batch_sizes=(1, 2, 4, 16),
            groups=("paper", "auto", 8),
        ),
        "camvid-unet": Grid(batch_sizes=(1, 2, 4, 16), groups=("paper", "auto", 8)),
    },
    explain=explain,
    score="mean IoU",
    caveats=report.caveats,
    further=report.further,
    picture=report.picture,
)  # fmt: skip

"""Recipe of adversarial training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from bgn import checks
from bgn_lab import paper
from bgn_lab.recipe import (
    TRAINING,
    AmpOptions,
    CompileOptions,
    DecodingOptions,
    GroupWord,
    Measure,
    MedianOptions,
    Schedule,
    ScheduleOptions,
    StrideOptions,
    ValidationOptions,
    WorkerOptions,
)

Craft = Literal["eval", "train"]


@dataclass(frozen=True)
class AdversarialRecipe(
    CompileOptions,
    AmpOptions,
    WorkerOptions,
    ScheduleOptions,
    MedianOptions,
    StrideOptions,
    ValidationOptions,
    DecodingOptions,
):
    """Train one network against attacks."""

    experiment: ClassVar[str] = "adversarial"
    group: ClassVar[str] = "attack"

    model: str = "wrn-10-2"
    """wrn-DEPTH-WIDTH, of depth 10, 16, 22, ...; or any of `bgn run classification`"""
    groups: int | None = field(default=None, metadata={"type": int | GroupWord | None})
    """G of bgn, gn or gbgn; by default the paper's 128 (bgn, gn: slices of C, H, W where there are
    fewer channels); auto (bgn): by maps and batch size"""
    batch_size: int = 128
    """images that are normalized together"""
    epochs: int = 6
    """passes over the training images; 200 in the paper"""
    lr: float = 0.01
    """learning rate of Adam, whatever the batch size"""
    decay: float = 2e-4
    """weight decay, coupled (added to the gradients), on all parameters"""
    schedule: Schedule = "steps"
    """how the learning rate falls: by a tenth at each milestone, to zero along a cosine, or not at
    all"""
    milestones: tuple[int, ...] = (3, 5)
    """epochs at which `--schedule steps` divides the learning rate by ten; 100 and 150 in the
    paper's code"""
    bound: float = 0.0157
    """largest change of a value in [0, 1] by an attack"""
    step_size: float = 2 / 255
    """step size of the attacks"""
    attack_steps: int = 4
    """steps of the attack in training; 0 trains on the images as they are"""
    test_steps: int = 4
    """steps of the attack that gives the robust accuracy; it begins at the image itself"""
    craft: Craft = "eval"
    """mode of the network while it is attacked in training: eval (running statistics) or train
    (statistics of the batch, which also updates the running ones)"""
    strong_steps: tuple[int, ...] = (20, 100)
    """steps of further attacks at the end, with random starts"""
    strong_restarts: int = 2
    """random starts of the further attacks"""
    strong_images: int = 200
    """the further attacks are tried on this many test images, the first ones; 0 for none"""
    channels_last: bool = True
    """channels_last memory format: a third less time on the CPU"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("craft", self.craft, get_args(Craft))
        for name in ("bound", "step_size"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number above 0 and"
                    " at most 1"
                )
        checks.positive_int("test_steps", self.test_steps)
        checks.positive_int("strong_restarts", self.strong_restarts)
        for name in ("attack_steps", "strong_images"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative; expected 0 or more")
        for steps in self.strong_steps:
            checks.positive_int("strong_steps", steps)

    def without_effect(self) -> tuple[str, ...]:
        """Settings of attacks that do not take place."""
        strong = () if self.strong_images else ("strong_steps", "strong_restarts")
        craft = () if self.attack_steps else ("craft",)
        return (*super().without_effect(), *strong, *craft)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Robust and clean accuracy, as in the paper; then those under stronger attacks."""
        usual = (Measure("test_robust", "robust"), Measure("test_accuracy", "clean"))
        if not self.strong_images:
            return usual
        steps = {"same": self.test_steps, **{str(n): n for n in self.strong_steps}}
        strong = (
            Measure(f"test_robust_{key}", f"{n} steps on {self.strong_images}")
            for key, n in steps.items()
        )
        return (*usual, *strong)

    @property
    def curves(self) -> tuple[Measure, ...]:
        """Accuracy under attack."""
        return Measure("validation_robust", "validation robust accuracy"), TRAINING

    @property
    def usual_groups(self) -> int | None:
        """G of the paper."""
        return paper.EXPERIMENT_GROUPS["adversarial"].get(self.norm)

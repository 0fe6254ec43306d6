"""Adversarial training (the paper's section on CIFAR-10 and WRN-10-2): learn from attacked images, be tested on attacked ones.

Robust accuracy is that under the attack, clean accuracy that without. The attack is PGD with the true labels; four steps as in
the paper, and stronger ones at the end, because a defence is judged by those.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn

from bgn import checks
from bgn_lab import data as data_sets
from bgn_lab import norms, paper
from bgn_lab.data.sources import Batch, Data, mixed
from bgn_lab.experiments.adversarial.pgd import PGD
from bgn_lab.models.wide_resnet import wide_resnet
from bgn_lab.recipe import TRAINING, Measure, Recipe, Schedule
from bgn_lab.training.task import Scoring, Task, View, fused, median

Craft = Literal["eval", "train"]


@dataclass(frozen=True)
class AdversarialRecipe(Recipe):
    """Train one network against attacks."""

    experiment: ClassVar[str] = "adversarial"

    model: str = "wrn-10-2"
    """wrn-DEPTH-WIDTH"""
    groups: int | None = None
    """G of bgn, gn or gbgn; by default the paper's 128 (bgn, gn: slices of C, H, W where there are fewer channels)"""
    batch_size: int = 128
    """images that are normalised together"""
    epochs: int = 6
    """passes over the training images; the paper's 200"""
    lr: float = 0.01
    """learning rate of Adam, whatever the batch size"""
    decay: float = 2e-4
    """weight decay, coupled (added to the gradients), on all parameters"""
    schedule: Schedule = "steps"
    """how the learning rate falls: by a tenth at each milestone, to zero along a cosine, or not at all"""
    milestones: tuple[int, ...] = (3, 5)
    """epochs at which `--schedule steps` divides the learning rate by ten; the paper's code 100 and 150"""
    bound: float = 0.0157
    """by how much an attack may change a value in [0, 1]"""
    step_size: float = 2 / 255
    """of the attacks"""
    attack_steps: int = 4
    """of the attack in training; 0 trains on the images as they are"""
    test_steps: int = 4
    """of the attack that gives the robust accuracy; it begins at the image itself"""
    craft: Craft = "eval"
    """mode of the network while it is attacked in training: eval (running statistics) or train (the batch's, which also moves
    the running ones)"""
    strong_steps: tuple[int, ...] = (20, 100)
    """further attacks at the end, with random starts"""
    strong_restarts: int = 2
    """of the further attacks"""
    strong_images: int = 200
    """test images that the further attacks are tried on, the first of them; 0 for none"""

    channels_last: bool = True
    """channels_last memory format: a third less time on the CPU"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("craft", self.craft, get_args(Craft))
        for name in ("bound", "step_size"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number above 0 and at most 1"
                )
        checks.positive_int("test_steps", self.test_steps)
        checks.positive_int("strong_restarts", self.strong_restarts)
        for name in ("attack_steps", "strong_images"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} is negative; expected 0 or more")
        for steps in self.strong_steps:
            checks.positive_int("strong_steps", steps)
        if self.width is not None:
            raise ValueError(
                f"width={self.width}: the width is part of the model's name here, such as wrn-10-2"
            )

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return self.lr

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Robust and clean, as the paper has them; then the stronger attacks."""
        usual = (Measure("test_robust", "robust"), Measure("test_accuracy", "clean"))
        if not self.strong_images:
            return usual
        steps = {"same": self.test_steps, **{str(n): n for n in self.strong_steps}}
        return (
            *usual,
            *(
                Measure(f"test_robust_{key}", f"{n} steps on {self.strong_images}")
                for key, n in steps.items()
            ),
        )

    @property
    def curves(self) -> tuple[Measure, ...]:
        """Under attack."""
        return Measure("validation_robust", "validation robust accuracy"), TRAINING

    @property
    def usual_groups(self) -> int | None:
        """The paper's."""
        return paper.EXPERIMENT_GROUPS["adversarial"].get(self.norm)


class Adversarial(Task):
    """Classification of attacked images."""

    recipe: AdversarialRecipe

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """Values in [0, 1], which is what attacks are bounded in: no mean is subtracted."""
        found = data_sets.load(recipe)
        C = found.shape[0]
        return replace(found, mean=(0.0,) * C, std=(1.0,) * C)

    def network(self) -> nn.Module:
        """A wide residual network."""
        r, data = self.recipe, self.data
        return wide_resnet(
            r.model, norms.constructor(r), len(data.classes), data.shape[0], r.stride or 1
        )

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(
            model.parameters(),
            self.recipe.rate,
            weight_decay=self.recipe.decay,
            fused=fused(self.recipe),
        )

    def example(self, model: nn.Module, batch: Batch) -> Batch:
        """The batch under attack."""
        r = self.recipe
        if not r.attack_steps:
            return batch
        model.train(r.craft == "train")
        attacked = _under(PGD(r.bound, r.step_size, r.attack_steps, start=True))(model, batch)
        model.train()
        return attacked

    def supports_one_pass(self, model: nn.Module) -> bool:
        """Not under attack: that reads running statistics, which the worker before has moved."""
        return not self.recipe.attack_steps and super().supports_one_pass(model)

    def measure(
        self,
        history: list[dict[str, Any]],
        model: nn.Module,  # noqa: ARG002
        score: Scoring,
    ) -> dict[str, Any]:
        """Clean and robust. Test images in the last epoch, and whenever the validation images are more robust than before."""
        r = self.recipe
        attack = _under(PGD(r.bound, r.step_size, r.test_steps))
        metrics: dict[str, Any] = {}
        before = max(
            (m["validation_robust"] for m in history if "validation_robust" in m), default=-1.0
        )
        if len(self.data.validation):
            metrics["validation_accuracy"] = score(self.data.validation, None)[0].accuracy
            metrics["validation_robust"] = score(self.data.validation, attack)[0].accuracy
        if (
            len(history) >= r.epochs - r.median_of
            or metrics.get("validation_robust", -1.0) > before
        ):
            clean, robust = score(self.data.test, None)[0], score(self.data.test, attack)[0]
            metrics |= {
                "test_loss": clean.loss,
                "test_accuracy": clean.accuracy,
                "test_images": clean.images,
            }
            metrics |= {"test_robust": robust.accuracy}
        if len(history) == r.epochs - 1 and r.strong_images:
            some = self.data.test.part(torch.arange(min(r.strong_images, len(self.data.test))))
            metrics["test_robust_same"] = score(some, attack)[0].accuracy
            for steps in r.strong_steps:
                torch.manual_seed(mixed(r.seed, steps))
                strong = PGD(r.bound, r.step_size, steps, start=True, restarts=r.strong_restarts)
                found = score(some, _under(strong))[0]
                metrics |= {f"test_robust_{steps}": found.accuracy, "strong_images": found.images}
        return metrics

    def summary(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """Of the last epochs, and of the one that was most robust on validation images."""
        last = history[-self.recipe.median_of :]
        held = [m for m in history if "validation_robust" in m and "test_robust" in m]
        best = max(held, key=lambda m: float(m["validation_robust"]), default=history[-1])
        return {
            **super().summary(last),
            "test_robust": median(last, "test_robust"),
            "validation_robust": last[-1].get("validation_robust"),
            "best_epoch": best["epoch"],
            "best_test_accuracy": best.get("test_accuracy"),
            "best_test_robust": best.get("test_robust"),
            **{
                name: value
                for name, value in last[-1].items()
                if name.startswith(("test_robust_", "strong_images"))
            },
        }

    def said(self, result: dict[str, Any]) -> str:
        """Robust and clean."""
        r, images = self.recipe, result["images"]["test"]
        found = f"robust {result['test_robust']:.2%}, clean {result['test_accuracy']:.2%} on {images} images"
        best = f"; in epoch {result['best_epoch']}, best on validation images: {result['best_test_robust']:.2%}"
        if "test_robust_same" not in result:
            return found + best
        strong = [f"{steps} steps {result[f'test_robust_{steps}']:.2%}" for steps in r.strong_steps]
        some = f"; on {result['strong_images']} of them {result['test_robust_same']:.2%}"
        return (
            found + best + some + f", with {r.strong_restarts} random starts: {', '.join(strong)}"
        )


def _under(attack: PGD) -> View:
    def view(model: nn.Module, batch: Batch) -> Batch:
        x, y = batch
        return attack(model, x, y), y

    return view

"""Adversarial training: learn from attacked images, be tested on attacked and clean ones.

The paper does this with WRN-10-2 on CIFAR-10. Robust accuracy is that under the attack, clean
accuracy that without. The attack is PGD with the true labels: four steps as in the paper, and
stronger ones at the end, because a defense is judged by those.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from bgn_lab import data as data_sets
from bgn_lab import models, norms
from bgn_lab.data.sources import Batch, Data, mixed
from bgn_lab.experiments.adversarial.pgd import PGD
from bgn_lab.experiments.adversarial.recipe import AdversarialRecipe
from bgn_lab.recipe import Recipe
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.result import Result, Summary
from bgn_lab.training.task import Scoring, Task, View, fused, median


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
        """The network of the recipe's name."""
        r, data = self.recipe, self.data
        return models.network(
            r.model, norms.constructor(r), len(data.classes), data.shape[0], stride=r.stride
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
        """False under attack: that reads running statistics, which the worker before has moved."""
        return not self.recipe.attack_steps and super().supports_one_pass(model)

    def measure(
        self,
        history: list[Metrics],
        model: nn.Module,  # noqa: ARG002
        score: Scoring,
    ) -> Measured:
        """Clean and robust accuracy.

        Test images are used in the last epoch, and whenever the validation images are more robust
        than before.
        """
        r = self.recipe
        attack = _under(PGD(r.bound, r.step_size, r.test_steps))
        metrics = Measured()
        own: dict[str, float] = {}
        before = max((m.measures.get("validation_robust", -1.0) for m in history), default=-1.0)
        if len(self.data.validation):
            held = score(self.data.validation, None)[0]
            metrics = replace(metrics, validation_accuracy=held.accuracy)
            own["validation_robust"] = score(self.data.validation, attack)[0].accuracy
        last = len(history) >= r.epochs - r.median_of
        if r.test and (last or own.get("validation_robust", -1.0) > before):
            metrics = metrics.with_test(score(self.data.test, None)[0])
            own["test_robust"] = score(self.data.test, attack)[0].accuracy
        if r.test and len(history) == r.epochs - 1 and r.strong_images:
            some = self.data.test.part(torch.arange(min(r.strong_images, len(self.data.test))))
            own["test_robust_same"] = score(some, attack)[0].accuracy
            for steps in r.strong_steps:
                torch.manual_seed(mixed(r.seed, steps))
                strong = PGD(r.bound, r.step_size, steps, start=True, restarts=r.strong_restarts)
                found = score(some, _under(strong))[0]
                own |= {f"test_robust_{steps}": found.accuracy, "strong_images": found.images}
        return replace(metrics, measures=own)

    def summary(self, history: list[Metrics]) -> Summary:
        """Accuracies of the last epochs; where there are validation images, also those of the epoch
        that was most robust on them."""
        last = history[-self.recipe.median_of :]
        held = [m for m in history if {"validation_robust", "test_robust"} <= m.measures.keys()]
        best: dict[str, float | None] = {}
        if held:
            chosen = max(held, key=lambda m: m.measures["validation_robust"])
            best = {
                "validation_robust": last[-1].measures.get("validation_robust"),
                "best_epoch": chosen.epoch,
                "best_test_accuracy": chosen.test_accuracy,
                "best_test_robust": chosen.measures["test_robust"],
            }
        strong = {
            name: value
            for name, value in last[-1].measures.items()
            if name.startswith(("test_robust_", "strong_images"))
        }
        robust = {"test_robust": median(m.measures.get("test_robust") for m in last)}
        return replace(super().summary(last), measures=robust | best | strong)

    def result_line(self, result: Result) -> str:
        """Robust and clean accuracy."""
        r, images, own = self.recipe, result.images.test, result.measures
        if own["test_robust"] is None:
            return super().result_line(result)
        found = (
            f"robust {own['test_robust']:.2%}, clean {result.test_accuracy:.2%} on {images}"
            " images, last epoch"
        )
        if "best_epoch" in own:
            found += (
                f"; in epoch {own['best_epoch']}, best on validation images:"
                f" {own['best_test_robust']:.2%}"
            )
        if "test_robust_same" not in own:
            return found
        strong = [f"{steps} steps {own[f'test_robust_{steps}']:.2%}" for steps in r.strong_steps]
        return (
            f"{found}; on {own['strong_images']} of them {own['test_robust_same']:.2%}, with"
            f" {r.strong_restarts} random starts: {', '.join(strong)}"
        )


def _under(attack: PGD) -> View:
    def view(model: nn.Module, batch: Batch) -> Batch:
        x, y = batch
        return attack(model, x, y), y

    return view

"""Search for cells by gradients (DARTS, Liu et al. 2019; the paper's section on architecture search).

Every edge mixes all operations by the softmax of its architecture parameters. Weights learn from one half of the training images,
architecture parameters from the other, in turns. In the end each node keeps the two strongest operations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from bgn import checks
from bgn_lab import files, norms
from bgn_lab.bilevel import Step, first_order, second_order
from bgn_lab.data.sources import Batch, Data
from bgn_lab.experiments import cell_pictures
from bgn_lab.experiments.cells import CellsRecipe, cosine, halves, other_half
from bgn_lab.genotype import EDGES, OPERATIONS, Genotype, derive
from bgn_lab.models.cells import SearchNetwork
from bgn_lab.recipe import Measure, Recipe
from bgn_lab.training.task import Scoring, Task, fused

Order = Literal["first", "second"]
GENOTYPE = "genotype.json"
ALPHAS = "optimizer_alphas"


@dataclass(frozen=True)
class DartsRecipe(CellsRecipe):
    """Search for a genotype by gradients."""

    experiment: ClassVar[str] = "darts-search"

    groups: int | None = None
    """G of bgn, gn or gbgn; by default the paper's: 32 (gn), 256 (bgn)"""
    batch_size: int = 64
    """images that are normalised together"""
    epochs: int = 50
    """passes over the half of the training images that weights learn from"""
    least_lr: float = 0.001
    """what the learning rate falls to along a cosine, epoch by epoch"""
    order: Order = "second"
    """of the architecture's gradient: first (at the weights as they are) or second (after a step of theirs, dearer)"""
    arch_lr: float = 3e-4
    """learning rate of the architecture (Adam)"""
    arch_decay: float = 1e-3
    """weight decay of the architecture"""
    validation: float = 0.5
    """share of the training images that the architecture learns from"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("order", self.order, get_args(Order))
        if not 0 < self.validation < 1:
            raise ValueError(
                f"validation={self.validation}: the architecture learns from it; expected a share above 0 and below 1"
            )
        if not self.arch_lr > 0 or not self.arch_decay >= 0:
            raise ValueError(f"arch_lr={self.arch_lr}, arch_decay={self.arch_decay}; expected a number above 0, and 0 or more")
        if self.amp or self.simulate_workers > 1 or self.accumulate > 1:
            raise ValueError("a search runs without amp, with one worker and without accumulate")

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Of the mixture; what it is worth, training what was found tells."""
        return (Measure("validation_accuracy", "validation accuracy"),)


class Searching(nn.Module):
    """The network with its architecture parameters: (2, 14, 8), of normal and of reduction cells."""

    def __init__(self, network: SearchNetwork) -> None:
        super().__init__()
        self.network = network
        self.alphas = nn.Parameter(1e-3 * torch.randn(2, len(EDGES), len(OPERATIONS)))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x, list(self.alphas.softmax(-1)))
        return logits


class Darts(Task):
    """Classification by a mixture, which is learned too."""

    recipe: DartsRecipe
    judged = "validation_accuracy"

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """Both halves with crops and flips."""
        return halves(recipe)

    def network(self) -> nn.Module:
        """With all operations."""
        r, data = self.recipe, self.data
        self.clip = r.clip
        assert r.width is not None
        return Searching(SearchNetwork(r.width, r.cells, len(data.classes), norms.constructor(r), data.shape[0]))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Of the weights."""
        r = self.recipe
        weights = [p for name, p in model.named_parameters() if name != "alphas"]
        self.weights = torch.optim.SGD(weights, r.lr, r.momentum, weight_decay=r.decay, fused=fused(r))
        return self.weights

    def others(self, model: nn.Module) -> dict[str, torch.optim.Optimizer]:
        """Of the architecture."""
        r = self.recipe
        self.alphas = torch.optim.Adam([model.get_parameter("alphas")], r.arch_lr, (0.5, 0.999), weight_decay=r.arch_decay)
        return {ALPHAS: self.alphas}

    def begin(self, epoch: int, model: nn.Module) -> None:  # noqa: ARG002
        """The learning rate is the epoch's."""
        self.plan = {"rate": torch.tensor(cosine(self.recipe, epoch), dtype=torch.float64)}

    def example(self, model: nn.Module, batch: Batch) -> Batch:
        """A step of the architecture goes before each of the weights."""
        model.train()
        alphas = self.alphas.param_groups[0]["params"]
        other = other_half(self.data, self.recipe)
        if self.recipe.order == "first":
            gradients = first_order(model, alphas, other)
        else:
            gradients = second_order(model, alphas, batch, other, Step(self.weights, float(self.plan["rate"])))
        for own, gradient in zip(alphas, gradients, strict=True):
            own.grad = gradient
        self.alphas.step()
        self.alphas.zero_grad()
        return batch

    def rate(self, epoch: int, step: int, steps: int) -> float:  # noqa: ARG002
        """Epoch by epoch."""
        return cosine(self.recipe, epoch)

    def measure(self, history: list[dict[str, Any]], model: nn.Module, score: Scoring) -> dict[str, Any]:  # noqa: ARG002
        """How the mixture does on the other half, and what it is."""
        own: nn.Module = getattr(model, "_orig_mod", model)  # of a compiled one
        mix = own.get_parameter("alphas").detach().softmax(-1)
        return {**self.validation(score), "mix": [[[round(p, 5) for p in row] for row in cell] for cell in mix.tolist()]}

    def summary(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """What was found."""
        last = history[-1]
        found = genotype(last["mix"]).to_json() if "mix" in last else None
        return {**super().summary(history), "genotype": found}

    def said(self, result: dict[str, Any]) -> str:
        """Of the mixture."""
        return f"validation accuracy of the mixture {result['validation_accuracy']:.2%}; what it found is in {GENOTYPE}"

    def illustrate(self, model: nn.Module, folder: Path) -> None:
        """The genotype as a file, its cells, and how the mixture moved."""
        mix = model.get_parameter("alphas").detach().softmax(-1).tolist()
        files.write(folder / GENOTYPE, json.dumps(genotype(mix).to_json()).encode())
        cell_pictures.write(genotype(mix), folder)
        cell_pictures.movement(folder, ("normal", "reduction"))


def genotype(mix: Sequence[Sequence[Sequence[float]]]) -> Genotype:
    """Of (2, 14, 8) weights."""
    normal, reduction = map(derive, mix)
    return Genotype(normal, reduction)

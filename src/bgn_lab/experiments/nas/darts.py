"""Search for cells by gradients (DARTS, Liu et al. 2019).

The paper uses it in its section on architecture search. Every edge mixes all operations
by the softmax of its architecture parameters. In the end each node keeps the two strongest.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bgn_lab.data.sources import Batch
from bgn_lab.experiments.nas.bilevel import Step, first_order, second_order
from bgn_lab.experiments.nas.cells import cosine
from bgn_lab.experiments.nas.genotype import EDGES, OPERATIONS, Genotype, derive
from bgn_lab.experiments.nas.network import SearchNetwork
from bgn_lab.experiments.nas.recipe import DartsRecipe
from bgn_lab.experiments.nas.search import Search, Weights
from bgn_lab.training.task import fused

ALPHAS = "optimizer_alphas"


class Searching(nn.Module):
    """The network with its architecture parameters: (2, 14, 8), for normal and reduction cells."""

    def __init__(self, network: SearchNetwork) -> None:
        super().__init__()
        self.network = network
        self.alphas = nn.Parameter(1e-3 * torch.randn(2, len(EDGES), len(OPERATIONS)))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x, list(self.alphas.softmax(-1)))
        return logits


class Darts(Search):
    """A mixture is learned."""

    recipe: DartsRecipe
    rows = ("normal", "reduction")

    def network(self) -> nn.Module:
        """The network with all operations at once."""
        return Searching(self.all_operations())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Optimizer of the weights."""
        r = self.recipe
        weights = [p for name, p in model.named_parameters() if name != "alphas"]
        self.weights = torch.optim.SGD(
            weights, r.lr, r.momentum, weight_decay=r.decay, fused=fused(r)
        )
        return self.weights

    def extra_optimizers(self, model: nn.Module) -> dict[str, torch.optim.Optimizer]:
        """Optimizer of the architecture."""
        r = self.recipe
        self.alphas = torch.optim.Adam(
            [model.get_parameter("alphas")], r.arch_lr, (0.5, 0.999), weight_decay=r.arch_decay
        )
        return {ALPHAS: self.alphas}

    def begin(self, epoch: int, model: nn.Module) -> None:  # noqa: ARG002
        """The learning rate is the epoch's."""
        self.plan = {"rate": torch.tensor(cosine(self.recipe, epoch), dtype=torch.float64)}

    def before_step(self, model: nn.Module, batch: Batch) -> None:
        """A step of the architecture precedes each step of the weights."""
        model.train()
        alphas, other = self.alphas.param_groups[0]["params"], self.other_half()
        if self.recipe.order == "first":
            gradients = first_order(model, alphas, other)
        else:
            gradients = second_order(
                model, alphas, batch, other, Step(self.weights, float(self.plan["rate"]))
            )
        for own, gradient in zip(alphas, gradients, strict=True):
            own.grad = gradient
        self.alphas.step()
        self.alphas.zero_grad()

    def mix(self, model: nn.Module) -> Weights:
        """The softmax of the architecture parameters."""
        own: nn.Module = getattr(model, "_orig_mod", model)  # of a compiled one
        found: Weights = own.get_parameter("alphas").detach().softmax(-1).tolist()
        return found

    def found(self, mix: Weights) -> Genotype:
        """The strongest two edges of each node."""
        normal, reduction = map(derive, mix)
        return Genotype(normal, reduction)

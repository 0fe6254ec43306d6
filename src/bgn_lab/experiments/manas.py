"""Search for cells by many agents (MANAS, Carlucci et al. 2019; the paper trains a network that it found).

Every edge of every cell has an agent that chooses one operation, so that each step computes one path and not a mixture. The
weights of the path learn from one half of the training images; the loss of the same path on the other half tells all agents how
they did.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn import checks
from bgn_lab import agents, files, norms, paper
from bgn_lab.data.sources import Batch, Data
from bgn_lab.experiments import cell_pictures
from bgn_lab.experiments.cells import CellsRecipe, cosine, halves, other_half
from bgn_lab.experiments.darts import GENOTYPE
from bgn_lab.genotype import EDGES, OPERATIONS, Edge, Genotype, derive
from bgn_lab.models.cells import SearchNetwork
from bgn_lab.recipe import Measure, Recipe
from bgn_lab.training.loop import Learned, classify
from bgn_lab.training.task import Scoring, Task

Credit = Literal["squares", "weights"]
Keep = Literal["two", "all"]
BASELINE = 5.0  # of the reward
EXPLORE = 0.1
TEMPERATURES = 1000.0, 200.0  # at the beginning and at the end


@dataclass(frozen=True)
class ManasRecipe(CellsRecipe):
    """Search for a genotype by agents."""

    experiment: ClassVar[str] = "manas-search"

    groups: int | None = None
    """G of bgn, gn or gbgn; by default the paper's: 32 (gn), 64 (bgn)"""
    batch_size: int = 64
    """images that are normalised together"""
    epochs: int = 50
    """passes over the half of the training images that weights learn from"""
    least_lr: float = 0.001
    """what the learning rate falls to along a cosine, epoch by epoch"""
    credit: Credit = "squares"
    """how agents learn what their choices contributed: squares (MANAS-LS) or importance weights (MANAS)"""
    window: int = 256
    """rounds that the least squares are over; policies stay uniform for the first quarter of as many"""
    keep: Keep = "two"
    """edges of a found cell: the two strongest of each node, or all"""
    validation: float = 0.5
    """share of the training images that the agents learn from"""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("credit", self.credit, get_args(Credit))
        checks.one_of("keep", self.keep, get_args(Keep))
        checks.positive_int("window", self.window)
        if not 0 < self.validation < 1:
            raise ValueError(f"validation={self.validation}: the agents learn from it; expected a share above 0 and below 1")
        if self.simulate_workers > 1 or self.accumulate > 1 or self.compile:
            raise ValueError("a search by agents runs with one worker, without accumulate and without compile")

    @property
    def usual_groups(self) -> int | None:
        """The paper's."""
        return paper.EXPERIMENT_GROUPS["manas"].get(self.norm)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Of the path of the most probable operations; what it is worth, training what was found tells."""
        return (Measure("validation_accuracy", "validation accuracy"),)


class OnePath(nn.Module):
    """The network with a path through it: (cells, 14), an operation for each edge."""

    path: Tensor

    def __init__(self, network: SearchNetwork) -> None:
        super().__init__()
        self.network = network
        any_op = OPERATIONS.index("sep_conv_3x3")  # until agents choose
        self.register_buffer("path", torch.full((len(network.cells), len(EDGES)), any_op, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x, self.path.tolist())
        return logits


class Manas(Task):
    """Classification by one path at a time."""

    recipe: ManasRecipe
    judged = "validation_accuracy"

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """Both halves with crops and flips."""
        return halves(recipe)

    def network(self) -> nn.Module:
        """With all operations, of which one path is computed."""
        r, data = self.recipe, self.data
        self.clip = r.clip
        assert r.width is not None
        return OnePath(SearchNetwork(r.width, r.cells, len(data.classes), norms.constructor(r), data.shape[0]))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Weights that are not on the path have no gradient, and stay; torch's fused SGD wants all or none to have momentum."""
        r = self.recipe
        return torch.optim.SGD(model.parameters(), r.lr, r.momentum, weight_decay=r.decay)

    def begin(self, epoch: int, model: nn.Module) -> None:  # noqa: ARG002
        """Agents that know nothing, once."""
        if not self.plan:
            self.plan = agents.begin(self.recipe.cells * len(EDGES), len(OPERATIONS), self.recipe.window)
            self.plan["waiting"] = torch.zeros((), dtype=torch.bool)

    def example(self, model: nn.Module, batch: Batch) -> Batch:
        """The agents hear of the step before, and choose anew."""
        self._hear(model)
        chosen = agents.sample(self.plan)
        self._take(model, chosen)
        self.plan["waiting"].fill_(True)
        model.train()
        return batch

    def _take(self, model: nn.Module, chosen: Tensor) -> None:
        model.get_buffer("path").copy_(chosen.view(self.recipe.cells, len(EDGES)))

    @torch.no_grad()
    def _hear(self, model: nn.Module) -> None:
        """The loss on the other half of the path that has just learned."""
        if not self.plan["waiting"]:
            return
        r, chosen = self.recipe, model.get_buffer("path").flatten().cpu()
        model.train()  # with the statistics of the batch: running ones are of rarely taken paths
        x, y = other_half(self.data, r)
        loss = float(F.cross_entropy(model(x).float(), y))
        agents.remember(self.plan, chosen, loss)
        rounds = int(self.plan["rounds"])
        if r.credit == "weights":
            total = r.epochs * max(len(self.data.train) // r.batch_size, 1)
            first, last = TEMPERATURES
            agents.learn_by_weights(self.plan, chosen, BASELINE - loss, first + (last - first) * min(rounds / total, 1), EXPLORE)
        elif rounds >= r.window // 4:
            agents.learn_by_squares(self.plan)
        self.plan["waiting"].fill_(False)

    def loss(self, network: nn.Module, batch: Batch) -> Learned:
        """Of the path."""
        return classify(network, batch)

    def rate(self, epoch: int, step: int, steps: int) -> float:  # noqa: ARG002
        """Epoch by epoch."""
        return cosine(self.recipe, epoch)

    def measure(self, history: list[dict[str, Any]], model: nn.Module, score: Scoring) -> dict[str, Any]:
        """How the most probable path does on the other half, and the policies."""
        torch.manual_seed(self.recipe.seed + len(history))
        self._hear(model)
        policy = self.plan["policy"].view(self.recipe.cells, len(EDGES), len(OPERATIONS))
        self._take(model, policy.argmax(-1).flatten())
        plain = [[[round(p, 5) for p in row] for row in cell] for cell in policy.tolist()]
        return {**self.validation(score), "mix": plain}

    def summary(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """What was found."""
        return {**super().summary(history), "genotype": self._found().to_json() if self.plan else None}

    def _found(self) -> Genotype:
        cells = self.plan["policy"].view(self.recipe.cells, len(EDGES), len(OPERATIONS)).tolist()
        if self.recipe.keep == "two":
            return Genotype(cells=tuple(map(derive, cells)))
        return Genotype(cells=tuple(map(_all_edges, cells)))

    def said(self, result: dict[str, Any]) -> str:
        """Of the most probable path."""
        return (
            f"validation accuracy of the most probable path {result['validation_accuracy']:.2%}; what was found is in {GENOTYPE}"
        )

    def illustrate(self, model: nn.Module, folder: Path) -> None:  # noqa: ARG002
        """The genotype as a file, and its cells."""
        files.write(folder / GENOTYPE, json.dumps(self._found().to_json()).encode())
        cell_pictures.write(self._found(), folder)
        cell_pictures.movement(folder, [f"cell {i + 1}" for i in range(self.recipe.cells)])


def _all_edges(policy: list[list[float]]) -> tuple[tuple[Edge, ...], ...]:
    """With the most probable operation on each."""
    best = [OPERATIONS[max(range(len(row)), key=row.__getitem__)] for row in policy]
    nodes: dict[int, list[Edge]] = {}
    for operation, (state, to) in zip(best, EDGES, strict=True):
        nodes.setdefault(to, []).append(Edge(operation, state))
    return tuple(map(tuple, nodes.values()))

"""Search for cells by many agents (MANAS, Carlucci et al. 2019).

The paper trains a network that it found. Every edge of every cell has an agent that chooses one
operation, so that each step computes one path and not a mixture. Each path learns from one half of
the images; its loss on the other half tells all agents how they did.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn_lab.data.sources import Batch, Data
from bgn_lab.experiments.nas import agents
from bgn_lab.experiments.nas.genotype import (
    EDGES,
    NONE,
    OPERATIONS,
    SOMETHING,
    Cell,
    Edge,
    Genotype,
    derive,
)
from bgn_lab.experiments.nas.network import Mix, SearchNetwork
from bgn_lab.experiments.nas.recipe import ManasRecipe
from bgn_lab.experiments.nas.search import Search, Weights
from bgn_lab.recipe import Recipe
from bgn_lab.training import loop
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.task import Scoring

BASELINE = 5.0  # of the reward
EXPLORE = 0.1
TEMPERATURES = 1000.0, 200.0  # at the beginning and at the end
CALIBRATION = 16  # batches
ALL, EVENLY = -1, torch.full((len(EDGES), len(OPERATIONS)), 1 / len(OPERATIONS))


class OnePath(nn.Module):
    """The network with one path through it: (cells, 14), an operation for each edge.

    All operations are mixed until agents choose.
    """

    path: Tensor

    def __init__(self, network: SearchNetwork) -> None:
        super().__init__()
        self.network = network
        self.register_buffer(
            "path", torch.full((len(network.cells), len(EDGES)), ALL, dtype=torch.long)
        )

    def forward(self, x: Tensor) -> Tensor:
        mixes: list[Mix] = [EVENLY if ALL in cell else cell for cell in self.path.tolist()]
        logits: Tensor = self.network(x, mixes)
        return logits


class Manas(Search):
    """One path at a time."""

    recipe: ManasRecipe

    def __init__(self, recipe: Recipe, data: Data) -> None:
        super().__init__(recipe, data)
        self.rows = [f"cell {i + 1}" for i in range(self.recipe.cells)]

    def check(self) -> None:
        """Agents must have time to learn."""
        r = self.recipe
        rounds = r.epochs * (len(self.data.train) // r.batch_size)
        if r.credit == "squares" and rounds < max(r.window // 4, 1):
            raise ValueError(
                f"window={r.window}: policies stay uniform for a quarter of it, and {r.epochs} "
                f"epochs of {len(self.data.train)} images have {rounds} rounds; expected at most "
                f"{4 * rounds}, or more epochs"
            )
        super().check()

    def network(self) -> nn.Module:
        """The network with all operations, of which one path is computed."""
        return OnePath(self.all_operations())

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """SGD that is not fused.

        Weights that are not on the path have no gradient, and stay as they are. torch's fused SGD
        wants all weights or none to have momentum.
        """
        r = self.recipe
        return torch.optim.SGD(model.parameters(), r.lr, r.momentum, weight_decay=r.decay)

    def begin(self, epoch: int, model: nn.Module) -> None:  # noqa: ARG002
        """Agents that know nothing, once."""
        if not self.plan:
            self.plan = agents.begin(
                self.recipe.cells * len(EDGES), len(OPERATIONS), self.recipe.window
            )
            self.plan["waiting"] = torch.zeros((), dtype=torch.bool)

    def before_step(self, model: nn.Module, batch: Batch) -> None:  # noqa: ARG002
        """The agents learn from the step before, and choose anew."""
        self._hear(model)
        self._take(model, agents.sample(self.plan))
        self.plan["waiting"].fill_(True)
        model.train()

    def _take(self, model: nn.Module, chosen: Tensor) -> None:
        model.get_buffer("path").copy_(chosen.view(self.recipe.cells, len(EDGES)))

    @torch.no_grad()
    def _hear(self, model: nn.Module) -> None:
        """The loss on the other half of the path that has just learned."""
        if not self.plan["waiting"]:
            return
        r, chosen = self.recipe, model.get_buffer("path").flatten().cpu()
        model.train()  # with the statistics of the batch: running ones are of rarely taken paths
        x, y = self.other_half()
        loss = float(F.cross_entropy(model(x).float(), y))
        self.plan["waiting"].fill_(False)
        if not math.isfinite(
            loss
        ):  # nothing to learn from; if it is the weights, the epoch's own loss will tell
            return
        agents.remember(self.plan, chosen, loss)
        rounds = int(self.plan["rounds"])
        if r.credit == "weights":
            total = r.epochs * max(len(self.data.train) // r.batch_size, 1)
            first, last = TEMPERATURES
            agents.learn_by_weights(
                self.plan,
                chosen,
                BASELINE - loss,
                first + (last - first) * min(rounds / total, 1),
                EXPLORE,
            )
        elif rounds >= r.window // 4:
            agents.learn_by_squares(self.plan)

    def measure(self, history: list[Metrics], model: nn.Module, score: Scoring) -> Measured:
        """Accuracy of the most probable path."""
        torch.manual_seed(self.recipe.seed + len(history))
        self._hear(model)
        self._take(model, self.plan["policy"].argmax(-1))
        self._calibrate(model, len(history))
        return super().measure(history, model, score)

    def _calibrate(self, model: nn.Module, epoch: int) -> None:
        """Recompute the running statistics with the path on some training images.

        They were those of paths that came and went.
        """
        if not any(name.endswith("running_mean") for name, _ in model.named_buffers()):
            return
        prepare, many = (
            loop.Prepare(self.data, self.recipe),
            min(CALIBRATION, len(self.data.train) // self.recipe.batch_size),
        )
        batches = self.data.train.training(
            self.recipe.batch_size, self.recipe.seed, epoch, range(many)
        )
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "recalibrate: no data reached"
            )  # what is not on the path
            bgn.recalibrate(model, map(prepare, batches), progress=False)

    def mix(self, model: nn.Module) -> Weights:  # noqa: ARG002
        """The policies."""
        found: Weights = self._by_cell(self.plan["policy"]).tolist()
        return found

    def _by_cell(self, values: Tensor) -> Tensor:
        return values.view(self.recipe.cells, len(EDGES), len(OPERATIONS))

    def found(self, mix: Weights) -> Genotype:
        """A list of cells, one for each place in the network.

        Policies by ranks are alike on all edges. Least squares tell how strong an edge is: by how
        much its best operation lowers the loss, compared with none.
        """
        if self.recipe.keep == "all":
            return Genotype(cells=tuple(map(_all_edges, mix)))
        if self.recipe.credit == "weights":
            return Genotype(cells=tuple(map(derive, mix)))
        credit = self._by_cell(self.plan["credit"])
        strengths = credit[..., OPERATIONS.index(NONE)] - credit[..., SOMETHING].min(-1).values
        return Genotype(cells=tuple(map(derive, mix, strengths.tolist())))


def _all_edges(policy: list[list[float]]) -> Cell:
    """With the most probable operation on each."""
    best = [OPERATIONS[max(range(len(row)), key=row.__getitem__)] for row in policy]
    nodes: dict[int, list[Edge]] = {}
    for operation, (state, to) in zip(best, EDGES, strict=True):
        nodes.setdefault(to, []).append(Edge(operation, state))
    return tuple(map(tuple, nodes.values()))

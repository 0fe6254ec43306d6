"""Train the network of a genotype (the paper's sections on DARTS and MANAS), whoever found it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from bgn_lab import data as data_sets
from bgn_lab import norms
from bgn_lab.data.sources import Batch, Data
from bgn_lab.experiments.nas import genotype
from bgn_lab.experiments.nas.cells import CellsTask, cosine, cut_out, padded
from bgn_lab.experiments.nas.network import FoundNetwork
from bgn_lab.experiments.nas.recipe import NasTrainRecipe
from bgn_lab.recipe import Recipe
from bgn_lab.training.loop import Learned
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.result import Summary


class NasTrain(CellsTask):
    """Classification with cutout, dropped paths and an auxiliary classifier."""

    recipe: NasTrainRecipe

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """The data, with images of at least 32x32."""
        return padded(data_sets.load(recipe))

    def network(self) -> nn.Module:
        """Network of the genotype."""
        r, data = self.recipe, self.data
        self.clip = r.clip
        assert r.width is not None
        found = genotype.find(r.genotype)
        return FoundNetwork(
            found,
            r.width,
            r.cells,
            len(data.classes),
            norms.constructor(r),
            r.auxiliary > 0,
            data.shape[0],
        )

    def begin(self, epoch: int, model: nn.Module) -> None:  # noqa: ARG002
        """More paths are dropped from epoch to epoch."""
        self.plan = {"drop": torch.tensor(self.recipe.drop_path * epoch / self.recipe.epochs)}

    def example(self, model: nn.Module, batch: Batch) -> Batch:  # noqa: ARG002
        """The example with a part of each image hidden."""
        x, y = batch
        return cut_out(x, self.recipe.cutout) if self.recipe.cutout else x, y

    def supports_one_pass(self, model: nn.Module) -> bool:
        """False where paths are dropped: each batch draws its own."""
        return not self.recipe.drop_path and super().supports_one_pass(model)

    def loss(self, network: nn.Module, batch: Batch) -> Learned:
        """Loss of both classifiers."""
        x, y = batch
        logits, beside = network(x, both=True, drop=float(self.plan["drop"]))
        loss = F.cross_entropy(logits, y)
        if beside is not None:
            loss = loss + self.recipe.auxiliary * F.cross_entropy(beside, y)
        return loss, logits, y

    def rate(self, epoch: int, step: int, steps: int) -> float:  # noqa: ARG002
        """Epoch by epoch."""
        return cosine(self.recipe, epoch)

    def summary(self, history: list[Metrics]) -> Summary:
        """The summary with the genotype, whatever it is called."""
        found = {"genotype": genotype.find(self.recipe.genotype).to_json()}
        return replace(super().summary(history), details=found)

"""Train the network of a genotype (the paper's sections on DARTS and MANAS), whoever found it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from bgn_lab import data as data_sets
from bgn_lab import norms
from bgn_lab.data.sources import Batch, Data
from bgn_lab.experiments.nas import genotype
from bgn_lab.experiments.nas.cells import CellsRecipe, CellsTask, cosine, cut_out, padded
from bgn_lab.experiments.nas.network import FoundNetwork
from bgn_lab.recipe import Recipe
from bgn_lab.training.loop import Learned


@dataclass(frozen=True)
class NasTrainRecipe(CellsRecipe):
    """Train the network of a genotype."""

    experiment: ClassVar[str] = "nas-train"

    genotype: str = "DARTS_V2"
    """DARTS_V1, DARTS_V2, random-0, random-1, ... (drawn, as DARTS finds them), random-0-of-20, ... (20 different cells, as MANAS
    does), or the path of a JSON file such as a search writes"""
    groups: int | None = None
    """G of bgn, gn or gbgn; by default the paper's: 32 (gn; 2 for each channel of the first cell if that is fewer), 256 (bgn), or
    64 (bgn) for a genotype that is a list of cells"""
    batch_size: int = 96
    """images that are normalised together"""
    cells: int = 20
    """of the network; those at a third and at two thirds halve the image"""
    width: int | None = 36
    """channels of the first cell, C"""
    epochs: int = 600
    """passes over the training images"""
    cutout: int = 16
    """size of the square that is hidden in each training image; 0 for none"""
    drop_path: float = 0.2
    """what the probability that an edge is left out for an image grows to, epoch by epoch from 0; the last epoch is one step
    below"""
    auxiliary: float = 0.4
    """weight in the loss of a second classifier in the middle; 0 for none"""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(
            self, "genotype", genotype.content(self.genotype)
        )  # files may change or go
        for name, most in {"cutout": 1024, "drop_path": 0.99, "auxiliary": 100.0}.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(
                    f"{name}={getattr(self, name)} is out of range; expected a number from 0 to {most}"
                )

    @property
    def usual_groups(self) -> int | None:
        """The paper's; lists of cells are what MANAS finds."""
        name = "manas" if genotype.find(self.genotype).cells else "darts"
        return self.groups_as_in(name)


class NasTrain(CellsTask):
    """Classification with cutout, dropped paths and an auxiliary classifier."""

    recipe: NasTrainRecipe

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """At least 32x32."""
        return padded(data_sets.load(recipe))

    def network(self) -> nn.Module:
        """Of the genotype."""
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
        """With a part hidden."""
        x, y = batch
        return cut_out(x, self.recipe.cutout) if self.recipe.cutout else x, y

    def supports_one_pass(self, model: nn.Module) -> bool:
        """Not where paths are dropped: each batch draws its own."""
        return not self.recipe.drop_path and super().supports_one_pass(model)

    def loss(self, network: nn.Module, batch: Batch) -> Learned:
        """Of both classifiers."""
        x, y = batch
        logits, beside = network(x, both=True, drop=float(self.plan["drop"]))
        loss = F.cross_entropy(logits, y)
        if beside is not None:
            loss = loss + self.recipe.auxiliary * F.cross_entropy(beside, y)
        return loss, logits, y

    def rate(self, epoch: int, step: int, steps: int) -> float:  # noqa: ARG002
        """Epoch by epoch."""
        return cosine(self.recipe, epoch)

    def summary(self, history: list[dict[str, Any]]) -> dict[str, Any]:
        """With the genotype, whatever it is called."""
        return {
            **super().summary(history),
            "genotype": genotype.find(self.recipe.genotype).to_json(),
        }

"""What searches for cells by gradients and by agents have in common.

Both divide the images into two halves, and end with a genotype.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from bgn_lab import data as data_sets
from bgn_lab import norms
from bgn_lab.data.sources import Batch, Data, InMemory, generator
from bgn_lab.experiments.nas import figure
from bgn_lab.experiments.nas.cells import CellsTask, cosine, padded
from bgn_lab.experiments.nas.genotype import Genotype
from bgn_lab.experiments.nas.network import SearchNetwork
from bgn_lab.experiments.nas.recipe import SearchRecipe
from bgn_lab.recipe import Recipe
from bgn_lab.system import files
from bgn_lab.training import loop
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.result import Result, Summary
from bgn_lab.training.task import Scoring

GENOTYPE = "genotype.json"
Weights = list[list[list[float]]]  # (kinds of cells or cells, 14, 8) of operations


class Search(CellsTask):
    """Search for cells, in turns: weights learn from one half of the training images.

    The architecture learns from the other half.
    """

    ends_with_network = False
    recipe: SearchRecipe
    rows: Sequence[str]  # what the kinds of cells are called

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """Both halves with crops and flips."""
        data = padded(data_sets.load(recipe))
        if not isinstance(data.train, InMemory) or not isinstance(data.validation, InMemory):
            raise ValueError(
                f"data={recipe.data!r} is read from files one by one, and searches take images "
                "from memory; expected fashion-mnist, cifar10 or an .npz file "
                "(tools/arrays.py makes some)"
            )
        return replace(
            data, validation=replace(data.validation, pad=data.train.pad, flip=data.train.flip)
        )

    def all_operations(self) -> SearchNetwork:
        """The network to search in."""
        r, data = self.recipe, self.data
        self.clip = r.clip
        assert r.width is not None
        return SearchNetwork(
            r.width, r.cells, len(data.classes), norms.constructor(r), data.shape[0]
        )

    def other_half(self) -> Batch:
        """A batch for the architecture.

        It is drawn from torch's generator, which every step seeds anew.
        """
        source = self.data.validation
        assert isinstance(source, InMemory)
        draws = generator(int(torch.randint(2**31, ())))
        index = torch.randperm(len(source), generator=draws)[: self.recipe.batch_size]
        return loop.Prepare(self.data, self.recipe)(source.augmented(index, draws))

    def rate(self, epoch: int, step: int, steps: int) -> float:  # noqa: ARG002
        """Epoch by epoch."""
        return cosine(self.recipe, epoch)

    def mix(self, model: nn.Module) -> Weights:
        """The current mixture of operations."""
        raise NotImplementedError

    def found(self, mix: Weights) -> Genotype:
        """Genotype derived from the current mixture."""
        raise NotImplementedError

    def measure(
        self,
        history: list[Metrics],  # noqa: ARG002
        model: nn.Module,
        score: Scoring,
    ) -> Measured:
        """Accuracy on the other half, the current mixture, and the genotype derived from it."""
        mix = self.mix(model)
        shown = [[[round(p, 5) for p in row] for row in cell] for cell in mix]
        own = {"mix": shown, "genotype": self.found(mix).to_json()}
        return replace(self.validation(score), details=own)

    def summary(self, history: list[Metrics]) -> Summary:
        """The summary with the genotype; without one if the loss was not finite."""
        found = {"genotype": history[-1].details.get("genotype")}
        return replace(super().summary(history), details=found)

    def result_line(self, result: Result) -> str:
        """A line that says where the genotype is."""
        return (
            f"validation accuracy in the search {result.validation_accuracy:.2%}; "
            f"what was found is in {GENOTYPE}"
        )

    def illustrate(self, model: nn.Module, folder: Path) -> None:  # noqa: ARG002
        """The genotype as a file, its cells, and how the search moved."""
        epochs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        if "genotype" in epochs[-1]:
            genotype = Genotype.from_json(epochs[-1]["genotype"])
            files.write(folder / GENOTYPE, json.dumps(genotype.to_json()).encode())
            figure.write(genotype, folder)
            figure.movement([epoch["mix"] for epoch in epochs], self.rows, folder)

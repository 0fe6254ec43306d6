"""Train a network for classification with any normalizer, on ImageNet or your own data."""

from __future__ import annotations

from torch import nn

from bgn_lab import models, norms
from bgn_lab.training.task import Task


class Classification(Task):
    """A residual network, cross-entropy, SGD: what every task begins with."""

    def network(self) -> nn.Module:
        """The network of the recipe's name."""
        r, data = self.recipe, self.data
        return models.network(
            r.model, norms.constructor(r), len(data.classes), data.shape[0], r.width, r.stride
        )

"""A backbone with a linear layer of its own for new classes, and normalizers per domain."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

import bgn

SOURCE, TARGET = "source", "target"


class Backbone(Protocol):
    """What a network must have to be adapted."""

    out_features: int

    def stem(self, x: Tensor, /) -> Tensor: ...  # the first layers

    def trunk(self, x: Tensor, /) -> Tensor: ...  # the rest, up to features (N, out_features)


class Adapting(nn.Module):
    """A backbone and a classifier for domain adaptation.

    With ``fixed`` the first layers get no gradients; their normalizers still use and track the
    statistics of batches.
    """

    def __init__(self, backbone: nn.Module, classes: int, fixed: bool) -> None:
        super().__init__()
        self.backbone, self.fixed = backbone, fixed
        features = backbone.out_features
        assert isinstance(features, int)
        self.head = nn.Linear(features, classes)
        nn.init.kaiming_normal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor, both: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (N, classes); or features (N, K) and logits."""
        backbone: Backbone = self.backbone  # type: ignore[assignment]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.fixed):
            x = backbone.stem(x)
        features = backbone.trunk(x)
        logits: Tensor = self.head(features)
        return (features, logits) if both else logits


def begin_anew(network: nn.Module) -> None:
    """Let the target's normalizers begin as the source's are."""
    for module in network.modules():
        if isinstance(module, bgn.DomainNorm):
            module[TARGET].load_state_dict(module[SOURCE].state_dict())

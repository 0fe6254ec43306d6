"""What kind of normaliser a layer is, whoever wrote it: the paper's name, its channels, its groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from bgn import layers
from bgn.partition import Partition, channel_groups, slices
from bgn.sync import SyncBatchGroupNorm

BATCH_WIDE = ("bn", "gbgn", "bgn")  # statistics over the batch, running averages at test time


@dataclass(frozen=True)
class Kind:
    """A normaliser as the paper sees it. ``spatial`` is 1, 2 or 3, or None where the layer takes any number."""

    name: str
    num_features: int
    num_groups: int
    spatial: int | None = None
    batch_blocks: int = 1

    @property
    def batch_wide(self) -> bool:
        """Whether the statistics are the batch's, with running averages for test time."""
        return self.name in BATCH_WIDE

    def partition(self, N: int, P: int) -> Partition | None:
        """Which elements share a statistic in training; None for PN, which is no such partition."""
        C, G = self.num_features, self.num_groups
        if self.name == "pn":
            return None
        if self.name == "gbgn":
            return channel_groups(N, C, P, G, B=self.batch_blocks)
        return slices(N, C, P, G, B=1 if self.batch_wide else N)


def is_frozen_batch_norm(layer: nn.Module) -> bool:
    """A detector's FrozenBatchNorm: weight, bias and statistics are all buffers (torchvision, detectron2)."""
    buffers = {"weight", "bias", "running_mean", "running_var"}
    return type(layer).__name__.startswith("FrozenBatchNorm") and buffers <= {
        n for n, _ in layer.named_buffers(recurse=False)
    }


def identify(layer: nn.Module) -> Kind | None:
    """The kind of a normaliser, or None for anything else.

    ``torch.nn.LayerNorm`` is None: it normalises trailing dimensions, not channels.

    >>> identify(nn.BatchNorm2d(8)), identify(nn.ReLU())
    (Kind(name='bn', num_features=8, num_groups=8, spatial=2, batch_blocks=1), None)
    """
    any_layer: Any = layer
    if isinstance(layer, layers.GeneralBatchGroupNorm2d):
        return Kind("gbgn", layer.num_features, layer.num_groups, 2, layer.batch_blocks)
    if isinstance(
        layer, layers.BatchGroupNorm1d | layers.BatchGroupNorm2d | layers.BatchGroupNorm3d
    ):
        return Kind("bgn", layer.num_features, layer.num_groups, layer.accepted_dims[-1] - 2)
    if isinstance(layer, layers.PositionalNorm2d):
        return Kind("pn", layer.num_features, 1, 2)
    if isinstance(layer, SyncBatchGroupNorm):
        return Kind("bgn", layer.num_features, layer.num_groups)
    if isinstance(layer, nn.GroupNorm):
        name = {1: "ln", layer.num_channels: "in"}.get(layer.num_groups, "gn")
        return Kind(name, layer.num_channels, layer.num_groups)
    if isinstance(layer, _BatchNorm | _InstanceNorm):
        name = "bn" if isinstance(layer, _BatchNorm) else "in"
        return Kind(name, layer.num_features, layer.num_features, _spatial(layer))
    if is_frozen_batch_norm(layer):
        C = any_layer.running_mean.numel()
        return Kind("bn", C, C, 2)
    return None


def _spatial(layer: nn.Module) -> int | None:
    for spatial, types in {
        1: (nn.BatchNorm1d, nn.InstanceNorm1d),
        2: (nn.BatchNorm2d, nn.InstanceNorm2d),
        3: (nn.BatchNorm3d, nn.InstanceNorm3d),
    }.items():
        if isinstance(layer, types):
            return spatial
    return None


def normalisers(model: nn.Module) -> dict[str, nn.Module]:
    """The normalisers of a model by name, each once however often it is shared."""
    return {name: layer for name, layer in model.named_modules() if identify(layer) is not None}

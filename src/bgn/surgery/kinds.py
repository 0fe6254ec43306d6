"""Recognize normalizers, of this library or of others: name in the table, channels, groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from bgn.factory import NORMALIZERS, Normalizer
from bgn.layers import CHANNEL
from bgn.partition import Partition
from bgn.running import are_trained


@dataclass(frozen=True)
class Kind:
    """A normalizer of C channels. ``spatial`` is 1, 2 or 3, or None if the layer takes any."""

    name: str
    num_features: int
    num_groups: int
    spatial: int | None = None
    batch_blocks: int = 1
    channel_means: bool = False
    """Whether every channel has its own mean, and only the variance is the group's."""

    @property
    def row(self) -> Normalizer:
        """The normalizer's row in the table."""
        return NORMALIZERS[self.name]

    @property
    def batch_wide(self) -> bool:
        """Whether statistics are the batch's in training and running averages in eval mode."""
        return self.row.running_statistics

    def partition(self, N: int, P: int) -> Partition | None:
        """Which elements share a statistic in training; None for PN, whose groups are strided."""
        part = self.row.partition(N, self.num_features, P, self.num_groups, self.batch_blocks)
        if part is not None and self.channel_means:
            part = replace(part, channel_means=True)
        return part


def identify(layer: nn.Module) -> Kind | None:
    """The kind of a normalizer, or None for any other module.

    A layer with ``num_groups="auto"`` has G = C: that is what it computes in eval mode.

    :class:`torch.nn.LayerNorm` gives None, because it normalizes trailing dimensions instead of
    channels.

    >>> identify(nn.BatchNorm2d(8)), identify(nn.ReLU())
    (Kind(name='bn', num_features=8, num_groups=8, ...), None)
    """
    any_layer: Any = layer
    if is_frozen_batch_norm(layer):
        C = any_layer.running_mean.numel()
        return Kind("bn", C, C, 2)
    C = getattr(any_layer, "num_features", 0) or getattr(any_layer, "num_channels", 0)
    for row in NORMALIZERS.values():
        G = row.groups_of(layer, C)
        if G is not None:
            if is_auto(layer):  # it keeps one statistic per channel
                G = C
            blocks, center = getattr(layer, "batch_blocks", 1), getattr(layer, "center", None)
            return Kind(row.name, C, G, row.spatial(layer), blocks, center == CHANNEL)
    return None


def is_frozen_batch_norm(layer: nn.Module) -> bool:
    """Whether a layer is a detector's FrozenBatchNorm (torchvision, detectron2).

    Its weight, bias and statistics are all buffers.
    """
    buffers = {"weight", "bias", "running_mean", "running_var"}
    return type(layer).__name__.startswith("FrozenBatchNorm") and buffers <= {
        n for n, _ in layer.named_buffers(recurse=False)
    }


def is_trained(layer: nn.Module) -> bool:
    """Whether a layer's running statistics are those of training, see :func:`are_trained`.

    A lazy layer, or one on the meta device, is not: it has no values.
    """
    own: Any = layer
    names = "running_mean", "running_var", "num_batches_tracked"
    mean, var, count = (getattr(own, name, None) for name in names)
    if any(t is not None and (is_lazy(t) or t.is_meta) for t in (mean, var, count)):
        return False
    return are_trained(mean, var, count, getattr(own, "momentum", None))


def is_undecided(layer: nn.Module) -> bool:
    """Whether a layer with ``num_groups="auto"`` still waits for the batch that decides."""
    return bool(getattr(layer, "undecided", False))


def is_auto(layer: nn.Module) -> bool:
    """Whether a batch decides, or has decided, the number of groups of a layer."""
    return bool(getattr(layer, "auto", False))


def own_groups(layer: nn.Module, kind: Kind) -> int:
    """Number of groups of a layer in training; only ``num_groups="auto"`` differs from the kind."""
    G = kind.row.groups_of(layer, kind.num_features)
    return kind.num_groups if G is None else G


def normalizers(model: nn.Module) -> dict[str, nn.Module]:
    """The normalizers of a model by name; a shared one is listed once."""
    return {name: layer for name, layer in model.named_modules() if identify(layer) is not None}


def some_normalizers(model: nn.Module, purpose: str = "") -> dict[str, nn.Module]:
    """The normalizers of a model, which has at least one. ``purpose`` completes the error."""
    found = normalizers(model)
    if not found:
        end = f"; nothing to {purpose}" if purpose else ""
        raise ValueError(f"model={type(model).__name__} has no normalizer that is known here{end}")
    return found

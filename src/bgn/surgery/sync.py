"""Give the normalizers of a model statistics over the samples of all processes."""

from __future__ import annotations

from typing import Any

from torch import nn

from bgn.layers import (
    BatchGroupNorm1d,
    BatchGroupNorm2d,
    BatchGroupNorm3d,
    GeneralBatchGroupNorm2d,
)
from bgn.surgery.modules import inherit, replace
from bgn.sync import SyncBatchGroupNorm, SyncGeneralBatchGroupNorm2d


def convert_sync(model: nn.Module, process_group: Any = None) -> nn.Module:
    """Give the BN, GBGN and BGN layers of a model statistics over all processes, in place.

    Returns the model, or its replacement if the model itself is such a layer. BN becomes
    :class:`SyncBatchGroupNorm` with one group per channel, which computes the same. Parameters,
    buffers, state_dict keys and hooks stay. GBGN is converted if it has one block of samples. IN,
    LN, GN and PN compute their statistics per sample and need no conversion. Call this before
    wrapping the model in ``DistributedDataParallel``.

    >>> convert_sync(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]
    SyncBatchGroupNorm(8, num_groups=8, ...)
    """
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise TypeError(
            "model is wrapped in DistributedDataParallel, which keeps lists of its buffers;"
            " convert model.module first"
        )
    found = {layer: _synchronized(layer, process_group) for layer in model.modules()}
    return replace(model, {old: new for old, new in found.items() if new is not None})


def _synchronized(layer: nn.Module, process_group: Any) -> nn.Module | None:
    """The layer that takes this one's place, or None if this one stays."""
    if isinstance(layer, nn.SyncBatchNorm | SyncBatchGroupNorm | SyncGeneralBatchGroupNorm2d):
        return None
    if getattr(layer, "undecided", False):
        raise ValueError(
            f"the number of groups of {layer} is still to be decided; run a training batch first,"
            " or bgn.convert(model, num_groups='auto', batch_size=..., sample=...) with the batch"
            " size of all processes"
        )
    options: dict[str, Any] = {"process_group": process_group, "device": "meta"}
    new: SyncBatchGroupNorm | SyncGeneralBatchGroupNorm2d
    if isinstance(layer, GeneralBatchGroupNorm2d):
        if layer.batch_blocks != 1:
            raise ValueError(
                f"batch_blocks={layer.batch_blocks} of {layer}: blocks across processes are not"
                " supported; expected 1"
            )
        new = SyncGeneralBatchGroupNorm2d(layer.num_features, layer.num_groups, **options)
    elif isinstance(layer, BatchGroupNorm1d | BatchGroupNorm2d | BatchGroupNorm3d):
        new = SyncBatchGroupNorm(layer.num_features, layer.num_groups, **options)
    elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
        new = SyncBatchGroupNorm(layer.num_features, layer.num_features, **options)
    else:
        return None
    for name in ("eps", "momentum", "affine", "track_running_stats", "auto", "undecided"):
        setattr(new, name, getattr(layer, name, False))
    new._parameters, new._buffers = dict(layer._parameters), dict(layer._buffers)
    inherit(new, layer)
    return new

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
from bgn.surgery.freeze import Frozen
from bgn.surgery.kinds import (
    identify,
    is_auto,
    is_frozen_batch_norm,
    is_undecided,
    normalizers,
    own_groups,
)
from bgn.surgery.modules import inherit, refuse_data_parallel, replace
from bgn.surgery.problems import Problem, report
from bgn.surgery.support import activate, is_activated, is_plain
from bgn.sync import SyncBatchGroupNorm, SyncGeneralBatchGroupNorm2d

BatchGroupNorm = (BatchGroupNorm1d, BatchGroupNorm2d, BatchGroupNorm3d)


def convert_sync(model: nn.Module, process_group: Any = None) -> nn.Module:
    """Give the BN, GBGN and BGN layers of a model statistics over all processes, in place.

    Returns the model, or its replacement if the model itself is such a layer. BN becomes
    :class:`SyncBatchGroupNorm` with one group per channel, which computes the same. Parameters,
    buffers, state_dict keys and hooks stay. GBGN is converted if it has one block of samples. IN,
    LN, GN and PN compute their statistics per sample and need no conversion, and frozen layers
    (:func:`freeze`) have fixed statistics. A layer with a forward of its own is refused. Call this
    before wrapping the model in ``DistributedDataParallel``.

    >>> convert_sync(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))[1]
    SyncBatchGroupNorm(8, num_groups=8, ...)
    """
    refuse_data_parallel(model, "buffers")
    found = {name: layer for name, layer in normalizers(model).items() if _is_local(layer)}
    problems = [Problem(n, reason) for n, layer in found.items() if (reason := _refusal(layer))]
    if problems:
        raise ValueError("nothing was converted, because of\n" + report(problems))
    return replace(model, {old: _synchronized(old, process_group) for old in found.values()})


def _is_local(layer: nn.Module) -> bool:
    """Whether a layer's statistics are those of the samples of its own process."""
    kind = identify(layer)
    fixed = isinstance(layer, Frozen) or is_frozen_batch_norm(layer)
    synchronized = (nn.SyncBatchNorm, SyncBatchGroupNorm, SyncGeneralBatchGroupNorm2d)
    return (
        kind is not None and kind.batch_wide and not fixed and not isinstance(layer, synchronized)
    )


def _refusal(layer: Any) -> str | None:
    """Why a layer cannot be converted, or None."""
    if is_undecided(layer):
        return (
            "its number of groups is still to be decided; run a training batch first, or"
            " bgn.convert(model, num_groups='auto', batch_size=..., sample=...) with the batch"
            " size of all processes"
        )
    if getattr(layer, "batch_blocks", 1) != 1:
        return (
            f"batch_blocks={layer.batch_blocks} is refused: blocks across processes are not"
            " supported; expected 1"
        )
    cls = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if not is_plain(layer):
        return f"its class {cls} has a forward of its own, which would be lost"
    if not is_activated(layer) and layer._modules:
        return f"it holds {', '.join(layer._modules)}, which would be lost"
    return None


def _synchronized(layer: Any, process_group: Any) -> nn.Module:
    """The layer that takes this one's place, with the same parameters and buffers."""
    kind = identify(layer)
    assert kind is not None
    general = isinstance(layer, GeneralBatchGroupNorm2d)
    cls = SyncGeneralBatchGroupNorm2d if general else SyncBatchGroupNorm
    G = own_groups(layer, kind)
    options = {"center": layer.center} if isinstance(layer, BatchGroupNorm) else {}
    new = cls(kind.num_features, G, process_group=process_group, device="meta", **options)
    for name in ("eps", "momentum", "affine", "track_running_stats"):
        setattr(new, name, getattr(layer, name))
    new.renorm = getattr(layer, "renorm", None)  # its steps are a buffer
    new.auto = is_auto(layer)  # then there is one running statistic per channel
    new._parameters, new._buffers = dict(layer._parameters), dict(layer._buffers)
    if is_activated(layer):
        activate(new, layer)
    inherit(new, layer)
    return new

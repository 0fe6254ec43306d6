"""Checkpoints that do not fit a normalizer: what they are of, and the right way to load them.

torch names the tensors that are missing, too many or of another shape. A layer adds a sentence,
one for a whole model. Tensors of another shape are errors always; a layer is not told whether
``strict=False`` forgives keys, so there the sentence belongs to the first key, where torch prints
it as part of an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

STATISTICS = ("running_mean", "running_var")
_SAYS = ": the checkpoint "
_BUILD = "build the model with that, load it, then"


class _Key(str):
    """A key of a state_dict, equal to the plain one, that is printed with a reason."""

    __slots__ = ("why",)
    why: str

    def __format__(self, spec: str) -> str:
        return f"{format(str(self), spec)}{_SAYS}{self.why}"


class Explained(nn.Module):
    """A normalizer that says why a checkpoint does not fit it."""

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        known = any(isinstance(key, _Key) for key in (*missing_keys, *unexpected_keys))
        if known or any(_SAYS in error for error in error_msgs):
            return
        own = {k[len(prefix) :]: value for k, value in state_dict.items() if k.startswith(prefix)}
        if why := _about_sizes(self, own):
            error_msgs.append(f"{prefix.rstrip('.') or type(self).__name__}{_SAYS}{why}")
        elif why := _about_keys(self, own):
            for keys in (missing_keys, unexpected_keys):
                place = next((i for i, k in enumerate(keys) if k.startswith(prefix)), None)
                if place is not None:
                    keys[place] = key = _Key(keys[place])
                    key.why = why
                    return


def _about_sizes(layer: Any, own: Mapping[str, Any]) -> str:
    """Why running statistics have other shapes."""
    ours = [layer._buffers.get(name) for name in STATISTICS]
    theirs = [own.get(name) for name in STATISTICS]
    if any(t is None for t in (*ours, *theirs)) or getattr(layer, "auto", False):
        return ""
    expected, shapes = ([tuple(t.shape) for t in pair if t is not None] for pair in (ours, theirs))
    if shapes == expected or any(len(shape) != 1 for shape in shapes):
        return ""
    (means,), (G,) = shapes
    center = "channel" if means != G else "group"
    has = f"has {G} statistics, and this layer num_groups={layer.num_groups}"
    if center != layer.center:
        return f"is one of center={center!r}: {_BUILD} {_convert(layer)}"
    if layer.num_features == G:
        return f"{has}. If it is one of BatchNorm (or of 'auto'), {_BUILD} {_convert(layer)}"
    return f"{has}. Build the model with num_groups={G} here, load it, then bgn.regroup"


def _about_keys(layer: Any, own: Mapping[str, Any]) -> str:
    """Why tensors are missing, or which ones only other normalizers have."""
    tensors = {**layer._parameters, **layer._buffers}
    statistics = {*STATISTICS}
    expected = {name for name, tensor in tensors.items() if tensor is not None}
    expected &= {"weight", *STATISTICS}  # others may be missing in old files, and are completed
    if expected and not expected & own.keys():
        return (
            "has nothing of this layer. If it is one of a folded model, load it into"
            " bgn.fold(model.eval())"
        )
    if statistics <= expected and not statistics & own.keys():
        return (
            "has no running statistics. If it is one of GroupNorm or the like,"
            f" {_BUILD} {_convert(layer)} and bgn.recalibrate(model, loader)"
        )
    if not statistics & tensors.keys() and statistics <= own.keys():
        target = "gn" if isinstance(layer, nn.GroupNorm) else "pn"
        return f"has running statistics, as of BN and BGN: {_BUILD} bgn.convert(model, {target!r})"
    return ""


def _convert(layer: Any) -> str:
    center = "" if layer.center == "group" else f", center={layer.center!r}"
    return f"bgn.convert(model, num_groups={layer.num_groups}{center})"

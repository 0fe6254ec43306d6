"""Which layers of other libraries a conversion accepts, and why it refuses the rest."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from bgn import layers
from bgn._fx import leaf
from bgn.activated import BatchGroupNormAct2d, is_fused
from bgn.activation import INPUT
from bgn.surgery.freeze import Frozen
from bgn.surgery.kinds import is_frozen_batch_norm
from bgn.surgery.mixin import Mixed, mixed

# a class whose forward is one of these normalizes and does nothing else
_PLAIN_FORWARDS = {
    _BatchNorm.forward,
    nn.SyncBatchNorm.forward,
    nn.GroupNorm.forward,
    _InstanceNorm.forward,
    layers.BatchGroupNorm2d.forward,
    layers.GroupNorm.forward,
    layers.PositionalNorm2d.forward,
}
_KNOWN = {
    "_parameters": ("weight", "bias"),
    "_buffers": (
        *("weight", "bias", "running_mean", "running_var"),
        *("num_batches_tracked", "renorm_steps"),
    ),
    "_modules": ("drop", "act", "parametrizations"),
}
_QUANTIZED = ("torch.ao.", "torch.nn.quantized", "torch.nn.intrinsic", "torchao.")


class Activated(Mixed):
    """Mixin for a normalizer: dropout and activation follow, as in timm's BatchNormAct2d.

    With a residual, which is added before the activation, as in BatchGroupNormAct2d.
    """

    prefix = "Activated"

    @leaf
    def forward(self: Any, input: Tensor, residual: Tensor | None = None) -> Tensor:
        output: Tensor = self.drop(super().forward(input))  # type: ignore[misc]
        activated: Tensor = self.act(output if residual is None else output + residual)
        return activated


class SumActivated(nn.Module):
    """What is left of a normalizer that was folded: dropout, a residual and the activation."""

    def __init__(self, drop: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.drop, self.act = drop, act

    @leaf
    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        output = self.drop(input)
        activated: Tensor = self.act(output if residual is None else output + residual)
        return activated


def is_activated(layer: nn.Module) -> bool:
    """Whether a normalizer contains its activation: ours, or timm's BatchNormAct2d."""
    names = ("BatchNormAct2d", "FrozenBatchNormAct2d")
    timms = any(
        c.__name__ in names and c.__module__.startswith("timm.") for c in type(layer).__mro__
    )
    return isinstance(layer, Activated) or is_fused(layer) or timms


def is_plain(layer: nn.Module) -> bool:
    """Whether the layer only normalizes, apart from a known activation."""
    known = type(layer).forward in _PLAIN_FORWARDS or is_activated(layer)
    known = known or (is_frozen_batch_norm(layer) and not layer._modules and hasattr(layer, "eps"))
    return known and "forward" not in layer.__dict__


def activate(norm: nn.Module, old: nn.Module) -> None:
    """Give ``norm`` the dropout and the activation of ``old``; what was fused stays so."""
    if is_fused(old) and type(norm) is layers.BatchGroupNorm2d:
        norm.__class__ = BatchGroupNormAct2d
        norm.__dict__["save"] = old.__dict__.get("save", INPUT)
    else:
        norm.__class__ = mixed(Activated, type(norm))
    for name in ("drop", "act"):
        norm.add_module(name, getattr(old, name))


def refusal(model: nn.Module, name: str, layer: nn.Module) -> str | None:
    """Why this normalizer cannot be replaced, or None."""
    if isinstance(layer, _LazyNormBase) and layer.has_uninitialized_params():
        return "it is lazy; run a batch through the model first"
    if any(tensor.is_meta for tensor in (*layer.parameters(), *layer.buffers())):
        return "it is on the meta device and has no values; load them first"
    if isinstance(layer, torch.jit.ScriptModule):
        return "it is a ScriptModule; convert the model before scripting it"
    for owner in (layer, *_ancestors(model, name)):
        if type(owner).__module__.startswith(_QUANTIZED):
            return (
                f"it is part of the quantized or fused {type(owner).__name__};"
                " convert before preparing for quantization"
            )
    cls = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if not is_plain(layer):
        return f"its class {cls} has a forward of its own, which would be lost"
    if (
        type(layer).train not in (nn.Module.train, Frozen.train)
        or type(layer).eval is not nn.Module.eval
    ):
        return f"its class {cls} has a train or eval of its own, which would be lost"
    extra = [
        key for table, known in _KNOWN.items() for key in layer.__dict__[table] if key not in known
    ]
    if extra:
        names = ", ".join(extra)
        return f"it holds {names}, which a normalizer does not have and which would be lost"
    return None


def _ancestors(model: nn.Module, name: str) -> list[nn.Module]:
    parts = name.split(".")[:-1]
    return (
        [model, *(model.get_submodule(".".join(parts[: i + 1])) for i in range(len(parts)))]
        if name
        else []
    )


def convolution_dims(model: nn.Module) -> set[int]:
    """Numbers of spatial dimensions of the model's convolutions: a part of {1, 2, 3}."""
    kinds = {
        1: (nn.Conv1d, nn.ConvTranspose1d),
        2: (nn.Conv2d, nn.ConvTranspose2d),
        3: (nn.Conv3d, nn.ConvTranspose3d),
    }
    return {n for n, types in kinds.items() if any(isinstance(m, types) for m in model.modules())}


def model_spatial(model: nn.Module) -> int:
    """Number of spatial dimensions for normalizers that take any: that of the convolutions.

    1 for a model of linear layers, 2 where convolutions leave it open.
    """
    present = convolution_dims(model)
    if not present and any(isinstance(m, nn.Linear) for m in model.modules()):
        return 1
    return present.pop() if len(present) == 1 else 2

"""Convolutions and linear layers whose filters are standardized in every call.

A filter W[o] is what one output channel o multiplies its inputs with, n numbers: C_in / groups
channels times the positions of the kernel. The layer computes with

    W'[o] = (W[o] - mean(W[o])) / sqrt(var(W[o]) + eps) * gain[o]

where ``var`` is the biased variance, and the gain is 1 unless it is learned. W itself stays the
parameter, so state_dict keys, optimizers and averages of weights see what they saw before.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from bgn.surgery.mixin import Mixed, mixed, parts
from bgn.surgery.modules import unparametrize
from bgn.surgery.pairs import TRANSPOSED

_TRANSPOSED_FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class Standardized(Mixed):
    """Base of the mixins below. ``weight`` is the parameter as it is learned."""

    prefix = "Standardized"
    weight_eps: float
    gain: nn.Parameter | None

    def standardized_weight(self: Any) -> Tensor:
        """The weight that the layer computes with."""
        return _standardize(self, self.weight)

    def __prepare_scriptable__(self) -> Any:
        raise RuntimeError(
            f"torch.jit.script cannot compile {type(self).__name__}; use torch.jit.trace or"
            " torch.export, or script what bgn.fold(model) gives"
        )

    def extra_repr(self: Any) -> str:
        gain = "" if self.gain is None else ", gain=True"
        return f"{super().extra_repr()}, weight_eps={self.weight_eps}{gain}"  # type: ignore[misc]

    def reset_parameters(self: Any) -> None:
        super().reset_parameters()  # type: ignore[misc]
        if self.gain is not None:
            nn.init.ones_(self.gain)

    def _load_from_state_dict(
        self: Any, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        if self.gain is not None:  # checkpoints of the plain layer have none
            state_dict.setdefault(f"{prefix}gain", torch.ones_like(self.gain, device="cpu"))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)  # type: ignore[misc]


class _Convolution(Standardized):
    def forward(self: Any, input: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(input, self.standardized_weight(), self.bias)
        return out


class _Transposed(Standardized):
    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        if self.padding_mode != "zeros":
            raise ValueError(f"padding_mode={self.padding_mode!r}; expected 'zeros'")
        dims = len(self.kernel_size)
        padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, dims, self.dilation
        )
        weight, where = self.standardized_weight(), (self.stride, self.padding, padding)
        function: Any = _TRANSPOSED_FUNCTIONS[dims - 1]
        out: Tensor = function(input, weight, self.bias, *where, self.groups, self.dilation)
        return out


class _Linear(Standardized):
    def forward(self: Any, input: Tensor) -> Tensor:
        return F.linear(input, self.standardized_weight(), self.bias)


def elements(layer: Any) -> int:
    """The numbers of one filter, n.

    >>> elements(nn.Conv2d(8, 4, 3)), elements(nn.Conv2d(8, 8, 3, groups=8))
    (72, 9)
    """
    n: int = layer.weight.numel() // _width(layer)
    return n


def computed_before_calls(layer: Any) -> str:
    """Why the weight is no parameter, such as that of a pruned layer; empty if it is one."""
    if "weight" in layer._parameters or parametrize.is_parametrized(layer, "weight"):
        return ""
    hooks = [type(hook).__name__ for hook in layer._forward_pre_hooks.values()]
    return f"its weight is computed before every call ({', '.join(hooks)}); remove that first"


def standardize_layer(layer: Any, eps: float, gain: bool) -> None:
    """Make one layer standardize its weight, in place."""
    transposed, linear = isinstance(layer, TRANSPOSED), isinstance(layer, nn.Linear)
    mixin = _Transposed if transposed else _Linear if linear else _Convolution
    weight = layer.weight
    layer.__class__ = mixed(mixin, type(layer))
    layer.weight_eps = eps
    ones = torch.ones(_width(layer), dtype=weight.dtype, device=weight.device)
    learned = nn.Parameter(ones, requires_grad=weight.requires_grad) if gain else None
    layer.register_parameter("gain", learned)


@torch.no_grad()
def bake(layer: Any) -> None:
    """Undo :func:`standardize_layer`, with the standardized weight as the weight."""
    unparametrize(layer)
    old = layer.weight
    weight = _standardize(layer, old.double()).to(old)
    layer.__class__ = parts(type(layer))[1]
    del layer.gain, layer.weight_eps
    # a new parameter, because the old one may be that of other layers too
    layer.weight = nn.Parameter(weight, requires_grad=old.requires_grad)


def _width(layer: Any) -> int:
    """Number of filters, C_out."""
    width: int = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return width


def _standardize(layer: Any, weight: Tensor) -> Tensor:
    """The formula above, by layer normalization: one sweep, each filter being a sample."""
    eps, gain = layer.weight_eps, layer.gain
    if not isinstance(layer, TRANSPOSED):
        # (C_out, C_in / groups, *kernel), maybe channels_last: then as (C_out, *kernel, ...)
        last = weight.dim() > 3 and not weight.is_contiguous()
        filters = weight.movedim(1, -1) if last else weight
        out = F.layer_norm(filters, filters.shape[1:], eps=eps)
        out = out.movedim(-1, 1) if last else out
        return out if gain is None else out * gain.view(-1, *[1] * (out.dim() - 1))
    # (C_in, C_out / groups, *kernel) -> (groups, C_out / groups, C_in / groups, positions)
    groups, inner = layer.groups, weight.shape[1]
    parted = weight.reshape(groups, -1, inner, math.prod(weight.shape[2:])).transpose(1, 2)
    out = F.layer_norm(parted, parted.shape[2:], eps=eps)
    if gain is not None:
        out = out * gain.view(groups, inner, 1, 1)
    return out.transpose(1, 2).reshape(weight.shape)

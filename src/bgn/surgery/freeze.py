"""Fix the statistics, weight and bias of normalizers, whatever ``.train()`` says."""

from __future__ import annotations

from typing import Any

from torch import nn

from bgn.surgery.kinds import is_frozen_batch_norm, some_normalizers
from bgn.surgery.mixin import Mixed, mixed


class Frozen(Mixed):
    """Mixin for a normalizer's class: the layer stays in eval mode."""

    prefix = "Frozen"

    def train(self, mode: bool = True) -> Any:
        self.__dict__["_mode_before"] = mode  # its mode when it is unfrozen
        return super().train(False)  # type: ignore[misc]


def freeze(model: nn.Module) -> nn.Module:
    """Fix running statistics, weight and bias of every normalizer of a model, in place.

    The layers stay in eval mode after ``.train()``, and state_dict keys stay. IN, LN, GN and PN
    have no running statistics; their weight and bias are fixed. A detector's FrozenBatchNorm is
    left as it is. Returns the model. :func:`unfreeze` undoes it.

    >>> model = freeze(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    >>> model.train()[1]
    FrozenBatchNorm2d(8, ...)
    >>> model[1].training, model[1].weight.requires_grad
    (False, False)
    """
    for layer in some_normalizers(model).values():
        freeze_layer(layer)
    return model


def unfreeze(model: nn.Module) -> nn.Module:
    """Undo :func:`freeze`: every normalizer trains again as before."""
    frozen = {
        name: layer for name, layer in some_normalizers(model).items() if isinstance(layer, Frozen)
    }
    for name, layer in frozen.items():
        if type(layer).__bases__[0] is not Frozen:
            raise ValueError(
                f"{name} was parametrized after it was frozen; remove the parametrization first"
            )
    for layer in frozen.values():
        layer.__class__ = type(layer).__bases__[1]
        for name, flag in layer.__dict__.pop("_requires_grad_before").items():
            layer.get_parameter(name).requires_grad_(flag)
        layer.train(layer.__dict__.pop("_mode_before"))
    return model


def freeze_layer(layer: nn.Module) -> None:
    """Fix one normalizer in place."""
    if isinstance(layer, Frozen) or is_frozen_batch_norm(layer):
        return
    own = dict(layer.named_parameters())
    layer.__dict__["_requires_grad_before"] = {
        name: parameter.requires_grad for name, parameter in own.items()
    }
    layer.__class__ = mixed(Frozen, type(layer))
    for parameter in own.values():
        parameter.requires_grad_(False)
        parameter.grad = None  # an optimizer changes every parameter that has a gradient
    layer.train(layer.training)

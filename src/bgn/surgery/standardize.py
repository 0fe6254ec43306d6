"""Weight standardization of the convolutions that a normalizer follows."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from bgn.surgery.domains import DomainNorm
from bgn.surgery.kinds import identify, is_trained, some_normalizers
from bgn.surgery.mixin import Mixed
from bgn.surgery.modules import listed, refuse_data_parallel, without_hooks
from bgn.surgery.pairs import CONVOLUTIONS, LINEAR, find, is_linear, same_width
from bgn.surgery.problems import Problem, report
from bgn.surgery.standardized import (
    Standardized,
    computed_before_calls,
    elements,
    standardize_layer,
)

EPS = 1e-6
Types = type | tuple[type, ...]


def standardize(
    model: nn.Module, *, eps: float = EPS, gain: bool = False, only: Types | None = None
) -> nn.Module:
    """Standardize the weight of every convolution that a normalizer follows, in place.

    Weight standardization (Qiao et al. 2019): with W[o], the n numbers that output channel o
    multiplies its inputs with,

        W'[o] = (W[o] - mean(W[o])) / sqrt(var(W[o]) + eps)

    takes the place of W[o] in every call. ``weight`` stays the parameter under its key, so
    checkpoints of the plain model load; :func:`fold` makes W' the weight. Returns the model.

    The variance is biased and ``eps`` is inside the root, as in timm's ``StdConv2d``; the authors'
    code divides by the unbiased standard deviation plus 1e-5. W' is not divided by sqrt(n), as it
    is in networks without normalizers: the normalizer undoes any scale, and as it is, outputs of
    variance n for inputs of variance 1 make the normalizer's own eps negligible. In float16 that
    is far from overflow: n = 4608, the largest in ResNet-50, makes the outputs 68 times as large
    as the inputs.

    Args:
        model: any module with normalizers. Convolutions whose output something else reads too, or
            that several calls share, stay as they are. Calling twice changes nothing.
        eps: added to the variance of a filter.
        gain: also learn a factor for each filter, a parameter ``gain`` of C_out ones. A normalizer
            with a weight needs none. Create the optimizer afterwards.
        only: types of layers; by default convolutions of 1, 2 and 3 dimensions, also transposed
            and depthwise ones. ``(nn.Conv2d, nn.Linear)`` includes linear layers.

    A filter of one number (a 1x1 convolution, depthwise or of one channel) has no deviation:
    skipped, with a warning. Refused, before anything is changed: a layer with a ``forward`` of its
    own, lazy or parametrized (weight_norm, spectral_norm) layers, and a weight that other layers
    use as it is.

    >>> model = standardize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
    >>> model[0]
    StandardizedConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), weight_eps=1e-06)
    >>> list(model.state_dict())[:2]
    ['0.weight', '0.bias']
    """
    return carry_out(plan(model, eps=eps, gain=gain, only=only), model)


@dataclass(frozen=True)
class Plan:
    """What :func:`standardize` will do, once nothing can fail any more."""

    layers: tuple[nn.Module, ...]
    eps: float
    gain: bool


def plan(
    model: nn.Module,
    norms: Iterable[nn.Module] | None = None,
    *,
    eps: float = EPS,
    gain: bool = False,
    only: Types | None = None,
) -> Plan:
    """Find the convolutions and refuse what cannot be standardized.

    Args:
        model: stays as it is.
        norms: the normalizers that count; by default all.
        eps: as in :func:`standardize`.
        gain: likewise.
        only: likewise.
    """
    _check_options(eps, gain, only)
    refuse_data_parallel(model, "parameters")
    known = some_normalizers(model, "standardize")
    traced, found = followed(model)
    wanted = set(known.values()) if norms is None else set(norms)
    left = [name for name, norm in known.items() if norm in wanted - found.keys()]
    names = {module: name for name, module in model.named_modules()}
    kinds = CONVOLUTIONS if only is None else only
    layers = dict.fromkeys(layer for norm, own in found.items() if norm in wanted for layer in own)
    layers = {layer: None for layer in layers if isinstance(layer, kinds)}
    if not layers:
        raise ValueError(
            f"model={type(model).__name__} has no {_words(only)} that a normalizer follows and"
            " nothing else reads; nothing to standardize"
        )
    bad = [Problem(names[m], why) for m in layers if (why := _refusal(m, eps, gain))]
    bad += _tied(model, layers)
    if bad:
        raise ValueError("nothing was standardized, because of\n" + report(bad))
    new = [layer for layer in layers if not isinstance(layer, Standardized)]
    single = [layer for layer in new if elements(layer) == 1]
    if single:
        _warn(
            "filters of a single number have no deviation, so left",
            [names[layer] for layer in single],
        )
    if left and not traced:
        _warn(
            "the model cannot be traced as a whole, and in its parts no convolution was found"
            " before some normalizers",
            left,
        )
    new = [layer for layer in new if layer not in single]
    trained = {
        names[norm]: None
        for norm, own in found.items()
        if any(layer in new for layer in own) and is_trained(norm)
    }
    if trained:
        _warn(
            "running statistics are those of the weights as they were; before eval mode, or"
            " training with renorm, bgn.recalibrate",
            list(trained),
        )
    return Plan(tuple(new), float(eps), gain)


def carry_out(planned: Plan, model: nn.Module) -> nn.Module:
    """Standardize the layers of a plan; returns the model."""
    for layer in planned.layers:
        standardize_layer(layer, planned.eps, planned.gain)
    return model


def followed(model: nn.Module) -> tuple[bool, dict[nn.Module, list[nn.Module]]]:
    """Whether the model can be traced, and the layers before each of its normalizers."""
    with without_hooks(model):
        traced, pairs = find(
            model,
            lambda module: isinstance(module, LINEAR),
            lambda module: isinstance(module, (*LINEAR, DomainNorm)),
            shared=True,
        )
    found: dict[nn.Module, list[nn.Module]] = {}
    for after, layer in pairs:
        # all copies of a normalizer per domain follow the layer
        norms = list(after.children()) if isinstance(after, DomainNorm) else [after]
        for norm in norms:
            if identify(norm) is not None and (is_lazy_layer(norm) or same_width(layer, norm)):
                found.setdefault(norm, []).append(layer)
    return traced, found


def is_lazy_layer(layer: nn.Module) -> bool:
    """Whether a layer waits for its first batch."""
    tensors = (*layer.parameters(recurse=False), *layer.buffers(recurse=False))
    return any(is_lazy(tensor) for tensor in tensors)


def _refusal(layer: Any, eps: float, gain: bool) -> str | None:
    """Why a layer cannot be standardized as asked for, or None."""
    if isinstance(layer, Standardized):
        if (layer.weight_eps, layer.gain is not None) == (eps, gain):
            return None
        return (
            f"it is standardized with eps={layer.weight_eps}, gain={layer.gain is not None}"
            " already; expected the same"
        )
    if parametrize.is_parametrized(layer):
        steps = [type(step).__name__ for chain in layer.parametrizations.values() for step in chain]
        return (
            f"it is parametrized by {', '.join(steps)}; torch.nn.utils.parametrize."
            "remove_parametrizations first"
        )
    cls = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if is_lazy_layer(layer):
        return "it is lazy; run a batch through the model first"
    if computed := computed_before_calls(layer):
        return computed
    own = type(layer)._conv_forward if isinstance(layer, CONVOLUTIONS[:3]) else None
    plain = own in (None, *(kind._conv_forward for kind in CONVOLUTIONS[:3]))
    if not is_linear(layer) or "forward" in layer.__dict__ or not plain:
        return f"its class {cls} has a forward of its own, which would be lost"
    if isinstance(layer, Mixed) or hasattr(layer, "gain") or hasattr(layer, "weight_eps"):
        return f"its class {cls} has an attribute gain or weight_eps of its own"
    return None


def _tied(model: nn.Module, layers: Iterable[nn.Module]) -> list[Problem]:
    """Layers whose weight another one uses too, which would go on with it as it is."""
    ours = {id(layer._parameters["weight"]): layer for layer in layers if _weight(layer)}
    inside = set(layers)
    names = {module: name for name, module in model.named_modules()}
    return [
        Problem(names[ours[id(parameter)]], f"its weight is also {name}.{key}".replace(" .", " "))
        for module, name in names.items()
        for key, parameter in module._parameters.items()
        if parameter is not None and id(parameter) in ours and module not in inside
    ]


def _weight(layer: nn.Module) -> bool:
    return layer._parameters.get("weight") is not None


def _check_options(eps: Any, gain: Any, only: Any) -> None:
    number = isinstance(eps, (int, float)) and not isinstance(eps, bool)
    if not number or not 0 < eps < math.inf:
        raise ValueError(f"eps={eps!r} is not accepted; expected a finite float above 0")
    if not isinstance(gain, bool):
        raise TypeError(f"gain={gain!r} is a {type(gain).__name__}; expected a bool")
    types = only if isinstance(only, tuple) else (only,)
    for kind in types if only is not None else ():
        if not (isinstance(kind, type) and issubclass(kind, LINEAR)):
            accepted = ", ".join(f"nn.{cls.__name__}" for cls in LINEAR)
            raise TypeError(f"only={only!r} has {kind!r}; expected {accepted}, or their subclasses")


def _words(only: Types | None) -> str:
    if only is None:
        return "convolution"
    types = only if isinstance(only, tuple) else (only,)
    return " or ".join(kind.__name__ for kind in types)


def _warn(text: str, names: list[str]) -> None:
    warnings.warn(f"standardize: {text}: {listed(names)}", stacklevel=4)

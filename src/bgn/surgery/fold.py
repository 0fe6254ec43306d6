"""Fold trained normalizers into the convolutions before them.

In eval mode a normalizer with running statistics computes ``y[c] = a[c] * x[c] + d[c]``, where

    a = weight / sqrt(var + eps)
    d = bias - a * mean

A convolution with kernel K and bias k, followed by this, is a convolution with kernel a * K and
bias a * k + d.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from bgn.surgery.kinds import Kind, identify, normalizers, some_normalizers
from bgn.surgery.modules import inherit, listed, replace, unparametrize, without_hooks
from bgn.surgery.pairs import TRANSPOSED, Pair, find, same_width
from bgn.surgery.problems import Problem, report
from bgn.surgery.standardized import Standardized, bake, computed_before_calls
from bgn.surgery.support import SumActivated, is_activated, is_plain


def fold(model: nn.Module, example: Any = None) -> nn.Module:
    """A copy of an eval-mode model with normalizers folded into the layers before them.

    Normalizers are folded into convolutions and linear layers and become ``nn.Identity``. Classes
    and state_dict keys of the other modules stay. The result is exact if every group consists of
    whole channels. If a group is part of a channel, the shift depends on the position, and the
    model is refused. A normalizer without running statistics, or without a convolution that feeds
    only it, stays as it is, with a warning. Standardized weights (:func:`standardize`) become plain
    ones everywhere.

    The convolution before a normalizer is found by ``torch.fx``, which traces the model with
    optional arguments at their defaults. A model that cannot be traced as a whole is folded part by
    part, with a warning, because the trace of a part does not show what else uses its tensors.
    ``example``, an input for the model or a tuple of inputs, is a check: both models are run on it,
    and a difference raises an error.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).eval()
    >>> fold(model)
    Sequential(
      (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
      (1): Identity()
      (2): ReLU()
    )
    """
    found = some_normalizers(model, "fold")
    training = [name for name, layer in found.items() if layer.training and _has_statistics(layer)]
    if training:
        raise ValueError(
            f"model is in training mode ({listed(training)}); call model.eval() before folding"
        )
    bad = [p for name, layer in found.items() if (p := _splits_channels(name, layer))]
    bad += [p for name, layer in model.named_modules() if (p := _cannot_be_baked(name, layer))]
    if bad:
        raise ValueError("nothing was folded, because of\n" + report(bad))

    original, model = model, copy.deepcopy(model)
    found = normalizers(model)
    for module in model.modules():
        if isinstance(module, Standardized):
            bake(module)
    with without_hooks(model):
        traced, candidates = find(model)
    pairs = _pairs(model, candidates)
    replacements: dict[nn.Module, nn.Module] = {}
    for norm, linear in pairs.items():
        _fold_into(linear, norm)
        rest: nn.Module = _Rows() if isinstance(linear, nn.Linear) else nn.Identity()
        if is_activated(norm):
            rest = SumActivated(norm.drop, norm.act)  # type: ignore[arg-type]
        inherit(rest, norm)
        replacements[norm] = rest
    left = [name for name, layer in found.items() if layer not in pairs]
    if left:
        text = (
            "not behind a convolution of their own, without running statistics, or with a forward"
            " of their own, so left"
        )
        warnings.warn(f"fold: {text}: {listed(left)}", stacklevel=2)
    if not traced and example is None:
        warnings.warn(
            "fold: the model cannot be traced as a whole; pass example= to check the result",
            stacklevel=2,
        )
    model = replace(model, replacements)
    if example is not None:
        _compare(original, model, example)
    return model


class _Rows(nn.Identity):
    """Replaces a normalizer behind a linear layer: refuses (N, L, C), where it normalized L."""

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(input, fx.Proxy) and input.dim() != 2:
            raise ValueError(
                f"input has shape {tuple(input.shape)}; this normalizer was folded for (N, C)"
            )
        return input


_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.1}


@torch.no_grad()
def _compare(original: nn.Module, folded: nn.Module, example: Any) -> None:
    arguments = example if isinstance(example, tuple) else (example,)
    expected, actual = (tree_leaves(model(*arguments)) for model in (original, folded))
    for a, b in zip(expected, actual, strict=True):
        if not isinstance(a, Tensor) or a.dtype not in _TOLERANCES or not a.numel():
            continue
        finite = a.isfinite() & b.isfinite()
        error = (
            (b - a)[finite].double().norm() / a[finite].double().norm().clamp(min=1e-12)
        ).item()
        if not torch.equal(a.isfinite(), b.isfinite()) or error > _TOLERANCES[a.dtype]:
            raise ValueError(
                f"the folded model's output for the example differs by {error:.1e} (relative);"
                " nothing was folded"
            )


def _has_statistics(layer: Any) -> bool:
    kind = identify(layer)
    return kind is not None and kind.batch_wide and getattr(layer, "running_mean", None) is not None


def _splits_channels(name: str, layer: nn.Module) -> Problem | None:
    kind = identify(layer)
    if kind is None or not _has_statistics(layer) or _whole_channels(kind):
        return None
    C, G = kind.num_features, kind.num_groups
    return Problem(
        name,
        f"num_groups={G} cuts channels, so the shift depends on the position; train with a"
        " num_groups that divides ",
        f"{C} channels",
        ", or bgn.regroup(model, 'channels', exact=False) and bgn.recalibrate it",
    )


def _whole_channels(kind: Kind) -> bool:
    part = kind.partition(kind.batch_blocks, 1)
    return part is not None and part.whole_channels


def _pairs(model: nn.Module, candidates: list[Pair]) -> dict[nn.Module, nn.Module]:
    """Normalizer -> the convolution that feeds only this normalizer."""
    occurrences: dict[nn.Module, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        occurrences[module] = occurrences.get(module, 0) + 1
    pairs = {
        norm: linear
        for norm, linear in candidates
        if _has_statistics(norm)
        and _fits(linear, norm)
        and occurrences[norm] == occurrences[linear] == 1
    }
    taken = list(pairs.values())
    return {norm: linear for norm, linear in pairs.items() if taken.count(linear) == 1}


def _cannot_be_baked(name: str, layer: nn.Module) -> Problem | None:
    """Why a layer's standardized weight cannot become its weight."""
    computed = computed_before_calls(layer) if isinstance(layer, Standardized) else ""
    return Problem(name, computed) if computed else None


def _fits(linear: Any, norm: nn.Module) -> bool:
    if not same_width(linear, norm) or not is_plain(norm):
        return False
    hooked = (
        linear._forward_hooks
        or norm._forward_pre_hooks
        or "weight" not in {**linear._parameters, **_tensors(linear)}
    )
    return not hooked and "forward" not in linear.__dict__


def _tensors(linear: Any) -> dict[str, Any]:
    return dict(linear.parametrizations.items()) if parametrize.is_parametrized(linear) else {}


@torch.no_grad()
def _fold_into(linear: Any, norm: Any) -> None:
    scale, shift = _affine(norm)
    unparametrize(linear)
    weight = linear.weight.double()
    if isinstance(linear, TRANSPOSED):
        # (C_in, C_out / groups, ...): the output channels of group i are at [i*C_in/groups:, :]
        grouped = weight.reshape(linear.groups, -1, *weight.shape[1:])
        new = (grouped * scale.reshape(linear.groups, 1, -1, *[1] * (weight.dim() - 2))).reshape(
            weight.shape
        )
    else:
        new = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
    bias = shift if linear.bias is None else linear.bias.double() * scale + shift
    like = linear.weight
    linear.weight = nn.Parameter(new.to(like), requires_grad=like.requires_grad)
    linear.bias = nn.Parameter(bias.to(like), requires_grad=like.requires_grad)


def _affine(norm: Any) -> tuple[Tensor, Tensor]:
    """The a and d of every channel, in float64."""
    kind = identify(norm)
    assert kind is not None
    part = kind.partition(kind.batch_blocks, 1)
    assert part is not None
    group = part.cells(norm.running_mean.device).group  # whole channels: a cell is a channel
    scale = (norm.running_var.double()[group] + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    mean = norm.running_mean.double()
    shift = -scale * (mean if kind.channel_means else mean[group])
    return scale, shift if norm.bias is None else shift + norm.bias.double()

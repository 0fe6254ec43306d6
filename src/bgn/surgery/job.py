"""One layer of a conversion: planned first, carried out when nothing can fail any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bgn import layers
from bgn.surgery.freeze import Frozen, freeze_layer
from bgn.surgery.kinds import Kind
from bgn.surgery.modules import inherit
from bgn.surgery.support import activate, is_activated
from bgn.surgery.transfer import Transfer, transfer


@dataclass
class Job:
    """One layer to be replaced. ``carried`` is None where there are no running statistics to carry over."""

    name: str
    old: Any
    kind: Kind
    target: Kind
    new: Any
    carried: Transfer | None


def plan(name: str, layer: Any, kind: Kind, target: Kind, options: dict[str, Any]) -> Job:
    running_mean: Tensor | None = getattr(layer, "running_mean", None) if kind.batch_wide else None
    # a layer without weight and bias gets them only where asked: see _inexact
    keep = {"eps": layer.eps, "affine": layer.weight is not None}
    for tensor in (running_mean, layer.weight):
        if tensor is not None:
            keep |= {"device": tensor.device, "dtype": tensor.dtype}
    if target.batch_wide and kind.batch_wide:
        keep["momentum"] = getattr(layer, "momentum", 0.1)
        keep["track_running_stats"] = running_mean is not None
    if kind.name == target.name == "gbgn":
        keep["batch_blocks"] = kind.batch_blocks
    options = {**keep, **options}
    carried = None
    if running_mean is not None and target.batch_wide and options["track_running_stats"]:
        carried = transfer(kind, target, running_mean, layer.running_var, layer.eps, options["eps"])
    return Job(name, layer, kind, target, _make(target, options), carried)


def carry_out(job: Job) -> nn.Module:
    old, new = job.old, job.new
    chains = _parametrizations(old)
    with torch.no_grad():
        _carry_affine(job, chains)
        if job.carried is not None:
            new.running_mean = job.carried.mean.to(old.running_mean)
            new.running_var = job.carried.var.to(old.running_var)
            if getattr(old, "num_batches_tracked", None) is not None:
                new.num_batches_tracked = old.num_batches_tracked
    if is_activated(old):
        activate(new, old)
    inherit(new, old)
    _parametrize(new, old, chains)
    if isinstance(old, Frozen):
        new.__dict__.pop("_requires_grad_before", None)
        freeze_layer(new)
        new.__dict__["_requires_grad_before"] |= old.__dict__["_requires_grad_before"]
        new.__dict__["_mode_before"] = old.__dict__["_mode_before"]
    return new  # type: ignore[no-any-return]


def new_parameters(job: Job) -> list[tuple[str, nn.Parameter]]:
    """Parameters that did not exist before."""
    before = {id(parameter) for parameter in job.old.parameters()}
    prefix = f"{job.name}." if job.name else ""
    return [(prefix + name, p) for name, p in job.new.named_parameters() if id(p) not in before]


def _new_affine(job: Job) -> tuple[Any, Any]:
    """Weight and bias of the new layer in float64, None where there is none."""
    old = job.old
    if old.weight is None:
        return (None, None) if job.carried is None else (job.carried.scale, job.carried.shift)
    weight = old.weight.detach().double()
    bias = None if old.bias is None else old.bias.detach().double()
    if job.carried is None:
        return weight, bias
    scale, shift = job.carried.scale.to(weight.device), job.carried.shift.to(weight.device)
    return weight * scale, weight * shift if bias is None else bias + weight * shift


def _carry_affine(job: Job, chains: dict[str, list[nn.Module]]) -> None:
    for name, value in zip(("weight", "bias"), _new_affine(job), strict=True):
        if value is None or job.new._parameters[name] is None:
            continue
        parameter: Tensor | None = job.old._parameters.get(name)
        if parameter is not None and name not in chains:
            job.new._parameters[name] = (
                parameter  # the same object: whoever holds it, an optimizer above all, keeps it
            )
        job.new._parameters[name].copy_(value)


def no_inverse(job: Job) -> str | None:
    """Why a parametrization cannot take the new values, or None."""
    values = dict(zip(("weight", "bias"), _new_affine(job), strict=True))
    for name, chain in _parametrizations(job.old).items():
        value = values[name]
        try:
            original: Any = value.to(getattr(job.old, name).dtype)
            for module in reversed(chain):
                inverse: Any = module
                original = inverse.right_inverse(original)
            back: Any = original
            for step in chain:
                back = step(*back) if isinstance(back, tuple) else step(back)
        except Exception as error:
            return f"the parametrization of its {name} cannot take the new values: {error}"
        if not torch.allclose(back.double(), value, rtol=1e-4, atol=1e-6):
            return f"the parametrization of its {name} has a right_inverse that does not give the new values back"
    return None


def _parametrizations(old: nn.Module) -> dict[str, list[nn.Module]]:
    if not parametrize.is_parametrized(old):
        return {}
    chains: Any = old.parametrizations
    return {name: list(chains[name]) for name in chains}


def _parametrize(new: Any, old: Any, chains: dict[str, list[nn.Module]]) -> None:
    for tensor, chain in chains.items():
        for step in chain:
            parametrize.register_parametrization(new, tensor, step, unsafe=True)
        originals = new.parametrizations[tensor]._parameters
        for name, parameter in old.parametrizations[tensor]._parameters.items():
            parameter.data.copy_(originals[name])
            originals[name] = parameter  # again the same object


def _make(kind: Kind, options: dict[str, Any]) -> nn.Module:
    C, G = kind.num_features, kind.num_groups
    batch_norms = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
    batch_group_norms = {
        1: layers.BatchGroupNorm1d,
        2: layers.BatchGroupNorm2d,
        3: layers.BatchGroupNorm3d,
    }
    spatial = kind.spatial or 2
    if kind.name == "bn":
        return batch_norms[spatial](C, **options)
    if kind.name == "bgn":
        return batch_group_norms[spatial](C, G, **options)
    if kind.name == "gbgn":
        return layers.GeneralBatchGroupNorm2d(C, G, **options)
    if kind.name == "pn":
        return layers.PositionalNorm2d(C, **options)
    return layers.GroupNorm(G, C, **options)

"""One layer of a conversion: planned first, carried out when nothing can fail any more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bgn.layers import CHANNEL
from bgn.renorm import MOMENTUM, UNBOUNDED, wanted
from bgn.surgery.freeze import Frozen, freeze_layer
from bgn.surgery.kinds import Kind, is_trained
from bgn.surgery.modules import inherit
from bgn.surgery.support import activate, is_activated
from bgn.surgery.transfer import Transfer, transfer

KEEP = object()  # no renormalization was asked for, nor none


@dataclass
class Job:
    """One layer to replace. ``carried`` is None if it has no running statistics to carry over."""

    name: str
    old: Any
    kind: Kind
    target: Kind
    new: Any
    carried: Transfer | None

    @property
    def adds_bias(self) -> bool:
        """Whether a layer with a weight and without a bias gets a bias."""
        had = self.old.weight is not None and self.old.bias is None
        return had and self.new.bias is not None


def plan(name: str, layer: Any, kind: Kind, target: Kind, options: dict[str, Any]) -> Job:
    """Make the new layer and compute what to carry over; the old layer stays as it is."""
    running_mean: Tensor | None = getattr(layer, "running_mean", None) if kind.batch_wide else None
    # a layer without weight and bias gets them only where asked: see problems.inexact
    keep = {"eps": layer.eps, "affine": layer.weight is not None}
    for tensor in (running_mean, layer.weight):
        if tensor is not None:
            keep |= {"device": tensor.device, "dtype": tensor.dtype}
    if target.batch_wide and kind.batch_wide:
        keep["momentum"] = _momentum(layer, target, options)
        keep["track_running_stats"] = running_mean is not None
    if kind.batch_blocks > 1 and "batch_blocks" in target.row.extras:
        keep["batch_blocks"] = kind.batch_blocks
    if target.channel_means:
        keep["center"] = CHANNEL
    options = {**keep, **options}
    carried = None
    if running_mean is not None and target.batch_wide and options["track_running_stats"]:
        carried = transfer(kind, target, running_mean, layer.running_var, layer.eps, options["eps"])
    C, G, spatial = target.num_features, target.num_groups, target.spatial or 2
    renorm = options.pop("renorm", KEEP)
    new = target.row.make(spatial, C, G, **options)
    if "renorm" in target.row.extras:
        _renormalize(new, layer, renorm, name or "the model itself")
    if layer.weight is not None and layer.bias is None and not _shifts(layer, carried):
        new.register_parameter("bias", None)
    return Job(name, layer, kind, target, new, carried)


def _momentum(layer: Any, target: Kind, options: dict[str, Any]) -> float | None:
    """The layer's, but at most Ioffe's where trained statistics become a reference."""
    own: float | None = getattr(layer, "momentum", 0.1)
    begins = options.get("renorm") and getattr(layer, "renorm", None) is None
    if not begins or "renorm" not in target.row.extras or not is_trained(layer):
        return own
    return None if own is None else min(own, MOMENTUM)


def _renormalize(new: Any, old: Any, renorm: Any, name: str) -> None:
    """Renormalize as asked for, or as the old layer does.

    Statistics that were trained are a good reference: no warmup is needed, and, for True, no
    bounds, so that training begins with what eval mode computes. A layer that renormalizes keeps
    its settings for True, and the steps of its warmup for settings like its own.
    """
    own, own_steps = getattr(old, "renorm", None), getattr(old, "renorm_steps", 0)
    steps, asked = 0, renorm is not KEEP and renorm
    if renorm is KEEP or (own is not None and (renorm is True or renorm == own)):
        renorm, steps = own, own_steps
    elif renorm is not False and renorm is not None and is_trained(old):
        renorm = UNBOUNDED if renorm is True else renorm
        steps = renorm.warmup
    renorm = wanted(renorm)
    if asked and renorm is not None and new.running_mean is None:
        raise ValueError(f"renorm={asked} needs running statistics, and {name} has none: {old}")
    if renorm is not None and new.running_mean is not None:
        new.set_renorm(renorm, int(steps))


def _shifts(layer: Any, carried: Transfer | None) -> bool:
    """Whether the output keeps its value only with a bias."""
    return carried is not None and bool((layer.weight.detach().cpu() * carried.shift).any())


def carry_out(job: Job) -> nn.Module:
    """Give the new layer the values, hooks and attributes of the old one; returns it."""
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
    inherit(new, old, except_for=_constructor_attributes(job.kind))
    _parametrize(new, old, chains)
    if isinstance(old, Frozen):
        new.__dict__.pop("_requires_grad_before", None)
        freeze_layer(new)
        new.__dict__["_requires_grad_before"] |= old.__dict__["_requires_grad_before"]
        new.__dict__["_mode_before"] = old.__dict__["_mode_before"]
    return new  # type: ignore[no-any-return]


def _constructor_attributes(kind: Kind) -> dict[str, Any]:
    """Attributes that all layers of a kind have, such as num_groups; other kinds lack them."""
    spatial, C, G = kind.spatial or 2, kind.num_features, kind.num_groups
    return vars(kind.row.make(spatial, C, G, device="meta"))


def new_parameters(job: Job) -> list[tuple[str, nn.Parameter]]:
    """Parameters that did not exist before, by name."""
    before = {id(parameter) for parameter in job.old.parameters()}
    prefix = f"{job.name}." if job.name else ""
    return [(prefix + name, p) for name, p in job.new.named_parameters() if id(p) not in before]


def _new_affine(job: Job) -> tuple[Any, Any]:
    """Weight and bias of the new layer in float64; None if the layer has none."""
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
            # the same object: whoever holds it, an optimizer above all, keeps it
            job.new._parameters[name] = parameter
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
            return (
                f"the parametrization of its {name} has a right_inverse that does not give the new"
                " values back"
            )
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

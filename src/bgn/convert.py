"""Swap the normalisers of a model, keeping weights, statistics and everything attached to them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from bgn import layers
from bgn._optimizer import add_parameters, carry_state
from bgn._surgery import inherit, replace
from bgn.factory import PAPER_CHANNEL_GROUPS, check_name
from bgn.freeze import Frozen, freeze_layer
from bgn.groups import Groups, nearest_groups, resolve
from bgn.kinds import Kind, identify, is_frozen_batch_norm, normalisers
from bgn.support import activate, is_activated, model_spatial, refusal
from bgn.transfer import Transfer, transfer

LARGE = 100.0  # growth of rounding errors that is worth a word


@dataclass
class _Job:
    """One layer to be replaced: planned first, carried out when nothing can fail any more."""

    name: str
    old: Any
    kind: Kind
    target: Kind
    new: Any
    carried: Transfer | None


def convert(
    model: nn.Module,
    norm: str = "bgn",
    *,
    batch_size: int | None = None,
    num_groups: Groups = None,
    optimizer: torch.optim.Optimizer | None = None,
    exact: bool = True,
    only: type | tuple[type, ...] | None = None,
    **options: Any,
) -> nn.Module:
    """Replace the normalisers of a model by another kind, in place; returns the model (or its replacement).

    A batch normalisation becomes BGN with **the same output in eval mode**, up to rounding, where ``num_groups`` divides the
    layer's channels or is a multiple of them: running statistics are pooled, and weight and bias take up the difference.
    Other numbers of groups are refused, with the nearest good one; ``exact=False`` converts them all the same, with a
    warning. To and from GN, IN, LN and PN only weight and bias are carried over, with a warning.

    Args:
        model: any module. Converting twice changes nothing; a model without normalisers is refused.
        norm: one of bn, in, ln, gn, pn, gbgn, bgn.
        batch_size: the images that one process normalises together, for the paper's number of groups.
        num_groups: an int, ``"paper"``, or a function of the layer that returns an int, or None to leave the layer alone.
        optimizer: its state is carried over to the changed parameters. Parameters stay the same objects, so an
            optimizer goes on in any case; with it, momentum and second moments fit the new scale.
        exact: refuse what would change the output in eval mode (between BN, GBGN and BGN).
        only: convert only layers of these types.
        options: for the new layers, such as eps or momentum; by default as in the layer replaced.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> convert(model, batch_size=2)[1]
    BatchGroupNorm2d(8, num_groups=1, ...)
    """
    check_name("norm", norm)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise TypeError(
            "model is wrapped in DistributedDataParallel, which keeps lists of its buffers; convert model.module first"
        )
    groups_of = _groups_of(norm, num_groups, batch_size)
    found = normalisers(model)
    if only is not None:
        found = {name: layer for name, layer in found.items() if isinstance(layer, only)}
    if not found:
        what = "normaliser that is known here" if only is None else f"normaliser of type {only}"
        raise ValueError(f"model={type(model).__name__} has no {what}; nothing to convert")

    spatial = model_spatial(model)
    jobs: list[_Job] = []
    problems: list[str] = []
    for name, layer in found.items():
        kind = identify(layer)
        assert kind is not None
        reason = refusal(model, name, layer)
        groups = groups_of(layer)
        if groups is None:
            continue
        target = Kind(norm, kind.num_features, _own_groups(norm, groups, kind), kind.spatial or spatial)
        if reason is None and target.spatial != 2 and norm in ("gbgn", "pn"):
            reason = f"{norm!r} exists for (N, C, H, W) only"
        if reason is None and not _same(layer, kind, target, options):
            job = _plan(name, layer, kind, target, options)
            reason = _inexact(job) if exact else None
            jobs.append(job)
        if reason is not None:
            problems.append(f"  {name or 'the model itself'} ({type(layer).__name__}): {reason}")
    problems += _tied(jobs)
    if problems:
        raise ValueError("nothing was converted, because of\n" + "\n".join(problems))

    _warn(jobs)
    replacements = {job.old: _carry_out(job) for job in jobs}
    if optimizer is not None:
        carry_state(optimizer, [(job.new.weight, job.new.bias, job.carried) for job in jobs if job.carried is not None])
        add_parameters(
            optimizer, [p for job in jobs if is_frozen_batch_norm(job.old) for p in replacements[job.old].parameters()]
        )
    return replace(model, replacements)


def regroup(model: nn.Module, num_groups: Groups, *, batch_size: int | None = None, **options: Any) -> nn.Module:
    """Give the trained BGN layers of a model another number of groups, in place; the output in eval mode stays.

    Exact between numbers that divide the channels, and from any number to a multiple of it. With ``num_groups`` equal to the
    channels the layer is a batch normalisation; ``convert(model, "bn")`` then makes it an ``nn.BatchNorm2d``.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), layers.BatchGroupNorm2d(8, 1))
    >>> regroup(model, 4)[1].running_mean.shape
    torch.Size([4])
    """
    only = (layers.BatchGroupNorm1d, layers.BatchGroupNorm2d, layers.BatchGroupNorm3d)
    return convert(model, "bgn", num_groups=num_groups, batch_size=batch_size, only=only, **options)


def _groups_of(norm: str, num_groups: Groups, batch_size: int | None) -> Any:
    if norm in ("bn", "in", "ln", "pn"):
        if num_groups is not None and not callable(num_groups):
            raise ValueError(f"num_groups={num_groups!r} has no meaning for {norm!r}; expected None")
        return resolve(num_groups if num_groups is not None else 1, batch_size)
    if norm in ("gn", "gbgn") and num_groups is None:
        num_groups = PAPER_CHANNEL_GROUPS
    return resolve(num_groups, batch_size)


def _own_groups(norm: str, groups: int, kind: Kind) -> int:
    return {"bn": kind.num_features, "in": kind.num_features, "ln": 1, "pn": 1}.get(norm, groups)


def _same(layer: nn.Module, kind: Kind, target: Kind, options: dict[str, Any]) -> bool:
    """Whether the layer already is what it should become."""
    alike = (kind.name, kind.num_groups, kind.spatial or target.spatial) == (target.name, target.num_groups, target.spatial)
    ours = not is_frozen_batch_norm(layer) and not isinstance(layer, nn.SyncBatchNorm)
    return alike and ours and all(getattr(layer, key, None) == value for key, value in options.items())


def _plan(name: str, layer: Any, kind: Kind, target: Kind, options: dict[str, Any]) -> _Job:
    running_mean: Tensor | None = getattr(layer, "running_mean", None) if kind.batch_wide else None
    # a layer without weight and bias gets them only where asked: see _inexact
    keep = {"eps": layer.eps, "affine": layer.weight is not None}
    for tensor in (running_mean, layer.weight):
        if tensor is not None:
            keep |= {"device": tensor.device, "dtype": tensor.dtype}
    if target.batch_wide and kind.batch_wide:
        keep["momentum"] = getattr(layer, "momentum", 0.1)
        keep["track_running_stats"] = running_mean is not None
    options = {**keep, **options}
    carried = None
    if running_mean is not None and target.batch_wide and options["track_running_stats"]:
        carried = transfer(kind, target, running_mean, layer.running_var, layer.eps, options["eps"])
    return _Job(name, layer, kind, target, _make(target, options), carried)


def _inexact(job: _Job) -> str | None:
    """Why the output in eval mode would change, or None."""
    if job.carried is None:
        return None  # per-sample normalisers, or no running statistics: a warning, see _warn
    if not job.carried.exact:
        C, G = job.kind.num_features, job.target.num_groups
        if job.kind.num_groups != C:
            return f"its {job.kind.num_groups} groups cannot become {G} with the same output (exact=False converts all the same)"
        return (
            f"num_groups={G} neither divides its {C} channels nor is a multiple of them; the nearest that does is"
            f" {nearest_groups(C, G)} (bgn.nearest_groups finds it for every layer, exact=False converts all the same)"
        )
    changed = not (torch.allclose(job.carried.scale, torch.ones(1).double()) and not job.carried.shift.any())
    if changed and job.new.weight is None:
        return "it has no weight and bias to take up the difference of the statistics; affine=True adds them"
    return None


def _tied(jobs: list[_Job]) -> list[str]:
    """Two layers that share a parameter but not their statistics cannot both keep their output."""
    owners: dict[int, str] = {}
    problems = []
    for job in jobs:
        if job.carried is None or isinstance(job.old, Frozen):
            continue
        for parameter in job.old.parameters(recurse=False):
            other = owners.setdefault(id(parameter), job.name)
            if other != job.name:
                problems.append(f"  {job.name}: it shares a parameter with {other}, but not its statistics")
    return problems


def _warn(jobs: list[_Job]) -> None:
    def say(names: list[str], text: str) -> None:
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            warnings.warn(f"convert: {text}: {shown}", stacklevel=4)

    say(
        [j.name for j in jobs if j.carried is None],
        "only weight and bias are carried over, so the output in eval mode changes",
    )
    say([j.name for j in jobs if j.carried and not j.carried.exact], "the output in eval mode changes (exact=False)")
    say(
        [j.name for j in jobs if isinstance(j.old, nn.SyncBatchNorm)],
        "statistics are no longer synchronised between processes",
    )
    say(
        [f"{j.name} (x{j.carried.amplification:.0f})" for j in jobs if j.carried and j.carried.amplification > LARGE],
        "channels with next to no variance beside others in their group get large weights, which amplify rounding errors"
        " and, in training, noise",
    )


def _carry_out(job: _Job) -> nn.Module:
    old, new = job.old, job.new
    chains = _parametrizations(old)
    with torch.no_grad():
        if old.weight is not None and new.weight is not None:
            _carry_affine(job, old, new, chains)
        elif new.weight is not None and job.carried is not None:
            new.weight.copy_(job.carried.scale)
            new.bias.copy_(job.carried.shift)
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
        new.__dict__["_requires_grad_before"] = old.__dict__["_requires_grad_before"]
    return new  # type: ignore[no-any-return]


def _carry_affine(job: _Job, old: Any, new: Any, chains: dict[str, list[nn.Module]]) -> None:
    weight, bias = old.weight.double(), old.bias.double() if old.bias is not None else None
    if job.carried is not None:
        shift = job.carried.shift.to(weight.device)
        bias = weight * shift if bias is None else bias + weight * shift
        weight = weight * job.carried.scale.to(weight.device)
    for name, value in (("weight", weight), ("bias", bias)):
        if value is None:
            continue
        parameter: Tensor | None = old._parameters.get(name)
        if parameter is not None and name not in chains:
            new._parameters[name] = parameter  # the same object: whoever holds it, an optimizer above all, keeps it
        elif name not in chains:
            new._parameters[name].requires_grad_(True)
        new._parameters[name].copy_(value)


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
    batch_group_norms = {1: layers.BatchGroupNorm1d, 2: layers.BatchGroupNorm2d, 3: layers.BatchGroupNorm3d}
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

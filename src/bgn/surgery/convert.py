"""Swap the normalisers of a model, keeping weights, statistics and everything attached to them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import nn

from bgn import checks, layers
from bgn.factory import NAMES, PAPER_CHANNEL_GROUPS
from bgn.groups import AUTO, Groups, auto_groups, nearest_groups, resolve, warn_of_one_image
from bgn.surgery.describe import visit
from bgn.surgery.job import Job, carry_out, new_parameters, no_inverse, plan
from bgn.surgery.kinds import Kind, identify, is_frozen_batch_norm, normalisers
from bgn.surgery.modules import listed, replace
from bgn.surgery.optimizer import add_parameters, carry_state, unknown_state
from bgn.surgery.support import model_spatial, refusal

OPTIONS = ("eps", "momentum", "affine", "track_running_stats", "batch_blocks")
LARGE = 100.0  # growth of rounding errors that is worth a word


def convert(
    model: nn.Module,
    norm: str = "bgn",
    *,
    batch_size: int | None = None,
    num_groups: Groups = None,
    sample: Any = None,
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
        num_groups: an int, ``"paper"``, ``"auto"``, or a function of the layer that returns an int, or None to leave the
            layer alone. The paper's number goes to the nearest that keeps the output, see :func:`nearest_groups`;
            ``"auto"`` is :func:`auto_groups` of what reaches the layer, and needs ``batch_size`` and ``sample``.
        sample: for ``"auto"``: (C, H, W) of an image, or one image's input for the model, which is run once in eval mode.
        optimizer: its state is carried over to the changed parameters. Parameters stay the same objects, so an
            optimizer goes on in any case; with it, momentum and second moments fit the new scale.
        exact: refuse what would change the output in eval mode (between BN, GBGN and BGN).
        only: convert only layers of these types.
        options: for the new layers, such as eps or momentum; by default as in the layer replaced.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> convert(model, batch_size=2)[1]
    BatchGroupNorm2d(8, num_groups=1, ...)
    """
    checks.one_of("norm", norm, NAMES)
    unknown = options.keys() - OPTIONS
    if unknown:
        raise TypeError(
            f"convert got the options {', '.join(sorted(unknown))}; accepted for the layers: {', '.join(OPTIONS)}"
        )
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise TypeError(
            "model is wrapped in DistributedDataParallel, which keeps lists of its buffers; convert model.module first"
        )
    if num_groups == AUTO and norm == "bgn":
        num_groups = _auto(model, batch_size, sample)
    elif sample is not None:
        raise ValueError(
            f"sample is for norm='bgn' with num_groups='auto'; norm={norm!r}, num_groups={num_groups!r}"
        )
    groups_of = _groups_of(norm, num_groups, batch_size)
    found = normalisers(model)
    if only is not None:
        found = {name: layer for name, layer in found.items() if isinstance(layer, only)}
    if not found:
        what = "normaliser that is known here" if only is None else f"normaliser of type {only}"
        raise ValueError(f"model={type(model).__name__} has no {what}; nothing to convert")

    spatial = model_spatial(model)
    jobs: list[Job] = []
    problems: list[str] = []
    for name, layer in found.items():
        kind = identify(layer)
        assert kind is not None
        reason = refusal(model, name, layer)
        groups = groups_of(layer)
        if groups is None:
            continue
        if exact and norm == "bgn" and (num_groups is None or num_groups == "paper"):
            groups = nearest_groups(kind.num_features, groups)
        target = Kind(
            norm, kind.num_features, _own_groups(norm, groups, kind), kind.spatial or spatial
        )
        if reason is None and target.spatial != 2 and norm in ("gbgn", "pn"):
            reason = f"{norm!r} exists for (N, C, H, W) only"
        if reason is None and not _same(layer, kind, target, options):
            job = plan(name, layer, kind, target, options)
            reason = no_inverse(job) or (_inexact(job) if exact else None)
            jobs.append(job)
        if reason is not None:
            problems.append(f"  {name or 'the model itself'} ({type(layer).__name__}): {reason}")
    problems += _tied(model, jobs) + _held_elsewhere(model, jobs)
    if problems:
        raise ValueError("nothing was converted, because of\n" + "\n".join(problems))

    _warn(jobs, optimizer)
    replacements = {job.old: carry_out(job) for job in jobs}
    if optimizer is not None:
        carry_state(
            optimizer,
            [
                (job.new.weight, job.new.bias, job.carried)
                for job in jobs
                if job.carried is not None
            ],
        )
        add_parameters(optimizer, [named for job in jobs for named in new_parameters(job)])
    return replace(model, replacements)


def regroup(
    model: nn.Module, num_groups: Groups, *, batch_size: int | None = None, **options: Any
) -> nn.Module:
    """Give the trained BGN layers of a model another number of groups, in place; the output in eval mode stays.

    ``num_groups`` and the rest are as in :func:`convert`.

    Exact between numbers that divide the channels, and from any number to a multiple of it. With ``num_groups`` equal to the
    channels the layer is a batch normalisation; ``convert(model, "bn")`` then makes it an ``nn.BatchNorm2d``.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), layers.BatchGroupNorm2d(8, 1))
    >>> regroup(model, 4)[1].running_mean.shape
    torch.Size([4])
    """
    only = (layers.BatchGroupNorm1d, layers.BatchGroupNorm2d, layers.BatchGroupNorm3d)
    return convert(model, "bgn", num_groups=num_groups, batch_size=batch_size, only=only, **options)


def _auto(model: nn.Module, batch_size: int | None, sample: Any) -> Groups:
    """A function of the layer: None for those that the sample does not reach; of several calls the smallest counts."""
    if batch_size is None or sample is None:
        given = f"batch_size={batch_size}, sample={'None' if sample is None else '...'}"
        raise ValueError(
            f"num_groups='auto' needs batch_size, the images that one process normalises together, and sample, (C, H, W) of an"
            f" image or an input; got {given}"
        )
    found: dict[nn.Module, int] = {}

    def see(layer: nn.Module, shape: tuple[int, ...], N: int) -> None:
        G = auto_groups(shape[0], N, math.prod(shape[1:]))
        found[layer] = min(G, found.get(layer, G))

    visit(model, sample, batch_size, see)
    warn_of_one_image(batch_size)
    return found.get


def _groups_of(norm: str, num_groups: Groups, batch_size: int | None) -> Any:
    if norm in ("bn", "in", "ln", "pn"):
        if num_groups is not None and not callable(num_groups):
            raise ValueError(
                f"num_groups={num_groups!r} has no meaning for {norm!r}; expected None"
            )
        return resolve(num_groups if num_groups is not None else 1, batch_size)
    if norm in ("gn", "gbgn") and num_groups is None:
        num_groups = PAPER_CHANNEL_GROUPS
    return resolve(num_groups, batch_size)


def _own_groups(norm: str, groups: int, kind: Kind) -> int:
    return {"bn": kind.num_features, "in": kind.num_features, "ln": 1, "pn": 1}.get(norm, groups)


def _same(layer: nn.Module, kind: Kind, target: Kind, options: dict[str, Any]) -> bool:
    """Whether the layer already is what it should become."""
    if getattr(layer, "unsettled", False):
        return False
    alike = (kind.name, kind.num_groups, kind.spatial or target.spatial) == (
        target.name,
        target.num_groups,
        target.spatial,
    )
    ours = not is_frozen_batch_norm(layer) and not isinstance(layer, nn.SyncBatchNorm)
    if isinstance(layer, nn.GroupNorm) and not target.batch_wide and target.name != "pn":
        alike = (
            kind.num_groups == target.num_groups
        )  # one layer, whatever its number of groups is called
    return (
        alike and ours and all(getattr(layer, key, None) == value for key, value in options.items())
    )


def _inexact(job: Job) -> str | None:
    """Why the output in eval mode would change, or None."""
    if job.old.weight is not None and job.new.weight is None:
        return "affine=False would throw its weight and bias away"
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
    changed = not (
        torch.allclose(job.carried.scale, torch.ones(1).double()) and not job.carried.shift.any()
    )
    if changed and job.new.weight is None:
        return "it has no weight and bias to take up the difference of the statistics; affine=True adds them"
    return None


def _tied(model: nn.Module, jobs: list[Job]) -> list[str]:
    """Layers that share a parameter but not their statistics cannot all keep their output."""
    owners: dict[int, set[str]] = {}
    for name, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(name)
    return [
        f"  {job.name}: it shares a parameter with {', '.join(others)}, but not its statistics"
        for job in jobs
        if job.carried is not None
        and (
            others := sorted(
                {n for p in job.old.parameters(recurse=False) for n in owners[id(p)]} - {job.name}
            )
        )
    ]


def _held_elsewhere(model: nn.Module, jobs: list[Job]) -> list[str]:
    """A layer in a plain list, tuple, dict or attribute would stay there, with changed weights and its old statistics."""
    names = {id(job.old): job.name for job in jobs}
    problems = []
    for owner, module in model.named_modules():
        for key, value in module.__dict__.items():
            items = (
                value.values()
                if isinstance(value, dict)
                else value
                if isinstance(value, (list, tuple))
                else [value]
            )
            if key not in ("_modules", "_parameters", "_buffers"):
                problems += [
                    f"  {names[id(item)]}: {owner or 'the model'} also holds it in its attribute {key}, outside of its modules"
                    for item in items
                    if id(item) in names
                ]
    return problems


def _warn(jobs: list[Job], optimizer: torch.optim.Optimizer | None) -> None:
    def say(names: list[str], text: str) -> None:
        if names:
            warnings.warn(f"convert: {text}: {listed(names)}", stacklevel=4)

    def same_statistics(job: Job) -> bool:
        return not (
            job.kind.batch_wide or job.target.batch_wide or "pn" in (job.kind.name, job.target.name)
        ) and (job.kind.num_groups == job.target.num_groups)

    lossy = [job.name for job in jobs if job.carried is None and not same_statistics(job)]
    say(lossy, "only weight and bias are carried over, so the output in eval mode changes")
    say(
        [j.name for j in jobs if j.carried and not j.carried.exact],
        "the output in eval mode changes (exact=False)",
    )
    say(
        [j.name for j in jobs if isinstance(j.old, nn.SyncBatchNorm)],
        "statistics are no longer synchronised between processes",
    )
    say(
        [
            f"{j.name} (x{j.carried.amplification:.0f})"
            for j in jobs
            if j.carried and j.carried.amplification > LARGE
        ],
        "channels with next to no variance beside others in their group get large weights, which amplify rounding errors"
        " and, in training, noise",
    )
    if optimizer is not None:
        changed = [job for job in jobs if job.carried is not None and job.old.weight is not None]
        strange = {
            key
            for job in changed
            for key in unknown_state(optimizer, job.old._parameters.get("weight"))
        }
        say(
            sorted(strange),
            "state of the optimizer that is not known here, so that those layers' state starts anew",
        )

"""Replace the normalizers of a model, and keep weights, statistics and what is attached to them."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bgn import checks, layers
from bgn.activation import INPUT, OUTPUT
from bgn.factory import (
    NAMES,
    NORMALIZERS,
    PAPER_CHANNEL_GROUPS,
    Normalizer,
    requested_groups,
    usual_groups,
)
from bgn.groups import (
    AUTO,
    CHANNELS,
    PAPER,
    Groups,
    auto_groups,
    nearest_groups,
    warn_of_one_image,
)
from bgn.layers import CHANNEL, GROUP
from bgn.renorm import wanted
from bgn.surgery import problems, recommend
from bgn.surgery.fuse import FUSE, fuse
from bgn.surgery.job import KEEP, Job, carry_out, new_parameters, no_inverse, plan
from bgn.surgery.kinds import (
    Kind,
    identify,
    is_auto,
    is_frozen_batch_norm,
    normalizers,
    some_normalizers,
)
from bgn.surgery.modules import listed, refuse_data_parallel, replace
from bgn.surgery.optimizer import add_parameters, carry_state, unknown_state
from bgn.surgery.problems import Problem
from bgn.surgery.sample import visit
from bgn.surgery.standardize import carry_out as standardize_weights
from bgn.surgery.standardize import plan as plan_weights
from bgn.surgery.support import model_spatial, refusal

OPTIONS = (
    "eps",
    "momentum",
    "affine",
    "track_running_stats",
    "batch_blocks",
    "renorm",
    "center",
)
LARGE = 100.0  # growth of rounding errors that gets a warning

GroupsOf = Callable[[nn.Module, int], int | None]  # (layer, channels) -> G, None to skip the layer


def convert(
    model: nn.Module,
    norm: str = "bgn",
    *,
    batch_size: int | None = None,
    num_groups: Groups = None,
    sample: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    exact: bool = True,
    standardize: bool | None = None,
    only: type | tuple[type, ...] | None = None,
    fuse_act: bool | str = False,
    **options: Any,
) -> nn.Module:
    """Replace the normalizers of a model by another kind, in place.

    Returns the model, or its replacement if the model itself is a normalizer.

    A batch normalization becomes BGN with **the same output in eval mode**, up to rounding, if
    ``num_groups`` divides the layer's channels or is a multiple of them: running statistics are
    pooled, and weight and bias take up the difference. Other numbers of groups are refused, with
    the nearest one that fits; ``exact=False`` converts them too, with a warning. To and from GN,
    IN, LN and PN only weight and bias are carried over, with a warning.

    Args:
        model: any module. Converting twice changes nothing. A model without normalizers is refused.
        norm: the new normalizer, a name as in :func:`norm_layer`.
        batch_size: the images that one process normalizes together. Alone, without num_groups, it
            leaves the choice to :func:`recommend`: groups, and partners that are not named. What
            was chosen, and why, goes to standard error.
        num_groups: an int, ``"paper"``, ``"auto"``, ``"channels"``, or a function of the layer that
            returns an int, or None to leave the layer alone. ``"paper"`` is
            :func:`paper_groups` of ``batch_size``. Its number, and that of :func:`recommend`, is
            replaced by the nearest that keeps the output, see :func:`nearest_groups`. ``"auto"`` is
            :func:`auto_groups` of what reaches the layer; it needs ``batch_size`` and ``sample``.
            ``"channels"`` is a group per channel, which is BN: for ``renorm``. GN has 32 groups by
            default, and fewer on narrow layers, so that groups have at least two channels. A
            function may not split channels between the groups of GN; an int is used as given.
        sample: for ``"auto"``: (C, H, W) of one image without the batch dimension, or a batch for
            the model, of any size; see :func:`describe`. The model is run once in eval mode.
        optimizer: its state is carried over to the changed parameters. Parameters stay the same
            objects, so training continues in any case; with ``optimizer``, momentum and second
            moments fit the new scale, and new parameters are trained.
        exact: refuse what would change the output in eval mode (between BN, GBGN and BGN).
        standardize: also standardize the weights of the convolutions that these layers follow, as
            :func:`standardize` does. For training from the beginning: it changes the output.
        only: convert only layers of these types.
        fuse_act: also put the activations and residuals that follow into the layers
            (:class:`bgn.BatchGroupNormAct2d`), where ``torch.fx`` finds them; for BGN of images.
            ``"output"`` lets layers with a leaky ReLU keep their output alone.
        options: for the new layers, such as eps or momentum. The default is the old layer's value.
            ``renorm=True`` lets a trained layer begin with its running statistics and without
            bounds: training mode begins with the output of eval mode. Its momentum becomes 0.01 if
            it was larger, because a batch is corrected towards an average over many; another
            ``momentum=`` wins. ``center="channel"`` keeps the mean of each channel.

    A layer with a weight but no bias (``bias=False``) stays without one, unless its new statistics
    shift the output: then it gets a bias, with a warning.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> convert(model, num_groups=2)[1]
    BatchGroupNorm2d(8, num_groups=2, ...)
    """
    checks.one_of("norm", norm, NAMES)
    unknown = options.keys() - OPTIONS
    if unknown:
        raise TypeError(
            f"convert got the options {', '.join(sorted(unknown))};"
            f" accepted for the layers: {', '.join(OPTIONS)}"
        )
    refuse_data_parallel(model, "buffers")
    row = NORMALIZERS[norm]
    if fuse_act not in FUSE or (fuse_act and norm != "bgn"):
        raise ValueError(
            f"fuse_act={fuse_act!r} with norm={norm!r}; expected False, or with norm='bgn' True or"
            " 'output'"
        )
    _refuse_extras(row, options)
    found = normalizers(model) if only else some_normalizers(model, "convert")
    if only is not None:
        found = {name: layer for name, layer in found.items() if isinstance(layer, only)}
        if not found:
            raise ValueError(
                f"model={type(model).__name__} has no normalizer of type {only}; nothing to convert"
            )

    chosen = None
    if num_groups is None and batch_size is not None and row.words:
        chosen = recommend.of_layers(model, found.values(), batch_size)
        num_groups = chosen.num_groups
        standardize = chosen.standardize if standardize is None else standardize
        if chosen.renorm and not standardize and options.get("track_running_stats", True):
            options.setdefault("renorm", True)
        renorm = bool(options.get("renorm"))
        chosen = dataclasses.replace(chosen, renorm=renorm, standardize=bool(standardize))
    groups_of = _groups_of(model, row, num_groups, batch_size, sample)
    weights = plan_weights(model, found.values()) if standardize else None
    spatial = model_spatial(model)
    snap = exact and (chosen is not None or num_groups == PAPER)
    jobs: list[Job] = []
    bad: list[Problem] = []
    for name, layer in found.items():
        kind = identify(layer)
        assert kind is not None
        C = kind.num_features
        reason = refusal(model, name, layer)
        G = groups_of(layer, C or 1)  # a lazy layer has no channels yet; it is refused
        if G is None:
            continue
        if snap and C:
            whole = chosen is not None and batch_size is not None and batch_size < recommend.MANY
            G = nearest_groups(C, min(G, C) if whole else G)
        if row.fixed_groups is not None:
            G = row.fixed_groups(C)
        center = options.get("center", CHANNEL if kind.channel_means else GROUP)
        channel_means = center == CHANNEL and "center" in row.extras
        target = Kind(norm, C, G, kind.spatial or spatial, channel_means=channel_means)
        label = f"{name or 'the model itself'} ({type(layer).__name__})"
        problem = Problem(label, reason) if reason else _mismatch(target, num_groups, label)
        if problem is None and not _same(layer, kind, target, options):
            job = plan(name, layer, kind, target, options)
            jobs.append(job)
            reason = no_inverse(job)
            if reason:
                problem = Problem(label, reason)
            elif exact:
                problem = problems.inexact(job, label)
        if problem is not None:
            bad.append(problem)
    bad += problems.tied(model, jobs) + problems.held_elsewhere(model, jobs)
    if bad:
        raise ValueError("nothing was converted, because of\n" + problems.report(bad))

    if num_groups is None:
        _warn_of_fewer_groups(row, jobs)
    _warn(jobs, optimizer)
    replacements = {job.old: carry_out(job) for job in jobs}
    if optimizer is not None:
        changed = [(job.new, job.carried) for job in jobs if job.carried is not None]
        carry_state(optimizer, [(new.weight, new.bias, carried) for new, carried in changed])
        add_parameters(optimizer, [named for job in jobs for named in new_parameters(job)])
    if weights is not None:
        standardize_weights(weights, model)
    model = replace(model, replacements)
    if fuse_act:
        now = [replacements.get(layer, layer) for layer in found.values()]
        fuse(model, now, OUTPUT if fuse_act == OUTPUT else INPUT)
    if chosen is not None:
        recommend.say(chosen)
    return model


def regroup(
    model: nn.Module, num_groups: Groups, *, batch_size: int | None = None, **options: Any
) -> nn.Module:
    """Give the trained BGN layers of a model another number of groups, in place.

    The output in eval mode stays the same. ``num_groups`` and the rest are as in :func:`convert`;
    ``batch_size`` alone means the paper's number.

    Exact between numbers that divide the channels, and from any number to a multiple of it. A layer
    with as many groups as channels is a batch normalization; ``convert(model, "bn")`` then makes it
    an ``nn.BatchNorm2d``.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), layers.BatchGroupNorm2d(8, 1))
    >>> regroup(model, 4)[1].running_mean.shape
    torch.Size([4])
    """
    only = (layers.BatchGroupNorm1d, layers.BatchGroupNorm2d, layers.BatchGroupNorm3d)
    if num_groups is None and batch_size is not None:
        num_groups = PAPER
    return convert(model, "bgn", num_groups=num_groups, batch_size=batch_size, only=only, **options)


def _groups_of(
    model: nn.Module, row: Normalizer, num_groups: Groups, batch_size: int | None, sample: Any
) -> GroupsOf:
    """The number of groups of each layer, as asked for by the arguments of ``convert``."""
    asked: Any = None
    if not callable(num_groups):
        more = " or a function of the layer"
        asked = requested_groups(row.name, num_groups, batch_size, or_else=more)
    if asked == AUTO:
        return _auto(model, batch_size, sample)
    if sample is not None:
        raise ValueError(
            f"sample is for norm='bgn' with num_groups='auto';"
            f" norm={row.name!r}, num_groups={num_groups!r}"
        )
    if callable(num_groups):
        function = num_groups

        def own(layer: nn.Module, _: int) -> int | None:
            G = function(layer)
            return None if G is None else checks.positive_int(f"num_groups(layer) for {layer}", G)

        return own
    if asked == CHANNELS:
        return lambda _, C: C
    return lambda _, C: asked if asked is not None else usual_groups(row.name, C)


def _auto(model: nn.Module, batch_size: int | None, sample: Any) -> GroupsOf:
    """G of what reaches each layer: of the smallest of several calls; None if nothing does."""
    if batch_size is None or sample is None:
        given = f"batch_size={batch_size}, sample={'None' if sample is None else '...'}"
        raise ValueError(
            "num_groups='auto' needs batch_size, the images that one process normalizes together,"
            f" and sample, (C, H, W) of one image or a batch; got {given}"
        )
    found: dict[nn.Module, int] = {}

    def see(layer: nn.Module, shape: tuple[int, ...], N: int) -> None:
        G = auto_groups(shape[0], N, math.prod(shape[1:]))
        found[layer] = min(G, found.get(layer, G))

    visit(model, sample, batch_size, see)
    warn_of_one_image(batch_size)
    return lambda layer, _: found.get(layer)


_NEUTRAL: dict[str, Any] = {"batch_blocks": 1, "renorm": False, "center": GROUP}


def _refuse_extras(row: Normalizer, options: dict[str, Any]) -> None:
    """Refuse options that the new layers do not have, unless their value changes nothing."""
    for name, neutral in _NEUTRAL.items():
        value = options.get(name, neutral)
        if name in row.extras:
            continue
        if value != neutral and value is not None:
            takers = ", ".join(n for n, other in NORMALIZERS.items() if name in other.extras)
            raise ValueError(
                f"{name}={value!r} has no meaning for norm={row.name!r}; expected {neutral!r}, or"
                f" one of {takers} (num_groups='channels' is BN)"
            )
        options.pop(name, None)


def _mismatch(target: Kind, num_groups: Groups, label: str) -> Problem | None:
    """Why there is no such layer for a layer's inputs or channels."""
    row, C, G = target.row, target.num_features, target.num_groups
    if target.spatial not in row.layers:
        dims = " or ".join(map(str, row.layers))
        return Problem(label, f"{row.name!r} exists for {dims} spatial dimensions only")
    if target.channel_means and C % G:
        return Problem(
            label,
            f"num_groups={G} with center='channel' must divide ",
            f"{C} channels",
        )
    if callable(num_groups) and not row.running_statistics and C % G:
        return Problem(
            label,
            f"num_groups(layer)={G} splits channels; expected a divisor of ",
            f"{C}",
            " (num_groups=<int> is used as given)",
        )
    return None


def _same(layer: nn.Module, kind: Kind, target: Kind, options: dict[str, Any]) -> bool:
    """Whether the layer already is what it should become."""
    if is_auto(layer) or is_frozen_batch_norm(layer) or isinstance(layer, nn.SyncBatchNorm):
        return False
    asked = dict(options)
    renorm, own = asked.pop("renorm", KEEP), getattr(layer, "renorm", None)
    if renorm is True and own is not None:
        renorm = own
    if renorm is not KEEP and wanted(renorm) != own:
        return False
    if any(getattr(layer, key, None) != value for key, value in asked.items()):
        return False
    if isinstance(layer, nn.GroupNorm) and issubclass(
        target.row.layers[target.spatial or 2], nn.GroupNorm
    ):
        return kind.num_groups == target.num_groups  # IN, LN and GN are one class
    spatial = kind.spatial or target.spatial
    alike = (kind.name, kind.num_groups) == (target.name, target.num_groups)
    centers = kind.channel_means == target.channel_means
    return alike and centers and spatial == target.spatial


def _same_statistics(job: Job) -> bool:
    """Whether a per-sample normalizer becomes one with the same statistics."""
    before, after = job.kind.partition(2, 1), job.target.partition(2, 1)
    per_sample = not job.kind.batch_wide and not job.target.batch_wide
    return per_sample and before is not None and before == after


def _warn_of_fewer_groups(row: Normalizer, jobs: list[Job]) -> None:
    names: dict[tuple[int, int], list[str]] = {}
    for job in jobs:
        G = job.target.num_groups
        if row.default_groups is not None and G < PAPER_CHANNEL_GROUPS:
            names.setdefault((job.kind.num_features, G), []).append(job.name)
    if names:
        which = "; ".join(f"G={G} for {C} channels: {listed(n)}" for (C, G), n in names.items())
        warnings.warn(
            f"convert: groups of two or more whole channels, so fewer than {PAPER_CHANNEL_GROUPS}"
            f" groups on narrow layers ({which}); num_groups={PAPER_CHANNEL_GROUPS} keeps"
            f" {PAPER_CHANNEL_GROUPS}",
            stacklevel=3,
        )


def _warn(jobs: list[Job], optimizer: torch.optim.Optimizer | None) -> None:
    def say(names: list[str], text: str) -> None:
        if names:
            warnings.warn(f"convert: {text}: {listed(names)}", stacklevel=4)

    carried = [(job, job.carried) for job in jobs if job.carried is not None]
    say(
        [job.name for job in jobs if job.carried is None and not _same_statistics(job)],
        "only weight and bias are carried over, so the output in eval mode changes",
    )
    say(
        [job.name for job, transfer in carried if not transfer.exact],
        "the output in eval mode changes (exact=False)",
    )
    say(
        [job.name for job in jobs if isinstance(job.old, nn.SyncBatchNorm)],
        "statistics are no longer synchronized between processes",
    )
    say(
        [
            job.name
            for job in jobs
            if job.kind.batch_blocks > 1 and "batch_blocks" not in job.target.row.extras
            if job.target.batch_wide
        ],
        "statistics are no longer those of blocks of the batch",
    )
    say(
        [
            job.name
            for job in jobs
            if getattr(job.old, "renorm", None) is not None
            if getattr(job.new, "renorm", None) is None
            if job.target.batch_wide and "renorm" not in job.target.row.extras
        ],
        "training batches are no longer corrected towards the running statistics (renorm)",
    )
    say(
        [
            job.name
            for job in jobs
            if job.kind.channel_means and job.kind.num_groups != job.kind.num_features
            if job.target.batch_wide and "center" not in job.target.row.extras
            if job.target.num_groups != job.target.num_features
        ],
        "a group's channels share a mean in training, as they did not before (center)",
    )
    say(
        [job.name for job in jobs if job.adds_bias],
        "a bias is added, which takes up the difference of the means",
    )
    say(
        [
            f"{job.name} (x{transfer.amplification:.0f})"
            for job, transfer in carried
            if transfer.amplification > LARGE
        ],
        "channels with next to no variance beside others in their group get large weights, which"
        " amplify rounding errors and, in training, noise",
    )
    if optimizer is not None:
        weights = [
            job.old._parameters.get("weight") for job, _ in carried if job.old.weight is not None
        ]
        say(
            sorted({key for weight in weights for key in unknown_state(optimizer, weight)}),
            "state of the optimizer that is not known here, so those layers' state starts anew",
        )

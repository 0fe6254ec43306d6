"""The table of normalizers, and ``norm_layer``, which makes a layer by its name.

This is the only place that lists the normalizers. ``bgn.convert`` and the other functions on whole
models read the table too.

>>> tuple(NORMALIZERS)
('bn', 'in', 'ln', 'gn', 'pn', 'gbgn', 'bgn')
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bgn import checks, layers
from bgn.groups import AUTO, CHANNELS, PAPER, channel_pairs, paper_groups
from bgn.partition import Partition, channel_groups, slices
from bgn.sync import SyncBatchGroupNorm

PAPER_CHANNEL_GROUPS = 32  # of GN and GBGN


@dataclass(frozen=True)
class Normalizer:
    """A row of the table: what is normalized together, and which layer does it."""

    name: str
    shared_over: str
    """What shares one mean and one variance."""
    running_statistics: bool
    """Whether statistics are the batch's in training and running averages in eval mode."""
    cut: Callable[[int, int, int, int, int], Partition] | None
    """Partition for (N, C, P, G, B); None if the groups are no slices of the features."""
    layers: Mapping[int, type[nn.Module]]
    """Layer class for each number of spatial dimensions."""
    arguments: Callable[[int, Any], tuple[Any, ...]]
    """Positional arguments of the layer class for (C, G)."""
    fixed_groups: Callable[[int], int] | None = None
    """Number of groups for C channels, if the normalizer does not leave it open."""
    default_groups: Callable[[int], int] | None = None
    """Number of groups for C channels if none is given; None if one has to be given."""
    words: tuple[str, ...] = ()
    """What num_groups may be, apart from an int."""
    extras: tuple[str, ...] = ()
    """Arguments of its layers that nn.BatchNorm2d does not have."""
    also: Mapping[type[nn.Module], int | None] = field(default_factory=dict)
    """Other classes that are this normalizer, and their number of spatial dimensions."""

    def make(self, spatial: int, num_features: int, num_groups: Any, **options: Any) -> nn.Module:
        """A layer for inputs with so many spatial dimensions."""
        return self.layers[spatial](*self.arguments(num_features, num_groups), **options)

    def partition(self, N: int, C: int, P: int, G: int, B: int) -> Partition | None:
        """Which elements share a statistic in training; None if they are no slices."""
        return self.cut and self.cut(N, C, P, G, B if self.running_statistics else N)

    def groups_of(self, layer: nn.Module, num_features: int) -> int | None:
        """Number of groups of a layer; None if the layer is not this normalizer."""
        if not isinstance(layer, (*self.layers.values(), *self.also)):
            return None
        fixed = None if self.fixed_groups is None else self.fixed_groups(num_features)
        if self.arguments is _ungrouped:
            return fixed  # the class has no such attribute; a user's own may be called so
        own: int | None = getattr(layer, "num_groups", fixed)
        return own if fixed in (None, own) else None

    def spatial(self, layer: nn.Module) -> int | None:
        """Number of spatial dimensions of the layer's inputs; None if it takes any number."""
        own = [dims for dims, cls in self.layers.items() if isinstance(layer, cls)]
        if len(own) == 1:
            return own[0]
        return next((dims for cls, dims in self.also.items() if isinstance(layer, cls)), None)


def _channels(C: int) -> int:
    return C


def _one(C: int) -> int:  # noqa: ARG001
    return 1


def _group_norm(C: int, G: Any) -> tuple[Any, ...]:
    return G, C


def _grouped(C: int, G: Any) -> tuple[Any, ...]:
    return C, G


def _ungrouped(C: int, G: Any) -> tuple[Any, ...]:  # noqa: ARG001
    return (C,)


_GROUP_NORMS = dict.fromkeys((1, 2, 3), layers.GroupNorm)

NORMALIZERS = {
    row.name: row
    for row in (
        Normalizer(
            "bn",
            shared_over="a channel of the batch",
            running_statistics=True,
            cut=slices,
            layers={1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d},
            arguments=_ungrouped,
            fixed_groups=_channels,
            also={_BatchNorm: None},
        ),
        Normalizer(
            "in",
            shared_over="a channel of a sample",
            running_statistics=False,
            cut=slices,
            layers=_GROUP_NORMS,
            arguments=_group_norm,
            fixed_groups=_channels,
            also={nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3},
        ),
        Normalizer(
            "ln",
            shared_over="a sample",
            running_statistics=False,
            cut=slices,
            layers=_GROUP_NORMS,
            arguments=_group_norm,
            fixed_groups=_one,
        ),
        Normalizer(
            "gn",
            shared_over="a slice of the features of a sample",
            running_statistics=False,
            cut=slices,
            layers=_GROUP_NORMS,
            arguments=_group_norm,
            default_groups=partial(channel_pairs, most=PAPER_CHANNEL_GROUPS),
            also={nn.GroupNorm: None},
        ),
        Normalizer(
            "pn",
            shared_over="a position of a sample, across the channels",
            running_statistics=False,
            cut=None,
            layers={2: layers.PositionalNorm2d},
            arguments=_ungrouped,
            fixed_groups=_one,
        ),
        Normalizer(
            "gbgn",
            shared_over="a group of whole channels of a block of samples",
            running_statistics=True,
            cut=channel_groups,
            layers={2: layers.GeneralBatchGroupNorm2d},
            arguments=_grouped,
            default_groups=lambda C: PAPER_CHANNEL_GROUPS,  # noqa: ARG005
            extras=("batch_blocks", "renorm"),
        ),
        Normalizer(
            "bgn",
            shared_over="a slice of the features, over the batch",
            running_statistics=True,
            cut=slices,
            layers={
                1: layers.BatchGroupNorm1d,
                2: layers.BatchGroupNorm2d,
                3: layers.BatchGroupNorm3d,
            },
            arguments=_grouped,
            words=(PAPER, AUTO, CHANNELS),
            extras=("batch_blocks", "renorm", "center"),
            also={SyncBatchGroupNorm: None},
        ),
    )
}
NAMES = tuple(NORMALIZERS)
BATCH_WIDE = tuple(name for name, row in NORMALIZERS.items() if row.running_statistics)


def norm_layer(
    name: str,
    *,
    batch_size: int | None = None,
    num_groups: int | str | None = None,
    spatial: int = 2,
    **options: Any,
) -> Callable[..., nn.Module]:
    """A constructor ``callable(num_features)`` of a normalizer for (N, C, H, W) inputs.

    Args:
        name: ``"bn"``, ``"in"``, ``"ln"``, ``"gn"``, ``"pn"``, ``"gbgn"`` or ``"bgn"``: a row of
            ``NORMALIZERS``. BN is :class:`torch.nn.BatchNorm2d`; IN, LN and GN are
            :class:`GroupNorm`.
        batch_size: the images that one process normalizes together, for the paper's number of
            groups (:func:`paper_groups`). Only ``bgn`` uses it; the other names accept and ignore
            it, so one call serves all names.
        num_groups: an int; for ``bgn`` also ``"paper"``, ``"auto"`` or ``"channels"``, as many as
            channels. An int is used as given. By default ``gbgn`` has 32 groups. So has ``gn``, if
            groups are then whole channels, two or more of them; otherwise the next smaller number
            for which they are.
        spatial: spatial dimensions of the inputs: 3 for volumes (N, C, D, H, W), 1 for sequences.
            GBGN and PN have 2 only.
        options: eps, momentum, affine and so on, for the layer.

    Instance normalization of 1x1 maps outputs the bias and warns, where torch raises an error.

    >>> norm_layer("bgn", batch_size=2)(64)
    BatchGroupNorm2d(64, num_groups=1, ...)
    >>> norm_layer("gn")(64), norm_layer("gn")(8), norm_layer("gn", num_groups=32)(36)
    (GroupNorm(32, 64, ...), GroupNorm(4, 8, ...), GroupNorm(32, 36, ...))
    """
    checks.one_of("name", name, NAMES)
    groups = requested_groups(name, num_groups, batch_size)
    known = tuple(NORMALIZERS[name].layers)
    if spatial not in known:
        raise ValueError(
            f"spatial={spatial!r} has no layer of {name!r}; expected {' or '.join(map(str, known))}"
        )
    return partial(_make, name, spatial, groups, **options)


def _make(
    name: str, spatial: int, num_groups: int | str | None, num_features: int, **options: Any
) -> nn.Module:
    row = NORMALIZERS[name]
    groups = num_groups if num_groups is not None else usual_groups(name, num_features)
    return row.make(spatial, num_features, groups, **options)


def usual_groups(name: str, num_features: int) -> int | None:
    """The number of groups where none was asked for; None if one has to be."""
    row = NORMALIZERS[name]
    usual = row.fixed_groups or row.default_groups
    return None if usual is None else usual(checks.positive_int("num_features", num_features))


def requested_groups(
    name: str, num_groups: Any, batch_size: int | None, *, or_else: str = ""
) -> int | str | None:
    """What the arguments ask for: an int, ``"auto"`` or ``"channels"``, or None for the default.

    ``or_else`` says in errors what the caller accepts apart from an int and words.
    """
    row = NORMALIZERS[name]
    if batch_size is not None:
        batch_size = checks.positive_int("batch_size", batch_size)
    if num_groups is not None and row.fixed_groups is not None:
        raise ValueError(f"num_groups={num_groups!r} has no meaning for {name!r}; expected None")
    if num_groups is None and PAPER in row.words:
        if batch_size is None:
            raise ValueError(
                f"num_groups=None and batch_size=None for {name!r}; expected one of them"
            )
        num_groups = PAPER
    if num_groups is None:
        return None
    if not isinstance(num_groups, str):
        return checks.positive_int("num_groups", num_groups)
    if not row.words:
        takers = ", ".join(repr(n) for n, other in NORMALIZERS.items() if other.words)
        raise TypeError(
            f"num_groups={num_groups!r} is a str; expected a positive int for {name!r}"
            f" ('{PAPER}', '{AUTO}' and '{CHANNELS}' are for {takers})"
        )
    if num_groups not in row.words:
        raise ValueError(
            f"num_groups={num_groups!r}; expected an int, {', '.join(map(repr, row.words))}"
            f"{or_else}{checks.did_you_mean(num_groups, row.words)}"
        )
    if num_groups == PAPER:
        if batch_size is None:
            raise ValueError(
                f"num_groups='{PAPER}' needs batch_size, the images that one process normalizes"
                " together"
            )
        return paper_groups(batch_size)
    return num_groups

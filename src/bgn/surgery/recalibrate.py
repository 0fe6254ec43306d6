"""Exact running statistics from a pass over data, in place of an exponential average."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bgn import checks, kernels
from bgn.kernels import definition
from bgn.moments import Moments
from bgn.surgery.freeze import Frozen
from bgn.surgery.kinds import Kind, identify, is_frozen_batch_norm, normalizers, own_groups
from bgn.surgery.modules import listed, observed


@torch.no_grad()
def recalibrate(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    max_batches: int | None = None,
    device: torch.device | str | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
    progress: bool | None = None,
) -> nn.Module:
    """Set the running statistics of every BN, GBGN and BGN layer to those of the data.

    Every batch is normalized with its own statistics, as in training; a layer with renormalization
    does not correct them, because what it would correct them towards is to be replaced. What each
    layer sees is merged over the whole loader as (count, mean, M2), so the result does not depend
    on the order, and a smaller last batch counts for less. Dropout is off. Frozen layers are left
    alone. If the pass is interrupted, the old statistics stay. Returns the model.

    Args:
        model: in any mode; the mode is restored.
        loader: batches as in training (the batch size matters). Of a batch that is a tuple or a
            list, the first item is the model's input.
        max_batches: the largest number of batches to read.
        device: where to move tensors; by default the device of the model's parameters.
        forward: ``forward(model, batch)``, for batches that are not the model's input.
        progress: show batches done and time left on stderr; by default if stderr is a terminal.

    >>> model = nn.Sequential(nn.BatchNorm2d(1))
    >>> model = recalibrate(model, [torch.full((2, 1, 1, 1), value) for value in (1.0, 4.0)])
    >>> model[0].running_mean, model[0].running_var
    (tensor([2.5000]), tensor([3.]))
    """
    if max_batches is not None:
        max_batches = checks.positive_int("max_batches", max_batches)
    found = {name: layer for name, layer in normalizers(model).items() if _tracks(layer)}
    if not found:
        raise ValueError(
            f"model={type(model).__name__} has no normalizer with running statistics that is not"
            " frozen"
        )
    if device is None:
        device = next((p.device for p in model.parameters()), None)

    seen: dict[nn.Module, Moments] = {}
    batches = 0
    with observed(model, found.values(), _merger(seen)), _on_batch_statistics(found.values()):
        for batch in _shown(loader, max_batches, progress):
            if forward is not None:
                forward(model, batch)
            else:
                model(_input(batch, device))
            batches += 1
    if not batches:
        raise ValueError("loader gave no batch; expected at least one")
    unseen = [name for name, layer in found.items() if layer not in seen]
    if unseen:
        warnings.warn(
            f"recalibrate: no data reached {listed(unseen)}; their statistics stay", stacklevel=2
        )
    for layer, moments in seen.items():
        _store(layer, moments, batches)
    return model


def _tracks(layer: nn.Module) -> bool:
    kind = identify(layer)
    assert kind is not None
    fixed = isinstance(layer, Frozen) or is_frozen_batch_norm(layer)
    tracks = (
        getattr(layer, "track_running_stats", False)
        and getattr(layer, "running_mean", None) is not None
    )
    return kind.batch_wide and not fixed and tracks


@contextlib.contextmanager
def _on_batch_statistics(layers: Iterable[nn.Module]) -> Iterator[None]:
    """Normalize as in training, but leave the running averages alone."""
    chosen: list[Any] = list(layers)
    try:
        for layer in chosen:
            layer.training = True  # not train(): a dropout inside stays off
            layer.track_running_stats = False
        yield
    finally:
        for layer in chosen:
            layer.track_running_stats = True


def _merger(seen: dict[nn.Module, Moments]) -> Callable[[nn.Module, Tensor], None]:
    def see(layer: nn.Module, x: Tensor) -> None:
        kind = identify(layer)
        if kind is not None and x.numel():
            new = _moments(x.detach(), layer, kind)
            seen[layer] = seen[layer].merge(new) if layer in seen else new

    return see


def _moments(x: Tensor, layer: nn.Module, kind: Kind) -> Moments:
    """The moments of the whole batch as one block, in float64 where the device has it."""
    assert kind.row.cut is not None
    # means per channel are merged per channel, and pooled when all is seen
    G = kind.num_features if kind.channel_means else own_groups(layer, kind)
    stats = kernels.moments(x, kernels.plan(kind.row.cut, x, G))
    wide = stats.mean.dtype if x.device.type == "mps" else torch.float64
    return Moments(stats.count.to(wide), stats.mean[0].to(wide), stats.M2[0].to(wide))


def _store(layer: Any, moments: Moments, batches: int) -> None:
    kind = identify(layer)
    if kind is not None and kind.channel_means:
        part = replace(kind, num_groups=own_groups(layer, kind), batch_blocks=1).partition(1, 1)
        assert part is not None
        own = Moments(moments.count, moments.mean[None], moments.M2[None])  # (C,) -> (1, C)
        pooled = definition.pool_channels(own, part)
        moments = Moments(pooled.count, moments.mean, pooled.M2[0], pooled.lost)
    for kept, value in (
        (layer.running_mean, moments.mean),
        (layer.running_var, moments.unbiased_var),
    ):
        kept.copy_(value.repeat_interleave(len(kept) // len(value)))  # num_groups="auto": (C,)
    if layer.num_batches_tracked is not None:
        layer.num_batches_tracked.fill_(batches)


def _input(batch: Any, device: torch.device | str | None) -> Any:
    if isinstance(batch, (tuple, list)):
        batch = batch[0]
    if not isinstance(batch, Tensor):
        raise TypeError(
            f"loader gave a {type(batch).__name__}; expected a tensor, a tuple that begins with"
            " one, or forward="
        )
    return batch.to(device)


def _shown(loader: Iterable[Any], max_batches: int | None, progress: bool | None) -> Iterable[Any]:
    """The batches, with a line of progress on stderr."""
    show = sys.stderr.isatty() if progress is None else progress
    try:
        total: int | None = len(loader)  # type: ignore[arg-type]
    except TypeError:
        total = None
    if max_batches is not None:
        total = max_batches if total is None else min(total, max_batches)
    begin = time.monotonic()
    for done, batch in enumerate(itertools.islice(loader, max_batches)):
        yield batch
        if show:
            left = ""
            if total is not None:
                seconds = (time.monotonic() - begin) / (done + 1) * (total - done - 1)
                left = f" of {total}, {seconds:.0f} s left"
            print(f"\rrecalibrate: {done + 1}{left}   ", end="", file=sys.stderr, flush=True)
    if show:
        print(file=sys.stderr)

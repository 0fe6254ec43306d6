"""Arguments that the kernels share: where things are, running statistics, a reference."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bgn.activation import Activation
from bgn.kernels.plans import Plan
from bgn.kernels.triton import follow
from bgn.kernels.triton.launch import Launch
from bgn.kernels.triton.launch import launch_of as launch_on
from bgn.renorm import Reference
from bgn.running import Running

# 3.9 warns where nothing is said of fusing a product and a sum into one operation
OPTIONS = {"enable_fp_fusion": True}
MERGE_WARPS = 8
INTERPRETED = 4  # multiprocessors that the interpreter stands for


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a device."""
    if device.type == "cpu":
        return INTERPRETED
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def on(device: torch.device) -> Any:
    """Kernels go to the current device: make it x's."""
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        return torch.cuda.device(device)
    return contextlib.nullcontext()


def launch_of(plan: Plan, device: torch.device) -> Launch:
    """The launch plan of a shape on a device."""
    return launch_on(plan, processors(device))


class Statistics:
    """What forward keeps for backward: mean and rstd, (B, G), and corrections or None.

    Those of eval mode are given ones, (G,), whose second is a variance.
    """

    __slots__ = ("correct", "given", "mean", "rstd")

    def __init__(
        self, mean: Tensor, rstd: Tensor, correct: Tensor | None = None, given: bool = False
    ) -> None:
        self.mean, self.rstd, self.correct, self.given = mean, rstd, correct, given


class Followed(NamedTuple):
    """What followed the normalizer, for its derivative."""

    act: int = follow.NONE
    slope: float = 0.0
    bias: Tensor | None = None
    y: Tensor | None = None
    """The output, where a residual was added before the activation."""
    inner: Tensor | None = None
    """Where the gradient of that residual is to be written."""


NOTHING = Followed()
_NUMBERS = {
    "relu": follow.RELU,
    "leaky_relu": follow.LEAKY,
    "silu": follow.SILU,
    "hardswish": follow.HARDSWISH,
}


def act_of(act: Activation | None) -> tuple[int, float]:
    """The number of an activation, and its slope."""
    return (follow.NONE, 0.0) if act is None else (_NUMBERS.get(act.name, follow.NONE), act.slope)


def correct_kind(correct: Tensor | None, G: int) -> int:
    return 0 if correct is None else 1 if correct.shape[2] == G else 2


def entries_of(correct: Tensor | None) -> int:
    return 1 if correct is None else correct.shape[2]


def geometry(plan: Plan, way: Launch) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The last arguments of every sweep: where things are."""
    part = plan.part
    per_run = -(-way.length // way.along)
    numbers = (
        part.C, part.P, part.G, _units(plan, way), part.block_size, way.cells_per_channel,
        way.length // way.multiple, way.width // way.multiple, per_run,
        way.slots, way.tiles, way.splits, way.steps, way.all_steps,
    )  # fmt: skip
    constants = {
        "U": way.cells,
        "V": way.along,
        "WALK": way.walk,
        "RAGGED": way.ragged,
        "EVEN": not way.ragged and part.C * way.cells_per_channel % part.G == 0,
        "SEGMENTED": way.segments > 1,
        "SWAPPED": way.swapped,
        "ONE_GROUP": way.one_group,
        "WIDE": way.wide,
        "Q": way.multiple,
        "num_warps": way.warps,
        **OPTIONS,
    }
    return numbers, constants


def _units(plan: Plan, way: Launch) -> int:
    """What groups are counted in: cells, or features where cells differ in length."""
    return plan.part.D if way.ragged else plan.part.C * way.cells_per_channel


def slots_of_groups(plan: Plan, way: Launch) -> tuple[tuple[int, ...], dict[str, Any]]:
    """How slots belong to groups."""
    part = plan.part
    units = _units(plan, way)
    own = max(1, way.tiles // part.G)
    numbers = part.C, part.P, part.G, units, way.cells_per_channel, own, way.groups.most
    constants = {
        "GB": way.groups.results,
        "PB": way.groups.slots,
        "RAGGED": way.ragged,
        "STRIDED": way.swapped or way.segments > 1,
        "ONE_GROUP": way.one_group,
        "num_warps": MERGE_WARPS,
        **OPTIONS,
    }
    return numbers, constants


def running_arguments(running: Running | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Running statistics as arguments."""
    if running is None:
        return (None, None, None, 0.0), {"RUNNING": False, "COUNTER": False, "CUMULATIVE": False}
    cumulative = _is_cumulative(running)
    values = running.mean, running.var, running.counter, float(running.momentum or 0.0)
    counts = running.counter is not None and not cumulative
    return values, {"RUNNING": True, "COUNTER": counts, "CUMULATIVE": cumulative}


def _is_cumulative(running: Running) -> bool:
    return running.momentum is None and running.counter is not None


def count_batch(running: Running | None) -> None:
    """Count a batch whose weight every program has read from the counter.

    Behind the launch: one that fails has counted nothing.
    """
    if running is not None and _is_cumulative(running):
        assert running.counter is not None
        running.counter.add_(1)


def reference_arguments(
    reference: Reference | None, plan: Plan, like: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any], Tensor | None]:
    """What a batch is corrected towards as arguments, and memory for the corrections."""
    if reference is None:
        return (None, None, None, 1.0, 0.0, None), {"CORRECT": False, "SHARE": False}, None
    correct = like.new_empty(2, plan.part.B, reference.entries)
    share = reference.share
    tensor = share if isinstance(share, Tensor) else None
    r_max, d_max = (reference.r_max, reference.d_max) if tensor is not None else reference.numbers()
    values = reference.mean, reference.var, correct, float(r_max), float(d_max), tensor
    return values, {"CORRECT": True, "SHARE": tensor is not None}, correct


def new_statistics(x: Tensor, plan: Plan, sorts: int = 2) -> Tensor:
    shape = sorts, plan.part.B, plan.part.G
    return torch.empty(shape, dtype=torch.float32, device=x.device)

"""Plans: how one shape is cut into statistics, made once and found again by every call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from bgn import checks
from bgn.checks import sizes
from bgn.kernels.eligible import TYPES, no_transform
from bgn.partition import Partition

Cut = Callable[..., Partition]  # such as bgn.partition.slices
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_MOST = 1024  # plans that are kept


class Plan:
    """The partition of one shape, and what the kernels know about that shape in one layout.

    ``kept`` plans were made for a plain call, of a partition that the kernels know: no compiler, no
    transform, no subclass, and no means of other groups than the variances. ``core`` and
    ``node`` belong to :mod:`bgn.kernels.cpu`, ``pieces`` to :mod:`bgn.kernels.aten`, and
    ``launches``, by number of multiprocessors, to :mod:`bgn.kernels.triton`; each is made when that
    kernel first runs the plan. ``choices`` belong to :mod:`bgn.kernels.backends`.
    """

    __slots__ = (
        "choices",
        "core",
        "dtype",
        "empty",
        "kept",
        "launches",
        "layout",
        "node",
        "numel",
        "part",
        "pieces",
        "positional",
        "shape",
        "smallest_count",
    )

    def __init__(
        self,
        part: Partition,
        shape: Any,
        dtype: torch.dtype,
        layout: torch.memory_format,
        kept: bool,
        positional: bool,
    ) -> None:
        self.part, self.shape, self.dtype, self.layout = part, shape, dtype, layout
        self.kept, self.positional = kept, positional
        self.numel = part.N * part.D
        self.empty = part.N == 0 or part.D == 0
        self.smallest_count = 0 if self.empty else part.smallest_count
        self.core: Any = None
        self.node: Any = None
        self.pieces: Any = None
        self.launches: dict[int, Any] = {}
        self.choices: dict[int, Any] = {}


def positions(N: int, C: int, P: int, G: int, B: int) -> Partition:
    """What stands for a partition in plans of PN, whose statistics are not of blocks and groups."""
    return Partition(N, C, P, B, G, whole_channels=True)


_plans: dict[Any, Plan] = {}


def plan(cut: Cut, x: Tensor, num_groups: int, blocks: int | None = 1) -> Plan:
    """The plan for x, checked: N blocks of one sample where ``blocks`` is None.

    Kept for the next call, unless a transform is active or x is no plain tensor.
    """
    if torch.compiler.is_compiling() or type(x) not in TYPES or not no_transform():
        return _new(cut, x, num_groups, blocks, torch.contiguous_format, kept=False)
    layout = torch.contiguous_format if x.is_contiguous() else _layout(x)
    key = (cut, x.shape, x.dtype, layout, num_groups, blocks)
    found = _plans.get(key)
    if found is None:
        found = _new(cut, x, num_groups, blocks, layout, kept=True)
        if len(_plans) >= _MOST:
            _plans.clear()
        _plans[key] = found
    return found


def channel_plan(x: Tensor, plan_: Plan) -> Plan:
    """The plan for x in the same blocks with a group per channel."""
    part = plan_.part
    return plan(_channels, x, part.C, part.B)


def _channels(N: int, C: int, P: int, G: int, B: int) -> Partition:
    return Partition(N, C, P, B, G, whole_channels=True)


def _layout(x: Tensor) -> torch.memory_format:
    """The memory format of the output, which is the one that x is read in: as torch's norms."""
    if x.dim() in LAST and not x.is_mkldnn:
        if x.is_contiguous(memory_format=LAST[x.dim()]):
            return LAST[x.dim()]
        return suggest_memory_format(x)
    return torch.contiguous_format


def _new(
    cut: Cut,
    x: Tensor,
    num_groups: int,
    blocks: int | None,
    layout: torch.memory_format,
    kept: bool,
) -> Plan:
    shape = sizes(x)
    checks.feature_map(x)
    checks.positive_int("num_groups", num_groups)
    N, C, P = shape[0], shape[1], math.prod(shape[2:])
    if blocks is not None and N % blocks:
        raise ValueError(f"batch_blocks={blocks} does not divide the batch of N = {N} samples")
    part = cut(N, C, P, num_groups, N if blocks is None else blocks)
    # a G of at most C always fits: asking only beyond it spares dynamic shapes a guard
    if not part.whole_channels and part.G > part.C and part.D > 0:
        checks.groups_fit(shape, part.G)
    kept = kept and not part.channel_means
    return Plan(part, shape, x.dtype, layout, kept, cut is positions)

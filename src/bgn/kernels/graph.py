"""What torch.compile sees of the C core and the GPU core, and where it sees it.

A compiled graph has one node forward and one backward, calls of :mod:`bgn.kernels.operators`. With
what follows a normalizer inside, where ``fuses`` says so: inductor cannot look into an operator to
fuse it.

On GPUs inductor gets the definition by default, and fuses it with its neighbors. Its forward pass
moves x as often as the GPU core's (read twice, written once). Backward, sums over groups and over
channels are two kernels to it: 7 passes against 5. But a ReLU behind the layer costs it about 2
passes more, and 5 after an operator that it cannot look into. ``BGN_COMPILED=operator`` asks for
the operator there: for layers that nothing elementwise follows.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from bgn.activation import After
from bgn.kernels import backends, definition, triton
from bgn.kernels.library import TYPES
from bgn.kernels.operators import is_gpus
from bgn.partition import Partition
from bgn.renorm import Reference
from bgn.running import Running


def _is_transformed() -> bool:
    return torch._C._are_functorch_transforms_active()


# as torch.compiler.assume_constant_result, which would import the whole compiler; torch guards
# every graph on the transforms that it was made under
_is_transformed._dynamo_marked_constant = True  # type: ignore[attr-defined]


VARIABLE = "BGN_COMPILED"
COMPILED = ("inductor", "operator")
compiled = os.environ.get(VARIABLE) or COMPILED[0]
if compiled not in COMPILED:
    raise ValueError(f"{VARIABLE}={compiled!r}; accepted: {', '.join(COMPILED)}")


def _has_operator(x: Tensor, reference: Reference | None) -> bool:
    """Whether the operator is wanted for tensors such as x."""
    if is_gpus(x):
        return compiled == "operator" and reference is None and x.dtype in triton.TYPES
    return x.device.type == "cpu" and x.dtype in TYPES and backends.active.core


def is_eligible(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    running: Running | None,
    reference: Reference | None,
) -> bool:
    """Whether a compiled graph gets the operator.

    An exported graph does not, for it must run without this package; nor one with transforms of
    torch.func or forward-mode differentiation, which only the definition understands.
    """
    if (
        not _has_operator(x, reference)
        or part.channel_means
        or not hasattr(torch.compiler, "is_exporting")
        or torch.compiler.is_exporting()
        or _is_transformed()
        or forward_ad._current_level >= 0
    ):
        return False
    for stats in (running, reference):
        if stats is not None and (stats.mean.requires_grad or stats.var.requires_grad):
            return False
    if reference is not None and running is not None and reference.mean is not running.mean:
        return False
    dtypes = {t.dtype for t in (weight, bias) if t is not None}
    return len(dtypes) < 2 and dtypes <= {x.dtype, definition.wide_dtype(x)}


def normalize(
    x: Tensor,
    part: Partition,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    running: Running | None,
    reference: Reference | None,
    after: After | None = None,
) -> Tensor:
    """See :func:`bgn.kernels.definition.normalize`; and what follows, where ``fuses`` says so."""
    moved: Any = (None,) * 4
    if running is not None:
        moved = running.mean, running.var, running.counter, running.momentum
    corrected: Any = (0.0, 0.0, None)
    if reference is not None:
        if running is None:
            moved = reference.mean, reference.var, None, None
        corrected = reference.r_max, reference.d_max, reference.share
        if not isinstance(reference.share, Tensor):
            corrected = *reference.numbers(), None
    options = part.B, part.G, part.whole_channels, eps
    moves = running is not None
    follows = () if after is None else (after.residual, after.act.name, after.act.slope)
    y: Tensor = torch.ops.bgn.normalize(
        x, weight, bias, *moved, moves, *corrected, *options, *follows
    )[0]
    return y


def fuses(x: Tensor, after: After) -> bool:
    """Whether the operator takes what follows, too."""
    act, residual = after
    return (
        not is_gpus(x)
        and act.keeps_sign
        and (
            residual is None
            or (act.is_piecewise and residual.dtype is x.dtype and residual.shape == x.shape)
        )
    )

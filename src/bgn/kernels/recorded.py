"""Eval mode in graphs that are made to run elsewhere: torch's batch_norm, which all of them know.

torch.export, ONNX, make_fx and torch.jit.trace record the operations of a call. Where groups are
whole channels, given statistics amount to a mean and a variance per channel. So the graph gets one
operator, ``batch_norm``: a multiply and an add per element, that other runtimes fuse into
the convolution before it. It rounds as BN does: a mean of many deviations costs digits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch._C import _get_tracing_state
from torch.autograd import forward_ad
from torch.nn import functional as torch_f

from bgn.kernels.definition import per_unit, wide_dtype
from bgn.partition import Partition

_PROXY = torch._C._TorchDispatchModeKey.PROXY


def is_recording() -> bool:
    """Whether a graph is made for other runtimes, without transforms of torch.func."""
    if torch.compiler.is_compiling():
        return hasattr(torch.compiler, "is_exporting") and torch.compiler.is_exporting()
    return (
        (_get_tracing_state() is not None or torch._C._get_dispatch_mode(_PROXY) is not None)
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def normalize_with(
    x: Tensor,
    part: Partition,
    mean: Tensor,
    var: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    """See :func:`bgn.kernels.definition.normalize_with`, for groups of whole channels."""
    mean, var = (per_unit(stat, part) for stat in (mean, var))
    if weight is None and bias is not None:  # torch has no derivative for this one
        weight = torch.ones_like(bias)
    wide = wide_dtype(x)

    def cast(vector: Tensor) -> Tensor:  # only where it is needed, for a cast is a node
        return vector if vector.dtype is wide else vector.to(wide)

    affine = [None if t is None else cast(t) for t in (weight, bias)]
    y: Tensor = torch_f.batch_norm(x, cast(mean), cast(var), affine[0], affine[1], eps=eps)
    return y

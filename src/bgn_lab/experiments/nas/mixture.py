"""A weighted sum of many arrays, in one sweep for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor


class _Mixture(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(weights, *parts)
        factors = weights.tolist()
        out: Tensor = parts[0] * factors[0]
        for factor, part in zip(factors[1:], parts[1:], strict=True):
            out.add_(part, alpha=factor)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        weights, *parts = ctx.saved_tensors
        wanted, *others = ctx.needs_input_grad
        own = torch.stack([_dot(g, part) for part in parts]) if wanted else None
        return own, *(
            g * w if other else None for w, part, other in zip(weights, parts, others, strict=True)
        )


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """The sum of products, in the order of b's memory."""
    if b.dim() == 4 and b.is_contiguous(memory_format=torch.channels_last):
        a, b = a.permute(0, 2, 3, 1), b.permute(0, 2, 3, 1)
    return torch.dot(a.reshape(-1), b.reshape(-1))


def mixture(weights: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """sum_k weights[k] parts[k], with as many gradients as one needs.

    >>> mixture(torch.tensor([2.0, 0.5]), [torch.ones(2), torch.full((2,), 4.0)])
    tensor([4., 4.])
    """
    if weights.device.type == "cpu" and not torch.compiler.is_compiling():
        out: Tensor = _Mixture.apply(weights, *parts)  # type: ignore[no-untyped-call]
        return out
    total: Tensor = reduce(torch.add, [w * part for w, part in zip(weights, parts, strict=True)])
    return total

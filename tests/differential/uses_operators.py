"""The operators that compiled graphs see, beside torch's own batch_norm."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import bgn  # noqa: F401  (registers the operators)
from tests.differential.layers import Make
from tests.differential.table import TRAINING, use

# no running statistics, counter, momentum, renormalization
UNTRACKED = *(None,) * 4, True, 0.0, 0.0, None


def _ours() -> Any:
    return torch.ops.bgn.normalize


def _call(make: Make, x: Tensor, weight: Any, bias: Any, B: int = 1) -> Tensor:
    """The output of the operator, or of torch's, with statistics of the batch."""
    if make.kind == "torch":
        if B > 1 and x.shape[0] % B:
            raise ValueError("the blocks do not divide the batch")
        # not native_batch_norm, which reads beyond the end of a weight that is too short
        parts = [
            torch.batch_norm(part, weight, bias, None, None, True, 0.1, 1e-5, False)
            for part in x.chunk(B)
        ]
        return torch.cat(parts)
    return _ours()(x, weight, bias, *UNTRACKED, B, x.shape[1], True, 1e-5)[0]


def _parameters(make: Make, length: int = 8) -> tuple[Tensor, Tensor]:
    layer = make(length)
    return layer.weight, layer.bias


@use(
    [
        (True, dtype, layout)
        for dtype in ("float32", "float64", "bfloat16")
        for layout in ("contiguous", "channels_last")
    ],
    groups=(),
    cases={"B": [1, 2]},
)
def operator(make: Make, B: int) -> Any:
    x, (weight, bias) = make.x(), _parameters(make)
    y = _call(make, x, weight, bias, B)
    y.backward(make.gy(y))
    return y, x.grad, weight.grad, bias.grad


@use(TRAINING, groups=(), cases={"missing": ["weight", "bias", "both"]})
def operator_without(make: Make, missing: str) -> Any:
    x, (weight, bias) = make.x(), _parameters(make)
    given = [
        None if missing in (name, "both") else t for name, t in (("weight", weight), ("bias", bias))
    ]
    y = _call(make, x, *given)
    y.backward(make.gy(y))
    return y, x.grad, weight.grad, bias.grad


@use(TRAINING, groups=(), cases={"which": ["weight", "bias"], "length": [5, 11]})
def operator_with_parameters_of_another_length(make: Make, which: str, length: int) -> Any:
    good, bad = _parameters(make), _parameters(make, length)
    weight = bad[0] if which == "weight" else good[0]
    return _call(make, make.x(), weight, bad[1] if which == "bias" else good[1])


@use(TRAINING, groups=(), cases={"B": [3, 5]})
def operator_with_blocks_that_do_not_divide(make: Make, B: int) -> Any:
    return _call(make, make.x(), *_parameters(make), B)


@use(TRAINING, groups=())
def operator_differentiated_twice(make: Make) -> Any:
    x, (weight, bias) = make.x(), _parameters(make)
    y = _call(make, x, weight, bias)
    (gx,) = torch.autograd.grad(y, x, make.gy(y), create_graph=True)
    return gx, torch.autograd.grad(gx.pow(2).sum(), (x, weight))


@use(TRAINING, groups=(), may_work=True, cases={"dtype": ["float64", "bfloat16", "float16"]})
def operator_with_a_weight_of_another_dtype(make: Make, dtype: str) -> Any:
    weight, bias = _parameters(make)
    if make.kind == "definition":
        layer = make(track_running_stats=False)
        layer.weight.data = layer.weight.data.to(getattr(torch, dtype)).float()
        return layer(make.x()).detach()
    return _call(make, make.x(), weight.to(getattr(torch, dtype)), bias).detach()


@use(TRAINING, groups=())
def operator_on_an_empty_batch(make: Make) -> Any:
    return _call(make, make.x(0), *_parameters(make)).shape


@use(TRAINING, groups=())
def operator_in_a_batched_gradient(make: Make) -> Any:
    x, (weight, bias) = make.x(), _parameters(make)
    y = _call(make, x, weight, bias)
    gys = torch.stack([make.gy(y, seed) for seed in range(2)])
    return torch.autograd.grad(y, (x, weight), gys, is_grads_batched=True)


@use(
    [
        (True, dtype, layout)
        for dtype in ("float32", "bfloat16")
        for layout in ("contiguous", "channels_last")
    ],
    groups=(),
    timeout=120,
)
def operator_check(make: Make) -> Any:
    """torch's own check of a custom operator: schema, autograd, fake tensors, compile."""
    if make.kind == "torch":
        return {}
    x, (weight, bias) = make.x(), _parameters(make)
    sample = (x, weight, bias, *UNTRACKED, 1, 2, False, 1e-5)
    told = torch.library.opcheck(_ours().default, sample, raise_exception=False)
    return {name: str(value) for name, value in told.items() if value != "SUCCESS"}

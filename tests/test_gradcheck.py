"""Derivatives of every normalizer against finite differences: first, second, batched, forward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import bgn

C = 4
SHAPES = {1: (2, C, 3), 2: (2, C, 2, 2), 3: (2, C, 2, 1, 2)}
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
BGN = {1: bgn.BatchGroupNorm1d, 2: bgn.BatchGroupNorm2d, 3: bgn.BatchGroupNorm3d}
GROUPS = {"one": 1, "dividing": 2, "not dividing": 3, "channels": C, "strips": 8}

# name -> (layer, shape of its input)
LAYERS = {
    **{
        f"bgn{dims}d, G {name}": (lambda dims=dims, G=G: BGN[dims](C, G), SHAPES[dims])
        for dims in BGN
        for name, G in GROUPS.items()
        if dims == 2 or name in ("not dividing", "strips")
    },
    "bgn1d of (N, C)": (lambda: bgn.BatchGroupNorm1d(C, 2), (4, C)),
    "gbgn, 1 block": (lambda: bgn.GeneralBatchGroupNorm2d(C, 2), SHAPES[2]),
    "gbgn, 2 blocks": (lambda: bgn.GeneralBatchGroupNorm2d(C, 2, batch_blocks=2), (4, C, 2, 2)),
    "gbgn of channels": (lambda: bgn.GeneralBatchGroupNorm2d(C, 32), SHAPES[2]),
    "gn": (lambda: bgn.GroupNorm(2, C), SHAPES[2]),
    "gn, merged view": (lambda: bgn.GroupNorm(3, C), SHAPES[2]),
    "in": (lambda: bgn.GroupNorm(C, C), SHAPES[2]),
    "ln": (lambda: bgn.GroupNorm(1, C), SHAPES[2]),
    "pn": (lambda: bgn.PositionalNorm2d(C), SHAPES[2]),
}
HAVE_RUNNING_STATISTICS = [name for name in LAYERS if "bgn" in name]
CASES = [
    (name, training, layout)
    for name, (_, shape) in LAYERS.items()
    for training in (True, False)
    if training or name in HAVE_RUNNING_STATISTICS
    for layout in ("contiguous", "channels_last")
    if layout == "contiguous" or len(shape) in LAST
]


# these may run through torch's own group_norm, which for channels_last has neither forward nor
# batched derivatives
TORCH_CANNOT = [("gn", "channels_last"), ("in", "channels_last"), ("ln", "channels_last")]


def prepare(name: str, training: bool, layout: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A layer whose statistics are not those of a new one, and its input, weight and bias."""
    make, shape = LAYERS[name]
    layer = make().double().train(training)
    draw = torch.Generator().manual_seed(1)
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            buffer.copy_(torch.rand(buffer.shape, generator=draw, dtype=torch.float64) + 0.5)
    x = torch.randn(shape, generator=draw, dtype=torch.float64)
    if layout == "channels_last":
        x = x.contiguous(memory_format=LAST[len(shape)])
    weight, bias = (torch.rand(C, generator=draw, dtype=torch.float64) + 0.5 for _ in range(2))
    if training and isinstance(layer, nn.modules.batchnorm._NormBase):
        # a running average cannot follow many derivatives at once, as with nn.BatchNorm2d
        layer.track_running_stats = False
    return layer, tuple(t.requires_grad_() for t in (x, weight, bias))


def call(layer: nn.Module, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    output: Tensor = torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))
    return output


@pytest.mark.parametrize(("name", "training", "layout"), CASES)
def test_first_derivatives(name: str, training: bool, layout: str) -> None:
    layer, inputs = prepare(name, training, layout)
    every = (name, layout) not in TORCH_CANNOT
    assert gradcheck(
        lambda *t: call(layer, *t),
        inputs,
        check_batched_grad=every,
        check_forward_ad=every,
        check_batched_forward_grad=every,
    )


@pytest.mark.parametrize(("name", "training", "layout"), CASES)
def test_second_derivatives(name: str, training: bool, layout: str) -> None:
    layer, inputs = prepare(name, training, layout)
    every = (name, layout) not in TORCH_CANNOT
    assert gradgradcheck(
        lambda *t: call(layer, *t), inputs, check_batched_grad=every, check_fwd_over_rev=every
    )


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_some_derivatives(training: bool, needed: tuple[int, ...]) -> None:
    layer, inputs = prepare("bgn2d, G not dividing", training, "contiguous")
    for i, tensor in enumerate(inputs):
        tensor.requires_grad_(i in needed)
    assert gradcheck(lambda *t: call(layer, *t), inputs)
    assert gradgradcheck(lambda *t: call(layer, *t), inputs)


@pytest.mark.parametrize("name", [name for name in HAVE_RUNNING_STATISTICS if "2d" in name])
def test_third_derivatives(name: str) -> None:
    layer, (x, weight, bias) = prepare(name, True, "contiguous")

    def gradient(x: Tensor) -> Tensor:
        y = call(layer, x, weight, bias)
        return torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)[0]

    assert gradgradcheck(gradient, (x.detach().requires_grad_(),))

"""What autograd may do with the node of the GPU core, beside the definition."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import bgn
from bgn import kernels
from tests.gpu.interpreter import assert_same, ran, tiles


class Block(bgn.BatchGroupNormAct2d):
    """A residual that needs a gradient of its own."""

    def __init__(self, act: str) -> None:
        super().__init__(8, 2, act=act)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x.flip(0) * 0.75)


LAYERS: dict[str, Callable[[], torch.nn.Module]] = {
    "swept": lambda: bgn.BatchGroupNorm2d(8, 2),
    "uneven": lambda: bgn.BatchGroupNorm2d(8, 7),
    "eval": lambda: bgn.BatchGroupNorm2d(8, 2).eval(),
    "renorm": lambda: bgn.BatchGroupNorm2d(8, 2, renorm=True),
    "blocks": lambda: bgn.BatchGroupNorm2d(8, 2, batch_blocks=2),
    "GN": lambda: bgn.GroupNorm(4, 8),
    "PN": lambda: bgn.PositionalNorm2d(8),
    "relu": lambda: bgn.BatchGroupNormAct2d(8, 2),
    "relu swept": lambda: bgn.BatchGroupNormAct2d(8, 2, renorm=True),
    "relu uneven": lambda: bgn.BatchGroupNormAct2d(8, 7),
    "relu sum swept": lambda: Block("relu"),
    "silu": lambda: bgn.BatchGroupNormAct2d(8, 2, act="silu"),
    "leaky eval": lambda: bgn.BatchGroupNormAct2d(8, 2, act="leaky_relu").eval(),
    "relu sum": lambda: Block("relu"),
    "relu sum eval": lambda: Block("relu").eval(),
    "sum": lambda: Block("identity"),
}
Case = Callable[[torch.nn.Module, Tensor], dict[str, Tensor]]


def compare(name: str, case: Case, fused: int = 8192) -> None:
    """The same by the GPU core in float32 and by the definition in float64."""
    x = torch.randn(4, 8, 3, 3) * 2 + 1
    found = []
    for backend, dtype in ("triton", torch.float32), ("definition", torch.float64):
        layer = LAYERS[name]().to(dtype)
        for parameter in layer.parameters():
            parameter.data = torch.linspace(0.5, 1.5, len(parameter), dtype=dtype)
        leaf = x.to(dtype, copy=True).requires_grad_()
        with kernels.use(backend), tiles(64, fused):
            assert (ran(copy.deepcopy(layer)(leaf)) == "triton") == (backend == "triton")
            found.append(case(layer, leaf) | dict(layer.named_buffers()))
    assert_same(*found, torch.float32)


def gradients(layer: torch.nn.Module, leaf: Tensor) -> dict[str, Tensor]:
    grads = {n: p.grad for n, p in layer.named_parameters() if p.grad is not None}
    return grads | ({} if leaf.grad is None else {"x": leaf.grad})


def a_sum(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The gradient is one number, expanded."""
    layer(x).sum().backward()
    return gradients(layer, x)


def gaps(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """x and the gradient are views with gaps and an offset that no vector load could start at."""
    wide = torch.stack([x, x], -1).detach().requires_grad_()
    y = layer(wide[..., 1])
    y.backward(torch.linspace(0, 1, 2 * y.numel()).to(y.dtype).view(*y.shape, 2)[..., 1])
    assert wide.grad is not None
    return {**gradients(layer, x), "x": wide.grad}


def offset(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Contiguous, and not aligned to 16 bytes."""
    moved = torch.cat([x.detach().flatten()[:1], x.detach().flatten()])[1:].view(x.shape)
    assert moved.is_contiguous()
    assert moved.data_ptr() % 16
    leaf = moved.requires_grad_()
    layer(leaf).square().sum().backward()
    return gradients(layer, leaf)


def transposed_gradient(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    y = layer(x)
    y.backward(torch.linspace(0, 1, y.numel()).to(y.dtype).view(3, 3, 8, 4).permute(3, 2, 1, 0))
    return gradients(layer, x)


def of_half_the_batch(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Autograd pads the gradient with zeros."""
    layer(x)[:2, 3:].exp().sum().backward()
    return gradients(layer, x)


def twice(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    loss = layer(x).sin().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return gradients(layer, x)


def second_order(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    of = [x, *layer.parameters()]
    first = torch.autograd.grad(layer(x).sin().sum(), of, create_graph=True)
    sum(g.square().sum() for g in first).backward()  # type: ignore[union-attr]
    return gradients(layer, x)


def checkpointed(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The second forward finds running statistics that have moved; so it does in torch."""
    y: Any = checkpoint(lambda t: layer(t).sin(), x, use_reentrant=False)
    y.sum().backward()
    return gradients(layer, x)


def saved_elsewhere(layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Hooks hand back another layout."""

    def unpack(t: Tensor) -> Tensor:
        return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t.clone()

    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), unpack):
        y = layer(x)
    y.sin().sum().backward()
    return gradients(layer, x)


CASES = (
    a_sum, gaps, offset, transposed_gradient, of_half_the_batch, twice, second_order, checkpointed,
    saved_elsewhere,
)  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_definitions(name: str, case: Case) -> None:
    compare(name, case, 0 if "swept" in name else 8192)


@pytest.mark.parametrize("name", LAYERS)
def test_whatever_needs_a_gradient(name: str) -> None:
    for needs in itertools.product([False, True], repeat=3):
        if not any(needs):
            continue

        def case(layer: torch.nn.Module, x: Tensor, needs: tuple[bool, ...] = needs) -> Any:
            for leaf, need in zip((x, *layer.parameters()), needs, strict=True):
                leaf.requires_grad_(need)
            layer(x).sin().sum().backward()
            found = gradients(layer, x)
            assert len(found) == sum(needs)
            return found

        compare(name, case)


@pytest.mark.parametrize("act", ["relu", "identity"])
@pytest.mark.parametrize("training", [True, False])
def test_the_gradient_of_a_residual_alone(act: str, training: bool) -> None:
    x, r = torch.randn(2, 4, 8, 3, 3)
    found = []
    for backend in "triton", "definition":
        layer = bgn.BatchGroupNormAct2d(8, 2, affine=False, act=act).train(training)
        leaf = r.clone().requires_grad_()
        with kernels.use(backend), tiles(64, 0):
            y = layer(x, leaf)
            y.sin().sum().backward()
        found.append({"y": y.detach(), "gr": leaf.grad})
    assert_same(*found, torch.float32)

"""The rivals: this library's layers, torch's, a compiled composite, and the floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn import kernels

Step = Callable[[], Any]


class Composite(nn.Module):
    """BGN as one would write it in an afternoon, for torch.compile.

    Statistics on a view, no running averages.
    """

    def __init__(self, C: int, G: int) -> None:
        super().__init__()
        self.G, self.eps = G, 1e-5
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], self.G, -1)
        var, mean = torch.var_mean(groups, (0, 2), correction=0, keepdim=True)
        y = ((groups - mean) * torch.rsqrt(var + self.eps)).reshape(x.shape)
        return y * self.weight[:, None, None] + self.bias[:, None, None]


class Definition(nn.Module):
    """BGN by the definition."""

    def __init__(self, C: int, G: int) -> None:
        super().__init__()
        self.norm = bgn.BatchGroupNorm2d(C, G)

    def forward(self, x: Tensor) -> Tensor:
        with kernels.use("definition"):
            y: Tensor = self.norm(x)
        return y


class LayerNorm(nn.Module):
    """PN as torch has it: ``layer_norm`` across C, which is last in memory in channels_last."""

    def __init__(self, C: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)  # (N, C, H, W) -> (N, H, W, C)
        y = F.layer_norm(last, last.shape[3:], self.weight, self.bias)
        return y.permute(0, 3, 1, 2)


class Followed(nn.Module):
    """A normalizer, then ReLU in place."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.relu = norm, nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.norm(x))
        return y


class Summed(nn.Module):
    """A normalizer, a sum in place and ReLU in place, as at the end of a residual block.

    The residual has a gradient; ``training_step`` makes it. Of a fused layer, all three in one.
    """

    residual: Tensor

    def __init__(self, norm: nn.Module, fused: bool) -> None:
        super().__init__()
        self.norm, self.fused = norm, fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            y: Tensor = self.norm(x, self.residual)
            return y
        return F.relu_(self.norm(x).add_(self.residual))


def _compiled(C: int, G: int) -> nn.Module:
    torch.compiler.reset()  # after a few shapes torch would stop compiling and run it eagerly
    layer: Any = torch.compile(Composite(C, G), dynamic=False)
    assert isinstance(layer, nn.Module)
    return layer


# name: a layer for C channels; G is BGN's number of groups
LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "bgn": lambda C, G: bgn.BatchGroupNorm2d(C, G),
    "bgn.GroupNorm(32)": lambda C, _: bgn.GroupNorm(32, C),
    "bgn IN": lambda C, _: bgn.GroupNorm(C, C),
    "bgn LN": lambda C, _: bgn.GroupNorm(1, C),
    "bgn PN": lambda C, _: bgn.PositionalNorm2d(C),
    "bgn definition": Definition,
    "nn.BatchNorm2d": lambda C, _: nn.BatchNorm2d(C),
    "nn.GroupNorm(32)": lambda C, _: nn.GroupNorm(32, C),
    "nn.GroupNorm(1)": lambda C, _: nn.GroupNorm(1, C),
    "nn.InstanceNorm2d": lambda C, _: nn.InstanceNorm2d(C, affine=True),
    "layer_norm": lambda C, _: LayerNorm(C),
    "bgn, ReLU fused": lambda C, G: bgn.BatchGroupNormAct2d(C, G),
    "nn.BatchNorm2d, ReLU": lambda C, _: Followed(nn.BatchNorm2d(C)),
    "bgn, sum, ReLU fused": lambda C, G: Summed(bgn.BatchGroupNormAct2d(C, G), fused=True),
    "nn.BatchNorm2d, sum, ReLU": lambda C, _: Summed(nn.BatchNorm2d(C), fused=False),
    "compiled composite": _compiled,
}
NEEDS_32 = ("bgn.GroupNorm(32)", "nn.GroupNorm(32)")  # groups of whole channels


def training_step(layer: nn.Module, x: Tensor, gy: Tensor) -> Step:
    """Forward and backward, gradients thrown away."""
    x = x.detach().requires_grad_()
    parameters: list[Tensor] = list(layer.parameters())
    if isinstance(layer, Summed):
        layer.residual = torch.randn_like(x).requires_grad_()
        parameters.append(layer.residual)

    def step() -> None:
        layer(x).backward(gy)
        x.grad = None
        for parameter in parameters:
            parameter.grad = None

    return step


def eval_step(layer: nn.Module, x: Tensor) -> Step:
    """Forward in eval mode without gradients."""
    layer.eval()

    def step() -> None:
        with torch.no_grad():
            layer(x)

    return step


def floor(x: Tensor, gy: Tensor | None) -> Step:
    """What must at least be moved: ``x + 1``, and in training ``x + gy``, into new tensors."""

    def step() -> None:
        x + 1
        if gy is not None:
            x + gy

    return step

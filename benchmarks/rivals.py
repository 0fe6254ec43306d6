"""What is measured against what: this library's layers, torch's, a compiled composite, and the floor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import bgn
from bgn import kernels

Step = Callable[[], Any]


class Composite(nn.Module):
    """BGN as one would write it in an afternoon, for torch.compile: statistics on a view, no running averages."""

    def __init__(self, C: int, G: int) -> None:
        super().__init__()
        self.G, self.eps = G, 1e-5
        self.weight, self.bias = nn.Parameter(torch.ones(C)), nn.Parameter(torch.zeros(C))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.reshape(x.shape[0], self.G, -1)
        var, mean = torch.var_mean(groups, (0, 2), correction=0, keepdim=True)
        y = ((groups - mean) * torch.rsqrt(var + self.eps)).reshape(x.shape)
        return y * self.weight[:, None, None] + self.bias[:, None, None]


class Reference(nn.Module):
    """BGN by the definition."""

    def __init__(self, C: int, G: int) -> None:
        super().__init__()
        self.norm = bgn.BatchGroupNorm2d(C, G)

    def forward(self, x: Tensor) -> Tensor:
        with kernels.use("definition"):
            y: Tensor = self.norm(x)
        return y


def layers(C: int, G: int, compiled: bool, reference: bool) -> dict[str, nn.Module]:
    """Every layer for C channels; BGN with G groups."""
    made: dict[str, nn.Module] = {
        "bgn": bgn.BatchGroupNorm2d(C, G),
        "bgn.GroupNorm(32)": bgn.GroupNorm(32, C),
        "bgn IN": bgn.GroupNorm(C, C),
        "bgn LN": bgn.GroupNorm(1, C),
        "nn.BatchNorm2d": nn.BatchNorm2d(C),
        "nn.InstanceNorm2d": nn.InstanceNorm2d(C, affine=True),
        "nn.GroupNorm(1)": nn.GroupNorm(1, C),
    }
    if C % 32 == 0:
        made["nn.GroupNorm(32)"] = nn.GroupNorm(32, C)
    if reference:
        made["bgn reference"] = Reference(C, G)
    if compiled:
        made["compiled composite"] = torch.compile(Composite(C, G), dynamic=False)  # type: ignore[assignment]
    return made


def training_step(layer: nn.Module, x: Tensor, gy: Tensor) -> Step:
    """Forward and backward, gradients thrown away."""
    x = x.detach().requires_grad_()
    parameters = list(layer.parameters())

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
    """What must at least be moved: one x + 1, and in training one x + gy, each into a new tensor."""

    def step() -> None:
        x + 1
        if gy is not None:
            x + gy

    return step

"""The operations on the edges of cells (Liu et al. 2019), all from C channels to C.

An operation begins with a part that has no weights: nothing, ReLU or a pool. Edges from the same
state may share it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.models.resnet import conv
from bgn_lab.norms import AnyNorm

Make = Callable[
    [int, int, AnyNorm, bool], nn.Module
]  # of C, stride, normalizer, and whether that has weight and bias


def convolved(C: int, K: int, norm: AnyNorm, affine: bool) -> nn.Sequential:
    """ReLU, 1x1 convolution, normalizer."""
    return nn.Sequential(nn.ReLU(), conv(C, K, 1), norm(K, affine=affine))


class Alone(nn.Conv2d):
    """A convolution of each channel alone.

    On CPUs the gradients of dilated ones take many times as long as others'. With dilation 2 an
    output sees every second row and column: that is an ordinary convolution of each of the image's
    four parts of that kind.
    """

    def __init__(self, C: int, size: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(C, C, size, stride, dilation * (size // 2), dilation, groups=C, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        N, C, H, W = x.shape
        half = self.kernel_size[0] // 2
        if (
            x.device.type != "cpu"
            or self.dilation != (2, 2)
            or (self.stride == (1, 1) and (H % 2 or W % 2))
        ):
            return super().forward(x)
        if self.stride == (2, 2):  # they need but one of the parts
            return F.conv2d(x[:, :, ::2, ::2], self.weight, None, 1, half, 1, C)
        parts = (
            x.permute(0, 2, 3, 1)
            .reshape(N, H // 2, 2, W // 2, 2, C)
            .transpose(2, 3)
            .reshape(N, H // 2, W // 2, 4 * C)
        )
        out = F.conv2d(
            parts.permute(0, 3, 1, 2), self.weight.repeat(4, 1, 1, 1), None, 1, half, 1, 4 * C
        ).permute(0, 2, 3, 1)
        return (
            out.reshape(N, H // 2, W // 2, 2, 2, C)
            .transpose(2, 3)
            .reshape(N, H, W, C)
            .permute(0, 3, 1, 2)
        )


class FactorizedReduce(nn.Module):
    """Half the size, with half of the channels from even pixels and half from odd ones.

    So no pixel is lost altogether.
    """

    def __init__(self, C: int, K: int, norm: AnyNorm, affine: bool) -> None:
        super().__init__()
        if K % 2:
            raise ValueError(f"K={K} channels cannot be halved; expected an even number")
        self.relu = nn.ReLU()
        self.conv_1, self.conv_2 = (nn.Conv2d(C, K // 2, 1, 2, bias=False) for _ in range(2))
        self.bn = norm(K, affine=affine)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % 2 or x.shape[3] % 2:
            raise ValueError(
                f"maps of {x.shape[2]}x{x.shape[3]} cannot be halved; "
                "expected even sizes (images of a multiple of 4)"
            )
        x = self.relu(x)
        out: Tensor = self.bn(torch.cat([self.conv_1(x), self.conv_2(x[:, :, 1:, 1:])], 1))
        return out


class Zero(nn.Module):
    """Nothing, of the size that the others give."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x[:, :, :: self.stride, :: self.stride])


def _depthwise(
    C: int, size: int, stride: int, dilation: int, norm: AnyNorm, affine: bool
) -> list[nn.Module]:
    """A convolution of each channel alone, a 1x1 convolution, normalizer."""
    return [Alone(C, size, stride, dilation), conv(C, C, 1), norm(C, affine=affine)]


def _sep(size: int) -> Make:
    def make(C: int, stride: int, norm: AnyNorm, affine: bool) -> nn.Module:
        first, second = (_depthwise(C, size, s, 1, norm, affine) for s in (stride, 1))
        return nn.Sequential(*first, nn.ReLU(), *second)

    return make


def _dil(size: int) -> Make:
    return lambda C, stride, norm, affine: nn.Sequential(
        *_depthwise(C, size, stride, 2, norm, affine)
    )


def _same(C: int, stride: int, norm: AnyNorm, affine: bool) -> nn.Module:  # noqa: ARG001
    return nn.Identity()


class Kind(NamedTuple):
    """A kind of operation: how it begins, and how it goes on."""

    begins: str
    goes_on: Make


KINDS: dict[str, Kind] = {
    "none": Kind("same", lambda C, stride, norm, affine: Zero(stride)),  # noqa: ARG005
    "max_pool_3x3": Kind("max", _same),
    "avg_pool_3x3": Kind("avg", _same),
    "skip_connect": Kind(
        "same",
        lambda C, stride, norm, affine: (
            FactorizedReduce(C, C, norm, affine) if stride == 2 else nn.Identity()
        ),
    ),
    "sep_conv_3x3": Kind("relu", _sep(3)),
    "sep_conv_5x5": Kind("relu", _sep(5)),
    "dil_conv_3x3": Kind("relu", _dil(3)),
    "dil_conv_5x5": Kind("relu", _dil(5)),
}


def beginnings(C: int, stride: int, norm: AnyNorm, searching: bool) -> nn.ModuleDict:
    """First parts of operations by name. While searching, pools are normalized."""
    pools = {
        "max": nn.MaxPool2d(3, stride, 1),
        "avg": nn.AvgPool2d(3, stride, 1, count_include_pad=False),
    }
    normalized = {
        name: nn.Sequential(pool, norm(C, affine=False)) if searching else pool
        for name, pool in pools.items()
    }
    return nn.ModuleDict({"same": nn.Identity(), "relu": nn.ReLU(), **normalized})


def operation(name: str, C: int, stride: int, norm: AnyNorm) -> nn.Module:
    """Operation of a found network, by name."""
    kind = KINDS[name]
    parts = [beginnings(C, stride, norm, False)[kind.begins], kind.goes_on(C, stride, norm, True)]
    real = [part for part in parts if not isinstance(part, nn.Identity)]
    return nn.Sequential(*real) if len(real) > 1 else real[0] if real else nn.Identity()

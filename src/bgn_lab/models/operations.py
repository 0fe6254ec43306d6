"""The operations on the edges of cells (Liu et al. 2019), all from C channels to C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bgn_lab.models.resnet import conv
from bgn_lab.norms import AnyNorm


def convolved(C: int, K: int, norm: AnyNorm, affine: bool) -> nn.Sequential:
    """ReLU, 1x1 convolution, normaliser."""
    return nn.Sequential(nn.ReLU(), conv(C, K, 1), norm(K, affine=affine))


def _depthwise(C: int, size: int, stride: int, dilation: int, norm: AnyNorm, affine: bool) -> list[nn.Module]:
    """ReLU, a convolution of each channel alone, a 1x1 convolution, normaliser."""
    alone = nn.Conv2d(C, C, size, stride, dilation * (size // 2), dilation, groups=C, bias=False)
    return [nn.ReLU(), alone, conv(C, C, 1), norm(C, affine=affine)]


class FactorizedReduce(nn.Module):
    """Half the size without losing every second pixel altogether: one half of the channels from even ones, one from odd ones."""

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
                f"maps of {x.shape[2]}x{x.shape[3]} cannot be halved; expected even sizes (images of a multiple of 4)"
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


def _pool(kind: Callable[..., nn.Module], **options: Any) -> Callable[..., nn.Module]:
    def make(C: int, stride: int, norm: AnyNorm, searching: bool) -> nn.Module:
        pool = kind(3, stride, 1, **options)
        return nn.Sequential(pool, norm(C, affine=False)) if searching else pool

    return make


def _skip(C: int, stride: int, norm: AnyNorm, searching: bool) -> nn.Module:
    return nn.Identity() if stride == 1 else FactorizedReduce(C, C, norm, not searching)


def _sep(size: int) -> Callable[..., nn.Module]:
    def make(C: int, stride: int, norm: AnyNorm, searching: bool) -> nn.Module:
        first, second = (_depthwise(C, size, s, 1, norm, not searching) for s in (stride, 1))
        return nn.Sequential(*first, *second)

    return make


def _dil(size: int) -> Callable[..., nn.Module]:
    def make(C: int, stride: int, norm: AnyNorm, searching: bool) -> nn.Module:
        return nn.Sequential(*_depthwise(C, size, stride, 2, norm, not searching))

    return make


MAKE: dict[str, Callable[..., nn.Module]] = {
    "none": lambda C, stride, norm, searching: Zero(stride),  # noqa: ARG005
    "max_pool_3x3": _pool(nn.MaxPool2d),
    "avg_pool_3x3": _pool(nn.AvgPool2d, count_include_pad=False),
    "skip_connect": _skip,
    "sep_conv_3x3": _sep(3),
    "sep_conv_5x5": _sep(5),
    "dil_conv_3x3": _dil(3),
    "dil_conv_5x5": _dil(5),
}


def operation(name: str, C: int, stride: int, norm: AnyNorm, searching: bool) -> nn.Module:
    """By name. While searching, pools are normalised too, and no normaliser has weight and bias."""
    return MAKE[name](C, stride, norm, searching)

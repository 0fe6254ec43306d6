"""Wide residual networks (Zagoruyko and Komodakis 2016) with any normalizer, for small images."""

from __future__ import annotations

import math
import re

from torch import Tensor, nn

from bgn_lab.models.resnet import conv
from bgn_lab.norms import Norm


class Block(nn.Module):
    """Normalize, activate, convolve; twice.

    Where the shape changes, the shortcut begins after the first activation.
    """

    def __init__(self, C: int, K: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.bn1, self.conv1 = norm(C), conv(C, K, 3, stride)
        self.bn2, self.conv2 = norm(K), conv(K, K, 3)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None if C == K and stride == 1 else conv(C, K, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(x))
        around = x if self.shortcut is None else self.shortcut(y)
        out: Tensor = around + self.conv2(self.relu(self.bn2(self.conv1(y))))
        return out


class WideResNet(nn.Module):
    """A convolution to 16 channels, then three stages of blocks.

    The stages are 16, 32 and 64 times ``width`` channels wide.
    """

    def __init__(
        self, depth: int, width: int, norm: Norm, classes: int, channels: int = 3, stride: int = 1
    ) -> None:
        super().__init__()
        self.conv1 = conv(channels, 16, 3, stride)
        C, blocks = 16, []
        for i in range(3):
            K = 16 * width * 2**i
            for j in range((depth - 4) // 6):
                blocks.append(Block(C, K, 2 if i and not j else 1, norm))
                C = K
        self.blocks = nn.Sequential(*blocks)
        self.bn, self.relu = norm(C), nn.ReLU(inplace=True)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(C, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                size = module.kernel_size[0] * module.kernel_size[1]
                nn.init.normal_(module.weight, std=math.sqrt(2 / (size * module.out_channels)))
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.blocks(self.conv1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def wide_resnet(
    name: str, norm: Norm, classes: int, channels: int = 3, stride: int = 1
) -> WideResNet:
    """A wide residual network by its name, wrn-DEPTH-WIDTH.

    >>> from torch.nn import BatchNorm2d
    >>> sum(p.numel() for p in wide_resnet("wrn-10-2", BatchNorm2d, 10).parameters())
    303706
    """
    found = re.fullmatch(r"wrn-(\d+)-(\d+)", name)
    if not found or int(found[1]) < 10 or int(found[1]) % 6 != 4 or int(found[2]) < 1:
        raise ValueError(
            f"model={name!r} is unknown; expected wrn-DEPTH-WIDTH with a depth of 10, 16, 22, ..., "
            "such as wrn-10-2"
        )
    return WideResNet(int(found[1]), int(found[2]), norm, classes, channels, stride)

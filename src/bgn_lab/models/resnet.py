"""Residual networks (He et al. 2016) with any normalizer.

One class has two families. For large images: 10, 18, 34, 50, 101 layers, with torchvision's
state_dict keys and its place for the stride of a bottleneck (the 3x3 convolution). For small
images, as in He's CIFAR experiments: 8, 14, 20, ... layers, three stages 16, 32 and 64 wide, here
with a 1x1 convolution on shortcuts that change shape.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from bgn import checks
from bgn_lab.norms import Norm


def conv(C: int, K: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Without a bias, which the normalizer behind it has."""
    return nn.Conv2d(C, K, size, stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions."""

    expansion = 1

    def __init__(self, C: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(C, width, 3, stride), norm(width)
        self.conv2, self.bn2 = conv(width, width, 3), norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(C, width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y = y + (x if self.downsample is None else self.downsample(x))
        out: Tensor = self.relu(y)
        return out


class Bottleneck(nn.Module):
    """A 3x3 convolution between two of 1x1; it has the stride."""

    expansion = 4

    def __init__(self, C: int, width: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(C, width, 1), norm(width)
        self.conv2, self.bn2 = conv(width, width, 3, stride), norm(width)
        self.conv3, self.bn3 = conv(width, self.expansion * width, 1), norm(self.expansion * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(C, self.expansion * width, stride, norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y = y + (x if self.downsample is None else self.downsample(x))
        out: Tensor = self.relu(y)
        return out


def _shortcut(C: int, K: int, stride: int, norm: Norm) -> nn.Module | None:
    return None if stride == 1 and C == K else nn.Sequential(conv(C, K, 1, stride), norm(K))


class ResNet(nn.Module):
    """Stages of blocks, each twice as wide and half as large as the one before.

    The module's text describes the two families.
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        blocks: tuple[int, ...],
        width: int,
        norm: Norm,
        classes: int,
        channels: int = 3,
        small: bool = False,
        stride: int = 2,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(channels, width, 3 if small else 7, stride), norm(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        widths = [width, *(block.expansion * width * 2**i for i in range(len(blocks)))]
        self.stages = len(blocks)
        for i, (C, K) in enumerate(pairwise(widths)):
            first = block(C, width * 2**i, 1 if i == 0 else 2, norm)
            stage = [first, *(block(K, width * 2**i, 1, norm) for _ in range(blocks[i] - 1))]
            self.add_module(f"layer{i + 1}", nn.Sequential(*stage))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.out_features = widths[-1]
        self.fc = nn.Linear(self.out_features, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.trunk(self.stem(x)))
        return logits

    def stem(self, x: Tensor) -> Tensor:
        """Up to the end of the first stage."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        y: Tensor = self.get_submodule("layer1")(x)
        return y

    def trunk(self, x: Tensor) -> Tensor:
        """The stages from there to the features (N, K)."""
        for i in range(1, self.stages):
            x = getattr(self, f"layer{i + 1}")(x)
        return torch.flatten(self.avgpool(x), 1)


_LARGE: dict[str, tuple[type[BasicBlock | Bottleneck], tuple[int, ...]]] = {
    "resnet10": (BasicBlock, (1, 1, 1, 1)),
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}
_SMALL = {f"resnet{6 * n + 2}": n for n in (1, 2, 3, 5, 7, 9, 18)}
MODELS = (*_SMALL, *_LARGE)


def resnet(
    name: str,
    norm: Norm,
    classes: int,
    channels: int = 3,
    width: int | None = None,
    stride: int | None = None,
) -> ResNet:
    """A residual network by name; ``width`` and ``stride`` are those of the first convolution.

    >>> from torch.nn import BatchNorm2d
    >>> sum(p.numel() for p in resnet("resnet50", BatchNorm2d, 1000).parameters())
    25557032
    """
    checks.one_of("model", name, MODELS)
    if name in _LARGE:
        block, blocks = _LARGE[name]
        return ResNet(block, blocks, width or 64, norm, classes, channels, stride=stride or 2)
    return ResNet(
        BasicBlock, (_SMALL[name],) * 3, width or 16, norm, classes, channels, True, stride or 1
    )

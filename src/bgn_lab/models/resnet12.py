"""ResNet-12 of the few-shot literature (Oreshkin et al. 2018) and a classifier by cosines.

The classifier is that of Gidaris and Komodakis (2018).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.models.resnet import conv
from bgn_lab.norms import Norm

ACTIVATIONS = {"relu": nn.ReLU, "swish": nn.SiLU}


class Block(nn.Module):
    """Three 3x3 convolutions beside one of 1x1, then half the size."""

    def __init__(self, C: int, K: int, norm: Norm, activation: str, last: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(C, K, 3), norm(K)
        self.conv2, self.bn2 = conv(K, K, 3), norm(K)
        self.conv3, self.bn3 = conv(K, K, 3), norm(K)
        self.shortcut, self.bn = conv(C, K, 1), norm(K)
        self.activation = ACTIVATIONS[activation](inplace=True)
        self.end = nn.Identity() if last else self.activation
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation(self.bn1(self.conv1(x)))
        y = self.activation(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y)) + self.bn(self.shortcut(x))
        out: Tensor = self.pool(self.end(y))
        return out


class ResNet12(nn.Module):
    """Features: four blocks, each twice as wide as the one before, and the mean over the map.

    ``last`` says whether the last block ends with its activation; without it features may be
    negative, which suits cosines.

    >>> from torch.nn import BatchNorm2d
    >>> sum(p.numel() for p in ResNet12(BatchNorm2d).parameters())
    7996800
    """

    def __init__(
        self,
        norm: Norm,
        channels: int = 3,
        width: int = 64,
        activation: str = "relu",
        last: bool = True,
    ) -> None:
        super().__init__()
        widths = [channels, *(width * 2**i for i in range(4))]
        ends = [False, False, False, not last]
        self.blocks = nn.Sequential(
            *(
                Block(C, K, norm, activation, end)
                for (C, K), end in zip(pairwise(widths), ends, strict=True)
            )
        )
        self.features = widths[-1]
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)  # (N, K, H, W)
        return y.mean((2, 3))


class CosineClassifier(nn.Module):
    """logits = s * (cos(f, w_c) + b): how near a feature f is to the direction of each class c.

    s and b are learned.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features) * math.sqrt(2 / features))
        self.scale = nn.Parameter(torch.tensor(10.0))
        self.bias = nn.Parameter(torch.tensor(0.0))

    def forward(self, f: Tensor) -> Tensor:
        return self.scale * (F.linear(F.normalize(f), F.normalize(self.weight)) + self.bias)


class FewShotNetwork(nn.Module):
    """Features and the classifier of the base classes."""

    def __init__(self, features: ResNet12, classes: int) -> None:
        super().__init__()
        self.features, self.classifier = features, CosineClassifier(features.features, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x))
        return logits


def imprint(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """Imprint weights: (N, K) features of labeled images -> (classes, K).

    The direction of each class is the mean of the directions of its features.

    >>> imprint(torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 0, 1]), 2)
    tensor([[0.7071, 0.7071],
            [0.0000, 1.0000]])
    """
    f = F.normalize(features)
    return F.normalize(
        torch.zeros(classes, f.shape[1], dtype=f.dtype, device=f.device).index_add_(0, y, f)
    )

"""MobileNetV2 (Sandler et al. 2018) with any normalizer, and with torchvision's state_dict keys."""

from __future__ import annotations

from itertools import islice

from torch import Tensor, nn

from bgn_lab.models.resnet import conv
from bgn_lab.norms import Norm

# of each stage: expansion, channels, blocks, stride of the first block
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
STEM = 4  # features up to the end of the stage with stride 4


def unit(C: int, K: int, size: int, norm: Norm, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolve, normalize, activate."""
    convolution = nn.Conv2d(C, K, size, stride, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, norm(K), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Widen by a 1x1 convolution, filter every channel by a 3x3 one, project to few channels.

    No activation follows the projection: on few channels it would lose too much.
    """

    def __init__(self, C: int, K: int, expansion: int, stride: int, norm: Norm) -> None:
        super().__init__()
        wide = expansion * C
        widen = [unit(C, wide, 1, norm)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *widen, unit(wide, wide, 3, norm, stride, groups=wide), conv(wide, K, 1), norm(K)
        )
        self.residual = stride == 1 and C == K

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """A convolution, 17 inverted residuals, a 1x1 convolution: ``classifier(trunk(stem(x)))``."""

    out_features = 1280  # of trunk

    def __init__(self, norm: Norm, classes: int, channels: int = 3) -> None:
        super().__init__()
        C = 32
        layers: list[nn.Module] = [unit(channels, C, 3, norm, stride=2)]
        for expansion, K, count, stride in STAGES:
            for i in range(count):
                layers.append(InvertedResidual(C, K, expansion, 1 if i else stride, norm))
                C = K
        self.features = nn.Sequential(*layers, unit(C, self.out_features, 1, norm))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(self.out_features, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
                nn.init.zeros_(module.bias)

    def stem(self, x: Tensor) -> Tensor:
        """Layers to the end of the first stage at stride 4: (N, C, H, W) -> (N, 24, H/4, W/4)."""
        for layer in islice(self.features, STEM):
            x = layer(x)
        return x

    def trunk(self, x: Tensor) -> Tensor:
        """The others, and the mean over the map: (N, 24, H/4, W/4) -> (N, 1280)."""
        for layer in islice(self.features, STEM, None):
            x = layer(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.trunk(self.stem(x)))
        return logits


def mobilenet_v2(norm: Norm, classes: int, channels: int = 3) -> MobileNetV2:
    """MobileNetV2 in its original width.

    >>> from torch.nn import BatchNorm2d
    >>> sum(p.numel() for p in mobilenet_v2(BatchNorm2d, 1000).parameters())
    3504872
    """
    return MobileNetV2(norm, classes, channels)

"""Feature maps of a backbone at several strides, instead of its classes."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from bgn_lab.models.mobilenet import STAGES, MobileNetV2
from bgn_lab.models.resnet import ResNet

STRIDES = (4, 8, 16, 32)


class Pyramid(Protocol):
    """A backbone without its classifier."""

    channels: tuple[int, ...]
    """Of the maps at stride 4, 8, 16 and 32."""

    def __call__(self, x: Tensor) -> list[Tensor]:
        """The maps, the largest first."""


class _Place(NamedTuple):
    """Blocks of MobileNetV2 whose output is a map, and its channels."""

    last: int
    channels: int


def _places() -> tuple[_Place, ...]:
    """The last block at each stride, from the table of stages."""
    found: dict[int, _Place] = {}
    number, stride = 0, 2
    for _, channels, count, step in STAGES:
        number, stride = number + count, stride * step
        found[stride] = _Place(number, channels)
    return tuple(found[stride] for stride in STRIDES)


class MobilePyramid(nn.Module):
    """MobileNetV2 without its last convolution: 24, 32, 96 and 320 channels.

    Its keys are those of torchvision, after "features.".
    """

    def __init__(self, backbone: MobileNetV2) -> None:
        super().__init__()
        self.places = _places()
        self.features = nn.Sequential(*islice(backbone.features, self.places[-1].last + 1))
        self.channels = tuple(place.channels for place in self.places)

    def forward(self, x: Tensor) -> list[Tensor]:
        wanted, found = {place.last for place in self.places}, []
        for number, layer in enumerate(self.features):
            x = layer(x)
            if number in wanted:
                found.append(x)
        return found


class ResNetPyramid(nn.Module):
    """A residual network of four stages."""

    def __init__(self, backbone: ResNet) -> None:
        super().__init__()
        self.backbone = backbone
        del backbone.fc
        last = backbone.out_features
        self.channels = tuple(last // 2**k for k in (3, 2, 1, 0))

    def forward(self, x: Tensor) -> list[Tensor]:
        net = self.backbone
        x = net.stem(x)
        found = [x]
        for i in range(1, net.stages):
            x = net.get_submodule(f"layer{i + 1}")(x)
            found.append(x)
        return found


def pyramid(backbone: nn.Module) -> MobilePyramid | ResNetPyramid:
    """The maps of one of the networks of :data:`bgn_lab.models.MODELS`."""
    if isinstance(backbone, MobileNetV2):
        return MobilePyramid(backbone)
    assert isinstance(backbone, ResNet)
    return ResNetPyramid(backbone)


def dilate(maps: MobilePyramid | ResNetPyramid) -> None:
    """Let the last stage keep stride 16: its convolutions reach twice as far instead (DeepLab)."""
    if isinstance(maps, MobilePyramid):
        layers = list(maps.features)[maps.places[-2].last + 1 :]
    else:
        layers = [maps.backbone.get_submodule(f"layer{maps.backbone.stages}")]
    for layer in layers:
        for module in layer.modules():
            if not isinstance(module, nn.Conv2d):
                continue
            strided = module.stride == (2, 2)
            module.stride = (1, 1)
            if module.kernel_size == (3, 3) and not strided:
                module.dilation = module.padding = (2, 2)

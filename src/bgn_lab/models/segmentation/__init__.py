"""Networks that give every pixel a class, by name: unet, or a head on a backbone.

To add a head: a class that takes the channels of the maps, and a line in ``HEADS``.
"""

from __future__ import annotations

from torch import Tensor, nn

from bgn import checks
from bgn_lab.models.segmentation.heads import FPN, DeepLab, enlarge
from bgn_lab.models.segmentation.pyramid import MobilePyramid, ResNetPyramid, dilate, pyramid
from bgn_lab.models.segmentation.unet import UNet
from bgn_lab.norms import Norm

UNET = "unet"
HEADS: dict[str, type[FPN] | type[DeepLab]] = {"fpn": FPN, "deeplab": DeepLab}
DILATED = ("deeplab",)
BACKBONES = ("mobilenet-v2", "resnet10", "resnet18", "resnet34", "resnet50", "resnet101")
NAMES = (UNET, *(f"{head}-{backbone}" for head in HEADS for backbone in BACKBONES))
WIDTH = {UNET: 16, "fpn": 64, "deeplab": 96}
"""Channels of a U-Net's first stage, or of a head, by default."""


class Segmenter(nn.Module):
    """A backbone and a head, with logits at the size of the image: (N, C, H, W) -> (N, K, H, W)."""

    def __init__(self, backbone: MobilePyramid | ResNetPyramid, head: FPN | DeepLab) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> Tensor:
        return enlarge(self.head(self.backbone(x)), x)


def parts(name: str) -> tuple[str, str]:
    """Head and backbone; of unet there is no backbone.

    >>> parts("deeplab-mobilenet-v2"), parts("unet")
    (('deeplab', 'mobilenet-v2'), ('unet', ''))
    """
    checks.one_of("model", name, NAMES)
    head, _, backbone = name.partition("-")
    return head, backbone


def segmenter(
    name: str, backbone: nn.Module, classes: int, norm: Norm, width: int | None = None
) -> Segmenter:
    """A head on a classifier whose own head is dropped.

    >>> from torch.nn import BatchNorm2d
    >>> from bgn_lab import models
    >>> net = models.network("mobilenet-v2", BatchNorm2d, 2)
    >>> made = segmenter("fpn-mobilenet-v2", net, 11, BatchNorm2d)
    >>> sum(p.numel() for p in made.parameters())
    1880139
    """
    head, _ = parts(name)
    maps = pyramid(backbone)
    if head in DILATED:
        dilate(maps)
    return Segmenter(maps, HEADS[head](maps.channels, classes, width or WIDTH[head], norm))


def unet(
    norm: Norm, classes: int, channels: int, spatial: int = 2, width: int | None = None
) -> UNet:
    """A U-Net from scratch.

    >>> from torch.nn import BatchNorm3d
    >>> sum(p.numel() for p in unet(BatchNorm3d, 4, 1, spatial=3, width=8).parameters())
    365564
    """
    return UNet(norm, classes, channels, width or WIDTH[UNET], spatial)

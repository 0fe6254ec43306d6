"""Heads that turn the maps of a backbone into a class for every pixel."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.models.resnet import conv
from bgn_lab.norms import Norm


def enlarge(x: Tensor, like: Tensor) -> Tensor:
    """A map at the size of another one, interpolated."""
    if x.shape[2:] == like.shape[2:]:
        return x
    mode = {4: "bilinear", 5: "trilinear"}[x.dim()]
    return F.interpolate(x, like.shape[2:], mode=mode, align_corners=False)


def unit(C: int, K: int, size: int, norm: Norm, dilation: int = 1) -> nn.Sequential:
    """Convolve, normalize, activate."""
    layer = conv(C, K, size)
    if dilation > 1:
        layer.dilation = layer.padding = (dilation, dilation)
    return nn.Sequential(layer, norm(K), nn.ReLU(inplace=True))


class FPN(nn.Module):
    """Maps of all strides at one width, added from the coarsest to the finest (Lin et al. 2017)."""

    def __init__(self, channels: tuple[int, ...], classes: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(
            nn.Sequential(conv(C, width, 1), norm(width)) for C in channels
        )
        self.smooth = unit(width, width, 3, norm)
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        own = [layer(x) for layer, x in zip(self.lateral, maps, strict=True)]
        x = own.pop()
        while own:
            finer = own.pop()
            x = finer + enlarge(x, finer)
        logits: Tensor = self.classify(self.smooth(F.relu(x)))
        return logits


class DeepLab(nn.Module):
    """Atrous spatial pyramid pooling, then a decoder with the finest map (DeepLabV3+).

    The branch of the mean over the image has no normalizer: its map is 1x1, where BN of one image
    has one value for each statistic, and IN none but the bias.
    """

    RATES = (6, 12)

    def __init__(self, channels: tuple[int, ...], classes: int, width: int, norm: Norm) -> None:
        super().__init__()
        C, fine = channels[-1], max(width // 4, 16)
        self.branches = nn.ModuleList(
            [unit(C, width, 1, norm), *(unit(C, width, 3, norm, rate) for rate in self.RATES)]
        )
        self.pooled = nn.Conv2d(C, width, 1)
        self.project = unit(width * (len(self.branches) + 1), width, 1, norm)
        self.fine = unit(channels[0], fine, 1, norm)
        self.decode = unit(width + fine, width, 3, norm)
        self.classify = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[Tensor]) -> Tensor:
        x, finest = maps[-1], maps[0]
        mean = F.relu(self.pooled(x.mean((2, 3), keepdim=True)))
        branches = [branch(x) for branch in self.branches]
        x = self.project(torch.cat([*branches, mean.expand_as(branches[0])], 1))
        x = torch.cat([enlarge(x, finest), self.fine(finest)], 1)
        logits: Tensor = self.classify(self.decode(x))
        return logits

"""U-Net (Ronneberger et al. 2015) with any normalizer, for images and for volumes."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.models.segmentation.heads import enlarge
from bgn_lab.norms import Norm

_CONV: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
_POOL = {2: F.max_pool2d, 3: F.max_pool3d}
DEEPER = {2: 4, 3: 3}
"""Stages below the first, by the number of spatial dimensions."""


def double(C: int, K: int, norm: Norm, spatial: int) -> nn.Sequential:
    """Twice: convolve, normalize, activate."""
    made: list[nn.Module] = []
    for own in (C, K):
        layer = _CONV[spatial](own, K, 3, padding=1, bias=False)
        made += [layer, norm(K), nn.ReLU(inplace=True)]
    return nn.Sequential(*made)


class UNet(nn.Module):
    """Stages that halve the map and double the channels, and the way back up beside them.

    The way up interpolates, so any size of image fits.
    """

    def __init__(
        self, norm: Norm, classes: int, channels: int = 3, width: int = 16, spatial: int = 2
    ) -> None:
        super().__init__()
        self.pool = _POOL[spatial]
        widths = [width * 2**k for k in range(DEEPER[spatial] + 1)]
        self.down = nn.ModuleList()
        C = channels
        for K in widths:
            self.down.append(double(C, K, norm, spatial))
            C = K
        self.up = nn.ModuleList()
        for K in reversed(widths[:-1]):
            self.up.append(double(C + K, K, norm, spatial))
            C = K
        self.classify = _CONV[spatial](C, classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Conv3d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.normal_(self.classify.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        beside: list[Tensor] = []
        for number, stage in enumerate(self.down):
            x = stage(self.pool(x, 2, ceil_mode=True) if number else x)
            beside.append(x)
        beside.pop()
        for stage in self.up:
            own = beside.pop()
            x = stage(torch.cat([enlarge(x, own), own], 1))
        logits: Tensor = self.classify(x)
        return logits

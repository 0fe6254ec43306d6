"""Networks, each with any normaliser."""

from __future__ import annotations

from torch import nn

from bgn import checks
from bgn_lab.models.mobilenet import mobilenet_v2
from bgn_lab.models.resnet import MODELS as RESNETS
from bgn_lab.models.resnet import resnet
from bgn_lab.norms import Norm

MOBILE = "mobilenet-v2"
MODELS = (*RESNETS, MOBILE)


def network(
    name: str,
    norm: Norm,
    classes: int,
    channels: int = 3,
    width: int | None = None,
    stride: int | None = None,
) -> nn.Module:
    """A classifier by name; ``width`` and ``stride`` are those of the first convolution, where that can be chosen.

    >>> sum(p.numel() for p in network("mobilenet-v2", nn.BatchNorm2d, 1000).parameters())
    3504872
    """
    checks.one_of("model", name, MODELS)
    if name != MOBILE:
        return resnet(name, norm, classes, channels, width, stride)
    if (width, stride) != (None, None):
        raise ValueError(f"width={width}, stride={stride} are not for {MOBILE}; expected none")
    return mobilenet_v2(norm, classes, channels)


def head(name: str) -> str:
    """What the last layer of a network is called."""
    return "classifier" if name == MOBILE else "fc"

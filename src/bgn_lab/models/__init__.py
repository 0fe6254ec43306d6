"""Networks by name, each with any normalizer.

To add one: a file with a function, and a line in ``MODELS``. Networks of other packages need
neither: ``timm:NAME``, and ``PACKAGE:FUNCTION`` for a function of the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from bgn import checks
from bgn_lab import imports
from bgn_lab.models.mobilenet import mobilenet_v2
from bgn_lab.models.resnet import MODELS as RESNETS
from bgn_lab.models.resnet import resnet
from bgn_lab.models.wide_resnet import wide_resnet
from bgn_lab.norms import Norm

OWN = "a function PACKAGE:FUNCTION, called as function(norm, classes, channels)"


@dataclass(frozen=True)
class Model:
    """A row of the table."""

    build: Callable[..., nn.Module]
    """Called as build(name, norm, classes, channels, **options)."""
    options: tuple[str, ...] = ()
    """Which of width and stride it takes."""
    head: str = "fc"
    """Name of the last layer."""
    adaptable: bool = False
    """Whether it has ``stem``, ``trunk`` and ``out_features``, for domain adaptation."""


def _mobilenet(name: str, norm: Norm, classes: int, channels: int) -> nn.Module:  # noqa: ARG001
    return mobilenet_v2(norm, classes, channels)


def _timm(name: str, norm: Norm, classes: int, channels: int) -> nn.Module:
    create = imports.load("model", "timm:create_model", "timm:NAME with timm installed")

    def norm_layer(C: int, **options: Any) -> nn.Module:  # noqa: ARG001
        return norm(C)  # timm also passes device and dtype, or eps, which the recipe decides

    plain = name.partition(":")[2]
    try:
        made: nn.Module = create(
            plain, num_classes=classes, in_chans=channels, norm_layer=norm_layer
        )
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"model={name!r} cannot be made with norm_layer, num_classes and in_chans: {error};"
            " expected a network of timm.list_models() that takes these, such as timm:resnet18"
        ) from error
    return made


def _own(name: str, norm: Norm, classes: int, channels: int) -> nn.Module:
    made = imports.load("model", name, OWN)(norm, classes, channels)
    if not isinstance(made, nn.Module):
        raise TypeError(f"model={name!r} returned a {type(made).__name__}; expected a torch module")
    return made


MODELS = {
    **dict.fromkeys(RESNETS, Model(resnet, ("width", "stride"), adaptable=True)),
    "mobilenet-v2": Model(_mobilenet, head="classifier", adaptable=True),
}
# names that begin so, with a rest that the function understands
FAMILIES = {"wrn-": Model(wide_resnet, ("stride",)), "timm:": Model(_timm)}
ADAPTABLE = tuple(name for name, row in MODELS.items() if row.adaptable)


def find(name: str) -> Model:
    """The row of a network.

    >>> find("resnet50").options, find("wrn-10-2").options, find("my.code:net").options
    (('width', 'stride'), ('stride',), ())
    """
    family = next((row for start, row in FAMILIES.items() if name.startswith(start)), None)
    if family is not None:
        return family
    if ":" in name:
        return Model(_own)
    if name not in MODELS:
        raise ValueError(
            f"model={name!r} is not known; accepted: {', '.join(MODELS)}, wrn-DEPTH-WIDTH,"
            f" timm:NAME, or {OWN}{checks.did_you_mean(name, tuple(MODELS))}"
        )
    return MODELS[name]


def network(
    name: str,
    norm: Norm,
    classes: int,
    channels: int = 3,
    width: int | None = None,
    stride: int | None = None,
) -> nn.Module:
    """A classifier by name; ``width`` and ``stride`` are those of the first convolution.

    >>> sum(p.numel() for p in network("mobilenet-v2", nn.BatchNorm2d, 1000).parameters())
    3504872
    """
    row = find(name)
    given = {k: v for k, v in {"width": width, "stride": stride}.items() if v is not None}
    for option, value in given.items():
        if option not in row.options:
            raise ValueError(f"{option}={value} is not for model={name!r}; expected none")
    return row.build(name, norm, classes, channels, **given)


def head(name: str) -> str:
    """Name of a network's last layer."""
    return find(name).head

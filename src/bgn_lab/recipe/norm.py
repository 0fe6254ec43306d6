"""The part of a recipe that says which normalizer, and its partners."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from bgn import checks
from bgn.factory import BATCH_WIDE, NAMES
from bgn.groups import AUTO, PAPER
from bgn_lab import partners
from bgn_lab.recipe.part import Part, above_zero, in_range, positive_ints

GroupWord = Literal["paper", "auto"]
Center = Literal["group", "channel"]
GROUPED = ("gn", "gbgn", "bgn")


@dataclass(frozen=True)
class NormOptions(Part):
    """Options of the normalizer."""

    group: ClassVar[str] = "normalizer"

    norm: str = "bgn"
    """bn, in, ln, gn, pn, gbgn, bgn; or PACKAGE:CLASS, which is called with the channels; +ws,
    +renorm, +center and +frozen behind it stand for --standardize, --renorm, --center channel and
    --frozen"""
    groups: int | Literal["auto"] | None = field(
        default=None, metadata={"type": int | GroupWord | None}
    )
    """G of bgn, gn or gbgn; paper: the paper's for the experiment and batch size (the default for
    bgn); auto (bgn): what fits the layer's maps and the batch size"""
    instances: int | None = None
    """instead of --groups for bgn: minimum number of values per statistic, by which each layer
    gets its G"""
    norm_momentum: float = 0.1
    """weight of a batch in the running statistics"""
    norm_eps: float = 1e-5
    """added to variances"""
    standardize: bool = False
    """standardize the weights of the convolutions that a normalizer follows"""
    renorm: bool = False
    """correct training batches towards the running statistics (batch renormalization); bn, gbgn and
    bgn"""
    renorm_r_max: float = 3.0
    """largest correction of the scale by --renorm; 1 is none"""
    renorm_d_max: float = 5.0
    """largest correction of the mean by --renorm, in standard deviations; 0 is none"""
    renorm_warmup: int | None = None
    """steps over which the corrections of --renorm grow from none; by default a quarter of the
    run's, at most 1000; layers with pretrained statistics need none"""
    center: Center = "group"
    """what has a mean of its own: each group, or each channel (bgn, with groups of whole channels;
    the paper's G is changed to the nearest that fits)"""

    frozen: bool = False
    """fix statistics, weight and bias of the layers that begin with pretrained statistics; bn, gbgn
    and bgn"""

    def __post_init__(self) -> None:
        super().__post_init__()
        name, given = partners.split(self.norm)
        for option, value in {"norm": name, **given}.items():
            self._set(option, value)
        if ":" not in self.norm:
            checks.one_of("norm", self.norm, NAMES)
        groups: int | str | None = self.groups
        if isinstance(groups, str):
            checks.one_of("groups", groups, get_args(GroupWord))
        if groups is not None and self.norm not in GROUPED:
            raise ValueError(
                f"groups={groups} has no meaning for norm={self.norm!r}; expected none"
            )
        if groups == PAPER:
            self._set("groups", None)
        elif groups == AUTO and (self.norm != "bgn" or self.instances is not None):
            raise ValueError(
                f"groups={AUTO!r} is for norm='bgn' without instances; norm={self.norm!r},"
                f" instances={self.instances}"
            )
        positive_ints(self, *(() if groups == AUTO else ("groups",)), "instances")
        if self.instances is not None and (self.norm != "bgn" or self.groups is not None):
            raise ValueError(
                f"instances={self.instances} is for norm='bgn' without groups;"
                f" norm={self.norm!r}, groups={self.groups}"
            )
        in_range(self, norm_momentum=1.0)
        above_zero(self, "norm_eps")
        self._check_partners()

    def _check_partners(self) -> None:
        """Refuse partners that the normalizer cannot have, and bad settings of them."""
        checks.one_of("center", self.center, get_args(Center))
        if self.center == "channel" and self.norm != "bgn":
            raise ValueError(
                f"center='channel' has no meaning for norm={self.norm!r}; expected norm='bgn', or"
                " center='group'"
            )
        if self.renorm and self.norm not in BATCH_WIDE:
            raise ValueError(
                f"renorm=True has no meaning for norm={self.norm!r}; expected one of"
                f" {', '.join(BATCH_WIDE)}, or renorm=False"
            )
        if self.frozen and self.norm not in BATCH_WIDE:
            raise ValueError(
                f"frozen=True has no meaning for norm={self.norm!r}, which has no running"
                f" statistics; expected one of {', '.join(BATCH_WIDE)}, or frozen=False"
            )
        if self.frozen and self.renorm:
            raise ValueError(
                "frozen=True and renorm=True exclude each other: frozen statistics are not those of"
                " a batch; expected one of them"
            )
        if self.frozen and self.standardize:
            raise ValueError(
                "frozen=True and standardize=True exclude each other: standardized weights are not"
                " those that the statistics are of; expected one of them"
            )
        for name, least in {"renorm_r_max": 1, "renorm_d_max": 0, "renorm_warmup": 0}.items():
            value = getattr(self, name)
            if value is not None and not least <= value < math.inf:
                raise ValueError(
                    f"{name}={value} is out of range; expected a finite number of at least {least}"
                )

    @property
    def by_maps(self) -> bool:
        """Whether a layer's G depends on the size of its maps."""
        return self.groups == AUTO or self.instances is not None

    def without_effect(self) -> tuple[str, ...]:
        """The momentum of running statistics where there are none; all of a class of one's own;
        partners that are off, so that runs from before there was a partner keep their keys."""
        unused = (*super().without_effect(), *partners.without(self))
        if ":" in self.norm:
            return (*unused, "norm_momentum", "norm_eps")
        tracked = self.norm in BATCH_WIDE
        return (*unused, *(() if tracked else ("norm_momentum",)))

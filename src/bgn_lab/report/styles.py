"""How the row of a normalizer looks in every picture of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bgn_lab.paper import NORMALIZERS
from bgn_lab.report.palette import RAMP

SHAPES = dict(
    zip(
        NORMALIZERS.values(),
        ("circle", "down", "up", "square", "diamond", "plus", "star"),
        strict=True,
    )
)
DASHES = "", "7 3", "2 3", "8 3 2 3", "12 3"
FEW = 2  # rows of a normalizer with the same partners that a hollow mark tells apart


class Style(NamedTuple):
    """Color by its name in the palette, mark, dashes."""

    color: str
    shape: str
    dashes: str = ""
    hollow: bool = False


def base(label: str) -> str:
    """The normalizer of a row, without partners and groups.

    >>> base("BGN + WS, G = 8"), base("BN")
    ('BGN', 'BN')
    """
    return label.partition(",")[0].partition(" + ")[0]


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """Styles of all rows.

    Rows of one normalizer share color and mark. Those with partners are dashed, a second G has
    hollow marks; if there are more G than two, each has a color of its own.

    >>> found = styles(["BN", "BN + WS", "BGN, G = 1", "BGN, G = 8"])
    >>> found["BN + WS"], found["BGN, G = 8"]
    (Style(color='bn', shape='circle', dashes='7 3', hollow=False),
     Style(color='bgn', shape='star', dashes='', hollow=True))
    """
    partners = list(dict.fromkeys(_partners(label) for label in labels))
    own = list(dict.fromkeys(name for label in labels if (name := base(label)) not in SHAPES))
    shapes = list(SHAPES.values())
    found = {}
    for label in labels:
        name = base(label)
        color = {shown: short for short, shown in NORMALIZERS.items()}.get(name, "own")
        same = [other for other in labels if other.partition(",")[0] == label.partition(",")[0]]
        which = same.index(label)
        dashes = DASHES[partners.index(_partners(label)) % len(DASHES)]
        shape = SHAPES[name] if name in SHAPES else shapes[own.index(name) % len(shapes)]
        if len(same) > FEW and which:
            color = f"ramp-{(which - 1) * (RAMP - 1) // max(len(same) - 2, 1)}"
            shape = shapes[which % len(shapes)]
        found[label] = Style(color, shape, dashes, hollow=0 < which < len(same) <= FEW)
    return found


def _partners(label: str) -> str:
    return label.partition(",")[0].partition(" + ")[2]

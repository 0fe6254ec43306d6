"""Partners: what a normalizer can be combined with, by words after a plus, as in ``bgn+ws``.

To add one: an option in ``NormOptions`` whose default switches it off, a line in ``PARTNERS``, and
what it does to a network in :func:`bgn_lab.norms.with_partners`. Names, tables, the identity of
runs and `bgn compare` follow from the line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bgn_lab.recipe import NormOptions


class Partner(NamedTuple):
    """A line of the table."""

    option: str
    """Name of the recipe's option."""
    label: str
    """In tables, after the name of the normalizer and a plus."""
    on: Any = True
    """Value of the option that the word stands for."""
    off: Any = False
    """Its default."""
    settings: tuple[str, ...] = ()
    """Further options, which mean nothing without it."""


RENORM_SETTINGS = "renorm_r_max", "renorm_d_max", "renorm_warmup"
PARTNERS = {
    "ws": Partner("standardize", "WS"),
    "renorm": Partner("renorm", "renorm", settings=RENORM_SETTINGS),
    "center": Partner("center", "centered", on="channel", off="group"),
    "frozen": Partner("frozen", "frozen"),
}
OPTIONS = tuple(partner.option for partner in PARTNERS.values())
ACCEPTED = ", ".join(f"+{word}" for word in PARTNERS)


def split(norm: str) -> tuple[str, dict[str, Any]]:
    """The normalizer, and the options that its partners set.

    >>> split("bgn+ws"), split("bn")
    (('bgn', {'standardize': True}), ('bn', {}))
    """
    name, *words = norm.split("+")
    for word in words:
        if word not in PARTNERS:
            raise ValueError(
                f"norm={norm!r} has the partner {word!r}; accepted after a normalizer: {ACCEPTED}"
            )
        if words.count(word) > 1:
            raise ValueError(f"norm={norm!r} has the partner {word!r} twice; expected it once")
    return name, {PARTNERS[word].option: PARTNERS[word].on for word in words}


def row(norm: str) -> dict[str, Any]:
    """Values of the recipe's options for a row of a table: the normalizer and all partners.

    >>> row("bgn+ws")
    {'norm': 'bgn', 'standardize': True, 'renorm': False, 'center': 'group', 'frozen': False}
    """
    name, given = split(norm)
    return {"norm": name, **{own.option: own.off for own in PARTNERS.values()}, **given}


def of(recipe: NormOptions) -> tuple[str, ...]:
    """Words of the partners that a recipe has, in the order of the table."""
    return tuple(word for word, own in PARTNERS.items() if getattr(recipe, own.option) != own.off)


def without(recipe: NormOptions) -> tuple[str, ...]:
    """Options of the partners that a recipe does not have, with their settings."""
    own = of(recipe)
    absent = (partner for word, partner in PARTNERS.items() if word not in own)
    return tuple(name for partner in absent for name in (partner.option, *partner.settings))


def name(recipe: NormOptions) -> str:
    """The normalizer with its partners, the inverse of :func:`split`: ``bgn+ws``."""
    return "+".join((recipe.norm, *of(recipe)))


def with_labels(name: str, recipe: NormOptions) -> str:
    """Name of a normalizer in tables, followed by those of the recipe's partners: ``BGN + WS``."""
    return " + ".join((name, *(PARTNERS[word].label for word in of(recipe))))

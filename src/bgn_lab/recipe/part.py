"""A part of a recipe: some options, and checks of their values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from bgn import checks


def positive_ints(recipe: object, *names: str) -> None:
    """Refuse anything but positive ints; None where that is the default."""
    for name in names:
        if getattr(recipe, name) is not None:
            checks.positive_int(name, getattr(recipe, name))


def in_range(recipe: Part, **most: float) -> None:
    for name, limit in most.items():
        if not 0 <= getattr(recipe, name) <= limit:
            raise ValueError(
                f"{name}={getattr(recipe, name)} is out of range; expected a number from 0 to"
                f" {limit}"
            )


def above_zero(recipe: object, *names: str) -> None:
    for name in names:
        if not 0 < getattr(recipe, name) < math.inf:
            raise ValueError(
                f"{name}={getattr(recipe, name)} is out of range; expected a number above 0"
            )


@dataclass(frozen=True)
class Part:
    """Some options of a recipe. Each part checks its own, after those of the parts below it."""

    group: ClassVar[str] = ""
    """Heading of the options in --help."""

    def __post_init__(self) -> None:
        """Refuse bad values."""

    def without_effect(self) -> tuple[str, ...]:
        """Fields that change nothing, given the others: they are no part of the identity."""
        return ()

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

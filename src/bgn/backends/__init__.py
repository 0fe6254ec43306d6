"""The implementations of the normalisers, and the choice between them.

The environment variable ``BGN_BACKEND`` forces one by name; ``auto``, the default, takes the best one available. It is
read once, when the package is imported.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import NamedTuple

from bgn.backends import reference

VARIABLE = "BGN_BACKEND"
AVAILABLE: dict[str, ModuleType] = {"reference": reference}  # best first


class Choice(NamedTuple):
    """A backend's name, and why it was taken."""

    name: str
    reason: str


def choose(asked: str) -> Choice:
    """The backend to use when the environment asks for ``asked``."""
    if asked == "auto":
        return Choice(next(iter(AVAILABLE)), "the best one available")
    if asked not in AVAILABLE:
        raise ValueError(f"{VARIABLE}={asked!r} is not a backend; accepted: auto, {', '.join(AVAILABLE)}")
    return Choice(asked, f"forced by {VARIABLE}={asked}")


choice = choose(os.environ.get(VARIABLE, "auto"))
backend = AVAILABLE[choice.name]

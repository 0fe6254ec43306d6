"""Types of values that were read from JSON: a small check against annotations of Python.

Folders of runs come from other people and other versions, and files get damaged. What passes here
cannot break a report.
"""

from __future__ import annotations

import json
import math
import types
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 2**63


class Positive(int):
    """An annotation for whole numbers from 1 on."""


class Share(float):
    """An annotation for numbers from 0 to 1."""


class Unbounded(float):
    """An annotation for finite numbers of any size, such as a loss that explodes."""


WORDS: dict[type, str] = {
    Positive: "int above 0", Share: "float from 0 to 1", Unbounded: "float",
}  # fmt: skip


def parse(text: str | bytes) -> dict[str, Any]:
    """A JSON object; numbers are finite."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}; expected an object")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no number of JSON")


def check(name: str, value: Any, kind: Any) -> None:
    """Raise a ValueError that names the value unless it is of this type.

    >>> check("lr", 1, float), check("tags", ["a"], tuple[str, ...])
    (None, None)
    >>> check("lr", "fast", float | None)
    Traceback (most recent call last):
    ...
    ValueError: lr='fast'; expected float | None
    """
    if not _fits(value, kind):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
        plain = isinstance(kind, type) and not get_args(kind)
        expected = WORDS.get(kind, kind.__name__) if plain else str(kind)
        raise ValueError(f"{name}={shown}; expected {expected}")


def _fits(value: Any, kind: Any) -> bool:
    if kind is Any:
        return True
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return value in parts
    if origin in (tuple, list):
        return isinstance(value, (list, tuple)) and all(_fits(item, parts[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if kind in (float, Share, Unbounded):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        most = 1 if kind is Share else math.inf if kind is Unbounded else LARGEST
        return number and math.isfinite(value) and (0 if kind is Share else -most) <= value <= most
    if kind in (int, Positive):
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= LARGEST
        return whole and (kind is int or value > 0)
    if kind is None or kind is type(None):
        return value is None
    return isinstance(value, str if kind is Path else kind)


@cache
def _annotations(cls: type) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


def check_fields(cls: type, values: dict[str, Any]) -> None:
    """The values of fields of a dataclass; fields that it does not have are its own to refuse."""
    for name, kind in _annotations(cls).items():
        if name in values:
            check(name, values[name], kind)

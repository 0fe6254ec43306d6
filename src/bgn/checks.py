"""Checks of arguments: errors name the argument, its value and what is accepted."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor


def positive_int(name: str, value: Any) -> int:
    """The value as an int; refuse everything but 1, 2, 3, ...

    Integers of other libraries, such as numpy's, are accepted. A bool is not a number here.
    """
    try:
        number: int = value if isinstance(value, int) else operator.index(value)
        if isinstance(number, bool):
            raise TypeError
    except TypeError:
        raise TypeError(
            f"{name}={value!r} is a {type(value).__name__}; expected a positive int"
        ) from None
    if number < 1:
        raise ValueError(f"{name}={number} is not positive; expected an int of at least 1")
    return number


def one_of(name: str, value: Any, accepted: Sequence[str]) -> None:
    """Refuse what is not among the accepted names, with a suggestion."""
    if value not in accepted:
        raise ValueError(
            f"{name}={value!r} is not known; accepted: {', '.join(accepted)}"
            f"{did_you_mean(value, accepted)}"
        )


def did_you_mean(value: Any, accepted: Sequence[str]) -> str:
    """The end of an error message that suggests the accepted name nearest to the value."""
    near = difflib.get_close_matches(str(value).lower(), accepted, n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""


def eps(value: Any) -> None:
    """Refuse an epsilon that could make the square root fail."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"eps={value!r} is a {type(value).__name__}; expected a float of at least 0"
        )
    if not 0 <= value < float("inf"):
        raise ValueError(f"eps={value} is out of range; expected a finite float of at least 0")


def momentum(value: Any) -> None:
    """Refuse what is no weight of a running average; None means the cumulative average."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"momentum={value!r} is a {type(value).__name__}; expected None or a float in [0, 1]"
        )
    if not 0 <= value <= 1:
        raise ValueError(f"momentum={value} is out of range; expected None or a float in [0, 1]")


def feature_map(input: Tensor) -> None:
    """Refuse what is not a floating-point (N, C, ...) tensor."""
    if input.dim() < 2:
        raise ValueError(
            f"input has {input.dim()} dimension(s), shape {tuple(input.shape)};"
            " expected (N, C, ...)"
        )
    if not input.dtype.is_floating_point:
        raise TypeError(f"input has dtype {input.dtype}; expected a floating-point dtype")


def vector(name: str, value: Tensor | None, size: int, per: str) -> None:
    """Refuse a parameter or buffer whose shape is not (size,)."""
    if value is not None and value.shape != (size,):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}; expected ({size},), one entry per {per}"
        )


def channels(input: Tensor, name: str, expected: int) -> None:
    """Refuse an input whose channels are not those of the layer."""
    if input.shape[1] != expected:
        raise ValueError(
            f"input of shape {tuple(input.shape)} has {input.shape[1]} channels;"
            f" expected {name}={expected}"
        )


def groups_fit(input: Tensor, num_groups: int) -> None:
    """Refuse more groups than a sample has features."""
    features = math.prod(input.shape[1:])
    if num_groups > features:
        axes = _AXES.get(input.dim(), "C*...")
        sizes = "*".join(str(size) for size in input.shape[1:])
        raise ValueError(
            f"num_groups={num_groups} exceeds the {features} features of one sample"
            f" ({axes} = {sizes})"
        )


def dims(input: Tensor, accepted: tuple[int, ...], layer: str) -> None:
    """Refuse an input of the wrong number of dimensions."""
    if input.dim() not in accepted:
        names = " or ".join(f"{n}D (N, {_AXES[n].replace('*', ', ')})" for n in accepted)
        raise ValueError(
            f"{layer} got a {input.dim()}D input of shape {tuple(input.shape)}; expected {names}"
        )


_AXES = {2: "C", 3: "C*L", 4: "C*H*W", 5: "C*D*H*W"}

"""Errors for bad arguments: each names the argument, its value and what would be accepted."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _get_tracing_state

from bgn.partition import Partition


def sizes(x: Tensor) -> Any:
    """The shape of x in plain integers, under torch.jit.trace too, where it is made of tensors."""
    if torch.compiler.is_compiling() or not _get_tracing_state():
        return x.shape
    state = _get_tracing_state()
    set_state: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
    set_state(None)
    try:
        return x.shape
    finally:
        set_state(state)


def positive_int(name: str, value: Any) -> int:
    """The value as an int; refuse everything but 1, 2, 3, ..., of whatever integer type."""
    if type(value) is not int and not isinstance(value, torch.SymInt):
        if isinstance(value, (bool, Tensor)) or not hasattr(value, "__index__"):
            raise TypeError(
                f"{name}={value!r} is a {type(value).__name__}; expected a positive int"
            )
        value = operator.index(value)
    if value < 1:
        raise ValueError(f"{name}={value} is not positive; expected an int of at least 1")
    return value  # type: ignore[no-any-return]


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


def eps(value: Any, training: bool = False) -> None:
    """Refuse an epsilon that could make the square root fail; in training, 0 too, as torch does."""
    if type(value) is float and 0 < value < 1:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"eps={value!r} is a {type(value).__name__}; expected a float of at least 0"
        )
    if not 0 <= value < float("inf"):
        raise ValueError(f"eps={value} is out of range; expected a finite float of at least 0")
    if training and value == 0:
        raise ValueError(
            "eps=0 in training divides by zero where values agree; expected more than 0"
        )


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


def residual(value: Tensor | None, input: Tensor) -> None:
    """Refuse a residual that cannot be added to the output."""
    if value is None or torch.compiler.is_compiling():
        return
    pairs = zip(reversed(sizes(value)), reversed(sizes(input)), strict=False)
    if any(a != b and 1 not in (a, b) for a, b in pairs):
        own, expected = tuple(sizes(value)), tuple(sizes(input))
        raise ValueError(f"residual has shape {own}; expected {expected}, as the input")


def vector(name: str, value: Tensor | None, size: int, per: str) -> None:
    """Refuse a parameter or buffer whose shape is not (size,)."""
    if value is not None and (shape := sizes(value)) != (size,):
        raise ValueError(
            f"{name} has shape {tuple(shape)}; expected ({size},), one entry per {per}"
        )


def same_dtype(name: str, value: Tensor, input: Tensor) -> None:
    """Refuse a dtype that torch.nn would refuse: not the input's, nor float32 beside a half one."""
    if value.dtype is input.dtype:
        return
    half = input.dtype in (torch.bfloat16, torch.float16)
    if not half or value.dtype is not torch.float32:
        accepted = f"{input.dtype} or torch.float32" if half else f"{input.dtype}"
        raise TypeError(
            f"{name} has dtype {value.dtype} and input {input.dtype}; expected {name} of {accepted}"
        )


def affine(input: Tensor, C: int, weight: Tensor | None, bias: Tensor | None) -> None:
    """Refuse a weight or bias that does not fit the input."""
    for name, value in ("weight", weight), ("bias", bias):
        if value is not None:
            vector(name, value, C, "channel")
            same_dtype(name, value, input)


def statistics(
    input: Tensor, part: Partition, mean: Tensor, var: Tensor, moving: bool = False
) -> None:
    """Refuse running statistics that do not fit the input or want a gradient.

    Those that a batch moves may have an entry per channel, where groups are whole channels.
    """
    each = (part.C,)
    per_channel = moving and part.whole_channels and sizes(mean) == sizes(var) == each
    size, per = (part.C, "channel") if per_channel else (part.G, "group")
    for name, value in ("running_mean", mean), ("running_var", var):
        if part.channel_means and not per_channel:
            size, per = (part.C, "channel") if value is mean else (part.G, "group")
        vector(name, value, size, per)
        same_dtype(name, value, input)
        if value.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"{name}.requires_grad=True; running statistics cannot have a gradient:"
                " expected False"
            )


def channels(shape: Sequence[int], name: str, expected: int) -> None:
    """Refuse an input whose channels are not those of the layer."""
    if shape[1] != expected:
        raise ValueError(
            f"input of shape {tuple(shape)} has {shape[1]} channels; expected {name}={expected}"
        )


def groups_fit(shape: Sequence[int], num_groups: int) -> None:
    """Refuse more groups than a sample has features."""
    features = math.prod(shape[1:])
    if num_groups > features:
        axes = _AXES.get(len(shape), "C*...")
        sizes = "*".join(str(size) for size in shape[1:])
        raise ValueError(
            f"num_groups={num_groups} exceeds the {features} features of one sample"
            f" ({axes} = {sizes})"
        )


def dims(shape: Sequence[int], accepted: tuple[int, ...], layer: str) -> None:
    """Refuse an input of the wrong number of dimensions."""
    if len(shape) not in accepted:
        names = " or ".join(f"{n}D (N, {_AXES[n].replace('*', ', ')})" for n in accepted)
        raise ValueError(
            f"{layer} got a {len(shape)}D input of shape {tuple(shape)}; expected {names}"
        )


_AXES = {2: "C", 3: "C*L", 4: "C*H*W", 5: "C*D*H*W"}

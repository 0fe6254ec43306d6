"""The table of uses: small functions of a layer's maker, and the variants in which each is run."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

TRAIN, EVAL = True, False
STANDARD = [(TRAIN, "float32", "contiguous"), (EVAL, "float32", "contiguous")]
TRAINING = [(TRAIN, "float32", "contiguous")]
EVALUATION = [(EVAL, "float32", "contiguous")]
CORE = list(
    itertools.product(
        (TRAIN, EVAL), ("float32", "float64", "bfloat16"), ("contiguous", "channels_last")
    )
)
GROUPS = (1, 2, 3, 16)  # of 8 channels: all, whole channels, not dividing, strips of channels


@dataclass(frozen=True)
class Variant:
    """One way to run a use: mode, dtype, layout, and groups other than the channels."""

    training: bool = True
    dtype: str = "float32"
    layout: str = "contiguous"
    groups: int | None = None  # None: as many as channels, which is batch normalization
    relu: bool = False  # normalizer and ReLU in one layer

    def __str__(self) -> str:
        mode = "train" if self.training else "eval"
        more = [] if self.groups is None else [f"G{self.groups}"]
        return "-".join([mode, self.dtype, self.layout, *more, *(["relu"] if self.relu else [])])


@dataclass(frozen=True)
class Use:
    """A use of torch: ``run(make)`` makes layers with ``make`` and returns what is compared."""

    name: str
    run: Callable[[Any], Any]
    variants: tuple[Variant, ...]
    slow: bool = False
    timeout: float = 60.0
    differs: str = ""  # why ours deliberately does not do what nn.BatchNorm2d does
    may_work: bool = False  # where nn.BatchNorm2d raises, ours may do what the definition does
    strides: bool = True  # whether strides are compared: a caller can rely on them
    tolerance: float = 1.0  # factor on the tolerances of the dtype
    warnings: bool = True  # whether ours may not warn where nn.BatchNorm2d does not
    relu: bool = True  # whether it can be asked of a layer with a ReLU in it


USES: dict[str, Use] = {}
THEMES = [
    "autograd",
    "saved",
    "hooks",
    "func",
    "modes",
    "graphs",
    "tensors",
    "inplace",
    "parameters",
    "state",
    "training",
    "numerics",
    "operators",
]


def use(
    variants: Iterable[tuple[bool, str, str]] = STANDARD,
    groups: Iterable[int] | None = None,
    cases: dict[str, Iterable[Any]] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function in the table, once per case.

    Core uses run with every number of groups in both modes; the others take turns, so that each
    use meets one number of groups and each number meets a quarter of the uses. Every use runs once
    with a ReLU in the layer, in one mode or the other, unless only the normalizer's own node, or
    nn.BatchNorm2d itself, can answer, or the use changes the output, which is kept in eval mode.
    """
    variants = list(variants)

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        keys = list(cases or {})
        for values in itertools.product(*(cases or {}).values()):
            arguments = dict(zip(keys, values, strict=True))
            name = function.__name__
            if arguments:
                name += "[" + ",".join(str(value) for value in values) + "]"
            if name in USES:
                raise ValueError(f"two uses are named {name!r}")
            rows = [Variant(*variant) for variant in variants]
            choice = GROUPS if groups is None else tuple(groups)
            modes = sorted({variant[0] for variant in variants}, reverse=True)
            if variants == CORE:
                pairs = list(itertools.product(choice, modes))
            elif choice:
                turn = len(USES)
                pairs = [(choice[turn % len(choice)], modes[turn // len(choice) % len(modes)])]
            else:
                pairs = []
            rows += [Variant(training, groups=G) for G, training in pairs]
            if options.get("relu", True):
                rows.append(Variant(modes[len(USES) % len(modes)], relu=True))
            USES[name] = Use(name, _bind(function, arguments), tuple(rows), **options)
        return function

    return add


def _bind(function: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[Any], Any]:
    return lambda make: function(make, **arguments)


def load() -> dict[str, Use]:
    """The whole table."""
    for theme in THEMES:
        importlib.import_module(f"tests.differential.uses_{theme}")
    return USES

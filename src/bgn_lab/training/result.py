"""Result of a run, and its form in ``result.json``.

Names of fields are the keys in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

FINISHED, NOT_CONVERGED = "finished", "did not converge"
_ACCURACIES = ("test_accuracy", "train_accuracy", "validation_accuracy")
_ABSENT_IF_NONE = ("shard_accuracy", "shard_images", "source", "target", "weights_sha256")


@dataclass(frozen=True)
class Images:
    """Number of images of each part of the data."""

    train: int
    validation: int
    test: int


@dataclass(frozen=True)
class Layer:
    """What a normalizer amounts to in one layer, as :func:`bgn.describe` found."""

    layer: str
    shape: tuple[int, ...]  # (C, H, W)
    G: int
    instances: int  # values per statistic
    acts_as: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "shape": list(self.shape)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Layer:
        """The inverse of :meth:`to_json`."""
        own = {name: values[name] for name in ("layer", "G", "instances", "acts_as")}
        return cls(shape=tuple(values["shape"]), **own)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a task says of a run that is over. Accuracies are None if they were not measured."""

    test_accuracy: float | None = None
    train_accuracy: float | None = None
    validation_accuracy: float | None = None
    shard_accuracy: float | None = None
    """On the first worker's part of the test images, where there are several workers."""
    shard_images: int | None = None
    chance: float
    """Accuracy of guessing."""
    judged: str = ""
    """Part of the data by which a run counts as converged; empty in files of older versions."""
    floor: float
    """What the accuracy on the judged images must exceed to count as converged."""
    classes: int
    images: Images
    image: tuple[int, ...]
    """(C, H, W) of one."""
    source: str | None = None
    """Domain that was learned from, in adaptation."""
    target: str | None = None
    episodes: Mapping[str, list[float] | None] = field(default_factory=dict)
    """Accuracies by episode, by the key of the measure that is their mean."""
    measures: Mapping[str, float | None] = field(default_factory=dict)
    """Further numbers of the experiment, by their keys in the file."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further values of JSON that only the experiment reads, by their keys in the file."""

    def measure(self, key: str) -> float | None:
        """The value of a :class:`bgn_lab.recipe.Measure`; None if it was not measured."""
        if key in _ACCURACIES:
            accuracy: float | None = getattr(self, key)
            return accuracy
        return self.measures.get(key)


@dataclass(frozen=True, kw_only=True)
class Result(Summary):
    """A task's summary, and what holds for every run."""

    status: str
    reason: str
    """Why it did not converge; empty if it did."""
    epochs: int
    seconds: float
    parameters: int
    layers: tuple[Layer, ...]
    weights_sha256: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Values as the file has them."""
        begin: dict[str, Any] = {"status": self.status, "reason": self.reason}
        plain = begin | {
            name: value
            for name, value in vars(self).items()
            if value is not None or name not in _ABSENT_IF_NONE
        }
        for name in ("episodes", "measures", "details", "layers"):
            del plain[name]
        return {
            **plain,
            "images": asdict(self.images),
            "image": list(self.image),
            **({"episodes": dict(self.episodes)} if self.episodes else {}),
            **self.measures,
            **self.details,
            "layers": [layer.to_json() for layer in self.layers],
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Result:
        """The inverse of :meth:`to_json`; a ValueError says what is missing.

        Types are not checked; :mod:`bgn_lab.report.collect` does that for files of others.
        """
        rest = dict(values)
        try:
            converted = {
                "images": Images(**{part: rest["images"][part] for part in _PARTS}),
                "image": tuple(rest["image"]),
                "layers": tuple(map(Layer.from_json, rest.pop("layers"))),
            }
            own = {name: rest.pop(name) for name in _FIELDS if name in rest or name in _REQUIRED}
            measures, details = divided(rest)
            return cls(**{**own, **converted}, measures=measures, details=details)
        except KeyError as error:
            raise ValueError(f"it has no {error.args[0]}") from None
        except TypeError as error:
            raise ValueError(str(error)) from None


_PARTS = tuple(part.name for part in fields(Images))
_OWN = [one for one in fields(Result) if one.name not in ("measures", "details", "layers")]
_FIELDS = tuple(one.name for one in _OWN)
_REQUIRED = {one.name for one in _OWN if one.default is MISSING and one.default_factory is MISSING}


def divided(values: Mapping[str, Any]) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Numbers, null among them, and all else.

    >>> divided({"test_1": 0.5, "test_5": None, "cells": [1, 2]})
    ({'test_1': 0.5, 'test_5': None}, {'cells': [1, 2]})
    """
    numbers: dict[str, float | None] = {}
    others: dict[str, Any] = {}
    for name, value in values.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        (numbers if is_number or value is None else others)[name] = value
    return numbers, others

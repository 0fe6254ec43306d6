"""Metrics of an epoch, and their form in a line of ``metrics.jsonl``.

Names of fields are the keys in the file. A number that was not measured is None and has no key. One
that is not finite is null there, because JSON knows finite numbers only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from bgn_lab.training.result import divided

if TYPE_CHECKING:
    from bgn_lab.training.loop import Score


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a task measures after an epoch, on images that training did not see in it."""

    validation_loss: float | None = None
    validation_accuracy: float | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_images: int | None = None
    shard_accuracy: float | None = None
    """On the first worker's part of the test images, where there are several workers."""
    shard_images: int | None = None
    measures: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the experiment, by their keys in the file."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Further values of JSON that only the experiment reads, by their keys in the file."""

    def with_test(self, score: Score) -> Measured:
        """The same with a score on the test images."""
        return replace(
            self, test_loss=score.loss, test_accuracy=score.accuracy, test_images=score.images
        )


@dataclass(frozen=True, kw_only=True)
class Metrics(Measured):
    """Metrics of an epoch: what the task measured, and what holds for every run."""

    epoch: int
    """From 1 on."""
    lr: float
    """Learning rate of the last step."""
    seconds: float
    images_per_second: float
    train_loss: float
    train_accuracy: float

    def value(self, key: str) -> float | None:
        """The number of a key in the file; None if it was not measured or is not finite."""
        number: float | None = getattr(self, key) if key in NUMBERS else self.measures.get(key)
        return number if number is not None and math.isfinite(number) else None

    @property
    def not_finite(self) -> list[str]:
        """Keys of the numbers that are not finite."""
        return [name for name, number in self._numbers().items() if not math.isfinite(number)]

    def _numbers(self) -> dict[str, float]:
        own = {name: getattr(self, name) for name in NUMBERS}
        return {name: number for name, number in own.items() if number is not None} | {
            **self.measures
        }

    def to_json(self) -> dict[str, Any]:
        """Values as the file has them."""
        numbers = {
            name: number if math.isfinite(number) else None
            for name, number in self._numbers().items()
        }
        return {**numbers, **self.details}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Metrics:
        """The inverse of :meth:`to_json`. What every epoch has and a file lacks is nan.

        Types are not checked; :mod:`bgn_lab.report.collect` does that for files of others.
        """
        numbers, details = divided(values)
        finite = {name: math.nan if n is None else n for name, n in numbers.items()}
        own: dict[str, Any] = dict.fromkeys(_ALWAYS, math.nan)
        own |= {name: finite.pop(name) for name in NUMBERS if name in finite}
        return cls(**own, measures=finite, details=details)


_MEASURED = tuple(one.name for one in fields(Measured) if one.name not in ("measures", "details"))
_ALWAYS = tuple(
    one.name for one in fields(Metrics) if one.name not in (*_MEASURED, "measures", "details")
)
NUMBERS = (*_ALWAYS, *_MEASURED)  # keys in the order of the file

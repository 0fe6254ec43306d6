"""A class of devices: how long a step of one process takes there, and what an hour costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bgn import checks
from bgn.factory import NAMES
from bgn_lab import partners

BASELINE = "bn"  # whose steps are timed at several batch sizes; the others are ratios to it
TRAINING_TO_TEST = 3  # forward and backward take about three times as long as forward alone
FORM = (
    "NAME:rate=IMAGES_PER_SECOND,overhead=MILLISECONDS or NAME:BATCH=MILLISECONDS,..., and perhaps"
    " price=PER_HOUR and ratios of other normalizers to bn, as in gn=1.1"
)


@dataclass(frozen=True)
class Device:
    """Step times of BN by batch size, those of other rows as ratios to it, and a price.

    A step at batch size b takes t(b) = overhead + b / rate, or what was measured at this b.
    """

    name: str
    rate: float  # images a second
    overhead: float = 0.0  # seconds a step
    seconds: Mapping[int, float] = field(default_factory=dict)  # by b, where measured
    ratios: Mapping[str, float] = field(default_factory=dict)  # by row, such as bgn+ws
    price: float | None = None  # an hour
    about: str = "given"

    def step(self, b: int, row: str = BASELINE) -> float:
        """Seconds.

        >>> device = Device("x", rate=100, overhead=0.01, seconds={2: 0.05}, ratios={"gn": 1.5})
        >>> device.step(2), device.step(4), device.step(2, "gn")
        (0.05, 0.05, 0.075...)
        """
        return self.ratios.get(row, 1.0) * self.seconds.get(b, self.overhead + b / self.rate)

    def exact(self, b: int) -> bool:
        """Whether the step time at b is as measured or as given, not a guess along the line."""
        return not self.seconds or b in self.seconds

    @property
    def spec(self) -> str:
        """The words that :func:`parse` makes this device of, but for its price.

        >>> Device("gpu", 100.0, seconds={2: 0.0251}, ratios={"gn": 1.1}).spec
        'gpu:2=25.1,gn=1.1'
        """
        times = {str(b): 1e3 * t for b, t in self.seconds.items()}
        if not times:
            times = {"rate": self.rate, "overhead": 1e3 * self.overhead}
        words = [f"{key}={value:.6g}" for key, value in (times | {**self.ratios}).items()]
        return f"{self.name}:{','.join(words)}"


def fit(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Overhead and rate of the line through measured times; neither is negative.

    The line is fitted by least squares of relative errors.

    >>> overhead, rate = fit({2: 0.03, 4: 0.05, 8: 0.09})
    >>> round(overhead, 6), round(rate, 6)
    (0.01, 100.0)
    >>> fit({8: 0.04})
    (0.0, 200.0)
    """
    # minimize the sum of (u * overhead + v * slope - 1)^2
    u, v = [1 / t for t in seconds.values()], [b / t for b, t in seconds.items()]
    uu, uv, vv = (
        sum(p * q for p, q in zip(x, y, strict=True)) for x, y in ((u, u), (u, v), (v, v))
    )
    if len(seconds) > 1:
        determinant = uu * vv - uv * uv
        overhead = (vv * sum(u) - uv * sum(v)) / determinant
        slope = (uu * sum(v) - uv * sum(u)) / determinant
        if slope <= 0:  # the best rate that was seen
            return 0.0, max(v)
        if overhead >= 0:
            return overhead, 1 / slope
    return 0.0, vv / sum(v)


def parse(spec: str, price: float | None = None) -> Device:
    """A device class from the command line.

    >>> parse("gpu:rate=1000,overhead=20,gn=1.1", price=2.5)
    Device(name='gpu', rate=1000.0, overhead=0.02, ... ratios={'gn': 1.1}, price=2.5, ...)
    >>> sorted(parse("gpu:2=25,32=55,128=150").seconds)
    [2, 32, 128]
    """
    name, colon, rest = spec.partition(":")
    if not colon or not name.strip() or not rest.strip():
        raise ValueError(f"times={spec!r} is not understood; expected {FORM}")
    values: dict[str, float] = {}
    for word in rest.split(","):
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise ValueError(f"times={spec!r}: {word!r} is not understood; expected {FORM}")
        key = str(int(key)) if key.isdecimal() else key
        if key in values:
            raise ValueError(f"times={spec!r}: {key!r} is given twice; expected once")
        values[key] = _positive(spec, key, text)
    seconds = {int(key): ms / 1e3 for key, ms in values.items() if key.isdecimal()}
    rate, overhead = values.pop("rate", None), values.pop("overhead", None)
    price = values.pop("price", price)
    ratios = {key: value for key, value in values.items() if not key.isdecimal()}
    for row in ratios:
        _check_row(spec, row)
    if bool(seconds) == (rate is not None) or 0 in seconds or (seconds and overhead is not None):
        raise ValueError(
            f"times={spec!r} needs rate, perhaps with overhead, or step times by batch size;"
            f" expected {FORM}"
        )
    if rate is None:
        overhead, rate = fit(seconds)
    else:
        overhead = (overhead or 0.0) / 1e3
    return Device(name.strip(), rate, overhead, dict(sorted(seconds.items())), ratios, price)


def _check_row(spec: str, row: str) -> None:
    """Refuse what is no row of a table beside the baseline."""
    name, _ = partners.split(row)
    if row == BASELINE:
        raise ValueError(f"times={spec!r}: ratios are to {BASELINE}; expected those of others")
    if ":" not in name:
        checks.one_of("times", name, ("rate", "overhead", "price", "a batch size", *NAMES))


def _positive(spec: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf or (key == "overhead" and value == 0)):
        raise ValueError(
            f"times={spec!r}: {key}={text!r} is out of range; expected a number above 0"
        )
    return value

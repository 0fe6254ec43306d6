"""Classes of devices: how long a step of one worker takes there, and what an hour costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bgn.factory import NAMES

BASELINE = "bn"  # whose steps are timed at several batch sizes; the others are ratios to it
TRAINING_TO_TEST = 3  # forward and backward take about three times as long as forward alone
KEYS = ("rate", "overhead", "price", "test")
FORM = (
    "NAME:rate=IMAGES_PER_SECOND,overhead=MILLISECONDS,price=PER_HOUR "
    "or NAME:BATCH=MILLISECONDS,BATCH=MILLISECONDS,..."
)


@dataclass(frozen=True)
class Device:
    """A class of devices: how long a step of one worker takes, and what an hour costs.

    A step with b images takes t(b) = overhead + b / rate, or what was measured at this b.
    """

    name: str
    rate: float  # images per second, of BN
    overhead: float = 0.0  # seconds per step
    seconds: Mapping[int, float] = field(default_factory=dict)  # per step, by b, where measured
    ratios: Mapping[str, float] = field(default_factory=dict)  # of other normalizers' steps to BN's
    ratios_at: int | None = None  # the b at which they were measured
    test_rate: float | None = None  # images per second without backward
    price: float | None = None  # per hour
    decode_rate: float | None = None  # images per second of one core
    about: str = "given"

    def ratio(self, norm: str) -> float:
        """Ratio of a normalizer to BN; 1 where nobody measured it."""
        return self.ratios.get(norm, 1.0)

    def step(self, b: int, norm: str = BASELINE) -> float:
        """Seconds.

        >>> device = Device("x", rate=100, overhead=0.01, seconds={2: 0.05}, ratios={"gn": 1.5})
        >>> device.step(2), device.step(4), device.step(2, "gn")
        (0.05, 0.05, 0.075...)
        """
        return self.ratio(norm) * self.seconds.get(b, self.overhead + b / self.rate)

    def exact(self, b: int) -> bool:
        """Whether the step time at b is as measured or as given, not a guess along the line."""
        return not self.seconds or b in self.seconds

    def testing(self, norm: str = BASELINE) -> float:
        """Seconds per image without backward: as measured, or a third of b / rate."""
        return self.ratio(norm) / (self.test_rate or TRAINING_TO_TEST * self.rate)


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
        overhead, slope = (
            (vv * sum(u) - uv * sum(v)) / determinant,
            (uu * sum(v) - uv * sum(u)) / determinant,
        )
        if slope <= 0:  # the best rate that was seen
            return 0.0, max(v)
        if overhead >= 0:
            return overhead, 1 / slope
    return 0.0, vv / sum(v)


def parse(spec: str) -> Device:
    """A device class from the command line.

    >>> parse("gpu:rate=1000,overhead=20,price=2.5,gn=1.1")
    Device(name='gpu', rate=1000.0, overhead=0.02, ... ratios={'gn': 1.1}, ... price=2.5, ...)
    >>> sorted(parse("gpu:2=25,32=55,128=150").seconds)
    [2, 32, 128]
    """
    name, colon, rest = spec.partition(":")
    if not colon or not name.strip() or not rest.strip():
        raise ValueError(f"device={spec!r} is not understood; expected {FORM}")
    values: dict[str, float] = {}
    for word in rest.split(","):
        key, equals, text = (part.strip() for part in word.partition("="))
        if not equals:
            raise ValueError(
                f"device={spec!r}: {word.strip()!r} is not understood; expected {FORM}"
            )
        if key not in (*KEYS, *NAMES) and not (key.isdecimal() and int(key)):
            accepted = f"{', '.join(KEYS)}, a batch size, or a normalizer ({', '.join(NAMES)})"
            raise ValueError(f"device={spec!r}: {key!r} is not known; accepted: {accepted}")
        key = str(int(key)) if key.isdecimal() else key
        if key in values:
            raise ValueError(f"device={spec!r}: {key!r} is given twice; expected once")
        values[key] = _positive(spec, key, text)
    seconds = {int(key): ms / 1e3 for key, ms in sorted(values.items()) if key.isdecimal()}
    if bool(seconds) == ("rate" in values):
        raise ValueError(
            f"device={spec!r} needs either rate or step times by batch size; expected {FORM}"
        )
    if seconds and "overhead" in values:
        raise ValueError(
            f"device={spec!r}: overhead goes with rate, not with step times by batch size"
        )
    if BASELINE in values:
        raise ValueError(
            f"device={spec!r}: ratios are to {BASELINE}; expected those of other normalizers"
        )
    overhead, rate = (
        fit(seconds) if seconds else (values.get("overhead", 0.0) / 1e3, values["rate"])
    )
    ratios = {norm: values[norm] for norm in NAMES if norm in values}
    return Device(
        name.strip(),
        rate,
        overhead,
        dict(sorted(seconds.items())),
        ratios,
        None,
        values.get("test"),
        values.get("price"),
    )


def _positive(spec: str, key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    least = key == "overhead" and value == 0
    if not (0 < value < math.inf or least):
        expected = "a number of at least 0" if key == "overhead" else "a number above 0"
        raise ValueError(f"device={spec!r}: {key}={text!r} is out of range; expected {expected}")
    return value


def priced(device: Device, price: float | None) -> Device:
    """The same device class with another price, if there is one."""
    return device if price is None else replace(device, price=price)

"""Measured step times as a file: measured on a node of a cluster, planned with on a laptop."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bgn.factory import NAMES
from bgn_lab.planning.devices import Device, fit
from bgn_lab.planning.network import Network
from bgn_lab.system import files

FORMAT = "step times of bgn plan, 1"


def save(path: Path, device: Device, network: Network) -> None:
    """Write what was measured."""
    files.write_json(
        path,
        {
            "format": FORMAT,
            "about": device.about,
            "network": asdict(network),
            "seconds": {str(b): t for b, t in device.seconds.items()},
            "ratios": dict(device.ratios),
            "ratios_at": device.ratios_at,
            "test_rate": device.test_rate,
            "decode_rate": device.decode_rate,
            "price": device.price,
        },
    )


def load(path: Path, network: Network) -> Device:
    """Read step times again, under the name of their file.

    What is damaged, or was measured with another network, is refused.
    """
    try:
        found = json.loads(path.read_text())
    except OSError as error:
        raise OSError(
            f"steps={path} cannot be read: {error.strerror}; expected a file of `bgn plan --save`"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"steps={path} is damaged ({error}); expected a file of `bgn plan --save`"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        written = found.get("format") if isinstance(found, dict) else None
        raise ValueError(
            f"steps={path} has format={written!r}; expected {FORMAT!r}, from `bgn plan --save`"
        )
    try:
        theirs = Network(**found["network"])
        seconds = {int(b): _positive(t) for b, t in found["seconds"].items()}
        overhead, rate = fit(dict(sorted(seconds.items())))
        device = Device(
            path.stem, rate, overhead, dict(sorted(seconds.items())), _ratios(found["ratios"]),
            found["ratios_at"], _maybe(found["test_rate"]), _maybe(found["price"]),
            _maybe(found["decode_rate"]), str(found["about"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"steps={path} is damaged ({why}); expected a file of `bgn plan --save`"
        ) from None
    ours = asdict(network)
    odd = [
        f"{name}={value} there, {ours[name]} here"
        for name, value in asdict(theirs).items()
        if value != ours[name]
    ]
    if odd:
        raise ValueError(
            f"steps={path} was measured with another network ({'; '.join(odd)}); expected the same"
        )
    return device


def _ratios(values: Mapping[str, Any]) -> dict[str, float]:
    return {norm: _positive(values[norm]) for norm in NAMES if norm in values}


def _maybe(value: Any) -> float | None:
    return None if value is None else _positive(value)


def _positive(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise ValueError(f"{value!r} is not a number above 0")
    return float(value)

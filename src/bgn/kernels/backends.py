"""Which backend runs on which kind of device: the best one, or the one that was asked for.

The environment variable ``BGN_BACKEND`` forces a backend by name; ``auto``, the default, takes the
best one available for each device. It is read once, when the package is imported.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import NamedTuple

from bgn.kernels import cpu
from bgn.kernels.eligible import DEVICES

VARIABLE = "BGN_BACKEND"
BACKENDS = ("cpu", "aten", "definition")[0 if cpu.available() else 1 :]  # best first


class Choice(NamedTuple):
    """A backend's name, and why it was taken."""

    name: str
    reason: str


def choose(asked: str) -> Choice:
    """The backend to use when the environment asks for ``asked``."""
    if asked in ("", "auto"):
        missing = "" if cpu.available() else f"; cpu is {cpu.why_not}"
        return Choice(BACKENDS[0], f"the best one available{missing}")
    accepted = f"accepted: auto, {', '.join(BACKENDS)}"
    if asked == "cpu" and not cpu.available():
        raise ValueError(f"{VARIABLE}='cpu', but cpu is {cpu.why_not}; {accepted}")
    if asked not in BACKENDS:
        raise ValueError(f"{VARIABLE}={asked!r} is not a backend; {accepted}")
    return Choice(asked, f"forced by {VARIABLE}={asked}")


class Active(NamedTuple):
    """Whether the C core runs plain calls, and on which kinds of devices aten runs the others."""

    core: bool
    aten: tuple[str, ...]


def _by_device(asked: str) -> Active:
    """What is active when the environment asks for ``asked``."""
    name = choose(asked).name
    if name == "aten":
        return Active(False, DEVICES)
    if asked in ("", "auto") and name == "cpu":
        return Active(True, tuple(device for device in DEVICES if device != "cpu"))
    return Active(name == "cpu", ())


_asked = os.environ.get(VARIABLE, "")
choice = choose(_asked)
active = _by_device(_asked)
if not _asked and not cpu.available():
    warnings.warn(
        f"the C core of bgn is {cpu.why_not}; torch's own kernels are used, which are slower on a"
        f" CPU ({VARIABLE}=aten says that this is wanted)",
        RuntimeWarning,
        stacklevel=2,
    )


@contextlib.contextmanager
def use(name: str) -> Iterator[None]:
    """Within the context, another backend; for tests and benchmarks, not for threads."""
    global active
    before, active = active, _by_device(name)
    try:
        yield
    finally:
        active = before


def devices() -> str:
    """Which backend runs plain calls on which kinds of devices.

    >>> with use("definition"):
    ...     devices()
    'all: definition'
    """
    rows = ["cpu: cpu"] if active.core else []
    if active.aten:
        rows.append(f"{', '.join(active.aten)}: aten")
    rows.append(f"{'others' if rows else 'all'}: definition")
    return "; ".join(rows)

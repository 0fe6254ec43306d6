"""How a run is asked to stop, and with what code it leaves, so that a scheduler knows whether to start it again."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # after Ctrl-C, as shells have it
REQUEUE = 75  # after SIGTERM: sysexits' EX_TEMPFAIL, "try again later"


class Interrupted(Exception):
    """Somebody asked to stop; the last checkpoint stands."""

    def __init__(self, code: int = INTERRUPTED) -> None:
        super().__init__()
        self.code = code


_signal: int | None = None  # that came
_patient = False


def asked() -> int:
    """The exit code for a signal that came and has not been obeyed yet; 0 if none did."""
    return 0 if _signal is None else REQUEUE if _signal == signal.SIGTERM else INTERRUPTED


def _hear(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    global _signal
    again, _signal = _signal is not None, number
    if not _patient:
        raise Interrupted(asked())
    if (
        again and number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ
    ):  # torchrun passes each on once more
        raise KeyboardInterrupt


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """With SIGTERM and Ctrl-C as :class:`Interrupted`, at once or at the end of what must not be torn apart."""
    global _signal
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _signal = None
    before = {number: signal.signal(number, _hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _signal = None


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """What must not be torn apart: a signal meanwhile is obeyed at the end, a second Ctrl-C at once."""
    global _patient
    _patient = True
    try:
        yield
    finally:
        _patient = False
    if code := asked():
        raise Interrupted(code)

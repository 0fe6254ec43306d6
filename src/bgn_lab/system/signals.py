"""Signals that stop a run, and its exit code: a scheduler reads from it whether to start it again.

Ctrl-C (SIGINT) ends with code 130. SIGTERM, as schedulers send it, and SIGHUP, as a terminal that
closes sends it, end with code 75. In all three cases the run is saved first, within its epoch.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

INTERRUPTED = 130  # after Ctrl-C, as shells have it
REQUEUE = 75  # after SIGTERM and SIGHUP: sysexits' EX_TEMPFAIL, "try again later"
STOPPED = "Stopped. Run the same command to resume."
# Windows has no SIGHUP
SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


class Interrupted(Exception):
    """A signal stopped the run; its last checkpoint stands."""

    def __init__(self, code: int = INTERRUPTED) -> None:
        super().__init__(STOPPED)
        self.code = code


_received: int | None = None  # the last signal
_deferring = False


def requested() -> int:
    """Exit code for the signal that was received, 0 if there was none."""
    return 0 if _received is None else INTERRUPTED if _received == signal.SIGINT else REQUEUE


def _receive(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    global _received
    again, _received = _received is not None, number
    if not _deferring:
        raise Interrupted(requested())
    # torchrun passes each signal on once more, which is no second request
    if again and number == signal.SIGINT and "TORCHELASTIC_RUN_ID" not in os.environ:
        raise KeyboardInterrupt


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into :class:`Interrupted`.

    :func:`defer_signals` delays it.

    A signal that this process was started to ignore (by ``nohup``, or SIGINT in the background of a
    shell script) stays ignored. Does nothing outside of the main thread, which alone gets signals.
    """
    global _received
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received = None
    handled = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _receive) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received = None


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Raise :class:`Interrupted` at the end of the block only; a second Ctrl-C ends it at once."""
    global _deferring
    _deferring = True
    try:
        yield
    finally:
        _deferring = False
    if code := requested():
        raise Interrupted(code)


@contextlib.contextmanager
def ignore_signals(*numbers: int) -> Iterator[None]:
    """Ignore these signals; processes that are started meanwhile ignore them as well.

    Does nothing outside of the main thread, where handlers cannot be changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

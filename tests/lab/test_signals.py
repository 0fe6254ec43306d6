"""Signals as exceptions: at once, at the end of a block, or not at all."""

import os
import signal

import pytest

from bgn_lab.system import signals
from bgn_lab.system.signals import INTERRUPTED, REQUEUE, Interrupted


@pytest.fixture(autouse=True)
def _handlers() -> None:
    """Where the tests run in the background, SIGINT is ignored; under nohup, SIGHUP is."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, REQUEUE), (signal.SIGHUP, REQUEUE)],
)
def test_exit_codes(number: signal.Signals, code: int) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as stop, signals.handle_signals():
        send(number)
    assert stop.value.code == code
    assert signal.getsignal(number) == before
    assert signals.requested() == 0, "handled"


def deferred(*numbers: int) -> list[str]:
    """What was done in a block that must not be torn apart, and after it."""
    steps: list[str] = []
    with signals.handle_signals():
        try:
            with signals.defer_signals():
                for number in numbers:
                    send(number)
                steps.append(f"saved, {signals.requested()}")
            steps.append("went on")
        except Interrupted as stop:
            steps.append(f"stopped, {stop.code}")
    return steps


def test_deferred_to_the_end_of_the_block() -> None:
    assert deferred() == ["saved, 0", "went on"]
    assert deferred(signal.SIGTERM) == ["saved, 75", "stopped, 75"]
    assert deferred(signal.SIGINT) == ["saved, 130", "stopped, 130"]


def test_a_second_interrupt_ends_the_block_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        deferred(signal.SIGINT, signal.SIGINT)


def test_a_second_sigterm_does_not() -> None:
    """Schedulers and torchrun send several."""
    assert deferred(signal.SIGTERM, signal.SIGTERM) == ["saved, 75", "stopped, 75"]


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.handle_signals():
            send(signal.SIGHUP)
            assert signals.requested() == 0
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ignored_for_a_while() -> None:
    with signals.handle_signals():
        with signals.ignore_signals(signal.SIGINT):
            send(signal.SIGINT)
        assert signals.requested() == 0
        with pytest.raises(Interrupted):
            send(signal.SIGINT)

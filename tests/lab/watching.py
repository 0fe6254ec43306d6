"""A watch over a call: nothing may be executed, written elsewhere, waited for, or take all memory.

What Python does is reported by its audit events, so a file that is opened for writing or a program
that is started is seen whatever reader did it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bgn_lab.system import memory

MOST = 1 << 29
"""Bytes of memory that readers believe to be available."""
ROOM = 2 << 30
"""Bytes of addresses that the process may take beyond what it has: some hold the same twice."""
FORBIDDEN = (
    "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork", "socket.connect",
    "pickle.find_class", "ctypes.dlopen",
)  # fmt: skip
CHANGES = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "shutil.rmtree", "shutil.move", "shutil.copyfile",
)  # fmt: skip


class Offense(AssertionError):
    """Something happened that no reader may do."""


class Hang(BaseException):
    """A reader took too long; a BaseException, so that no reader takes it for a damaged file."""


class _Watch:
    """What happens in the watched thread."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self.inside = Path()
        self.seen: list[str] = []

    def hear(self, event: str, details: tuple[Any, ...]) -> None:
        if self.thread != threading.get_ident():
            return
        if event in FORBIDDEN:
            self.seen.append(f"{event} {details!r:.200}")
        elif event in CHANGES or (event == "open" and _writes(*details[1:])):
            paths = details[: 1 if event == "open" else 2]
            if not all(self._allowed(p) for p in paths if isinstance(p, (str, bytes))):
                self.seen.append(f"{event} {details!r:.200}")

    def _allowed(self, path: str | bytes) -> bool:
        real = os.path.realpath(os.fsdecode(path))
        return real == os.devnull or real.startswith(f"{self.inside}{os.sep}")


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not {*mode}.isdisjoint("wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


_watch = _Watch()
_hooked = False


@contextmanager
def watched(inside: Path, seconds: float = 10.0) -> Iterator[None]:
    """Raise :class:`Offense` if anything is executed, or changed outside of a folder."""
    global _hooked
    if not _hooked:  # for good: hooks cannot be removed
        sys.addaudithook(_watch.hear)
        _hooked = True
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_AS)

    def stop(*_: object) -> None:
        raise Hang

    machine = memory._machine
    before = signal.signal(signal.SIGALRM, stop)
    memory._machine = lambda root: [MOST]  # noqa: ARG005
    resource.setrlimit(resource.RLIMIT_AS, (_size() + ROOM, limits[1]))
    _watch.inside, _watch.seen = Path(os.path.realpath(inside)), []
    _watch.thread = threading.get_ident()
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Hang:
        raise Offense(f"it took more than {seconds} s") from None
    except MemoryError:
        raise Offense(f"it took more than {ROOM >> 20} MB") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _watch.thread = None
        resource.setrlimit(resource.RLIMIT_AS, limits)
        memory._machine = machine
        signal.signal(signal.SIGALRM, before)
    if _watch.seen:
        raise Offense("; ".join(_watch.seen))


def _size() -> int:
    """Bytes of addresses of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

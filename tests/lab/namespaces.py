"""Two machines on one: network namespaces with a cable between them, and processes in them."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

ADDRESSES = "10.213.57.1", "10.213.57.2"


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


def skip_unless_possible() -> None:
    """Skip a test where there is no ip, or no right to make namespaces."""
    if sys.platform != "linux" or shutil.which("ip") is None:
        pytest.skip("two machines on one need Linux and iproute2 (ip)")
    name = f"bgn-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"network namespaces cannot be made here: {tried.stderr.strip()}")
    _ip("netns", "del", name)


@dataclass
class Machine:
    """A namespace that stands for a machine."""

    name: str
    address: str
    cable: str
    """Name of its end of the cable."""
    logs: Path
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(
        self,
        words: Sequence[str],
        log: str,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        """A process on this machine; what it says goes to ``logs/log``."""
        with self._file(log) as file:
            child = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *words],
                stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **(environment or {})}, cwd=cwd,
            )  # fmt: skip
        self.started.append(child)
        return child

    def _file(self, log: str) -> IO[bytes]:
        return (self.logs / log).open("ab")

    def pids(self) -> list[int]:
        """Its processes."""
        return [int(word) for word in _ip("netns", "pids", self.name).split()]

    def power_off(self) -> None:
        """The cable is cut, and every process dies."""
        _ip("-n", self.name, "link", "set", self.cable, "down")
        self.end()

    def end(self) -> None:
        """Kill its processes, until there are none."""
        deadline = time.monotonic() + 30
        while (found := self.pids()) and time.monotonic() < deadline:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for child in self.started:
            child.wait(30)
        assert not found


@contextlib.contextmanager
def two_machines(logs: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines that reach each other and nobody else; nothing of them is left afterwards."""
    skip_unless_possible()
    code = os.getpid()
    machines = [
        Machine(f"bgn-{side}-{code}", address, f"b{side}{code}", logs)
        for side, address in zip("ab", ADDRESSES, strict=True)
    ]
    try:
        for machine in machines:
            _ip("netns", "add", machine.name)
        one, two = machines
        _ip("link", "add", one.cable, "netns", one.name, "type", "veth",
            "peer", two.cable, "netns", two.name)  # fmt: skip
        for machine in machines:
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.cable)
            for link in ("lo", machine.cable):
                _ip("-n", machine.name, "link", "set", link, "up")
        yield one, two
    finally:
        listed = _ip("netns", "list")
        for machine in machines:
            if machine.name in listed:
                machine.end()
                _ip("netns", "del", machine.name)


def wait_for(
    condition: Callable[[], object],
    seconds: float,
    what: str,
    child: "subprocess.Popen[bytes] | None" = None,
) -> None:
    """Until a condition holds, while a process runs."""
    deadline = time.monotonic() + seconds
    while not condition():
        ended = child is not None and child.poll() is not None
        assert not ended, f"the process ended before {what}"
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)

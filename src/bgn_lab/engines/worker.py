"""A run as a process of its own, on whatever machine a cluster starts it.

``python -m bgn_lab.engines.worker resume FOLDER`` is ``bgn resume FOLDER`` that ends when its
standard input does: so no run outlives whoever started it, however that one died.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bgn_lab.engines.resources import Resources
from bgn_lab.system import files, signals
from bgn_lab.system.launch import PATIENCE

# exit code where a worker does not see the folder: sysexits' EX_NOINPUT
INVISIBLE = 66
# seconds until a run is free that another process still writes: one that lost its cluster, say.
# File servers keep the locks of a machine that died for a minute or two.
LOCKED = 180.0
TAIL = 4096  # bytes at the end of a log in which a reason is looked for


@dataclass(frozen=True)
class Job:
    """One run for a worker: where it is, and what it may use. Its recipe is in its folder."""

    folder: Path
    recipe: str
    """Name of the file with its recipe."""
    log: Path
    cwd: Path
    """Working folder, which paths in a recipe may be relative to."""
    resources: Resources

    def words(self) -> list[str]:
        """Words after ``bgn``."""
        processes = self.resources.processes
        own = ["--processes", str(processes)] if processes > 1 else []
        return ["resume", str(self.folder), *own]

    def command(self) -> str:
        """The same as a line for a shell."""
        threads = f"OMP_NUM_THREADS={self.resources.threads}"
        return f"{threads} {shlex.join([sys.executable, '-m', 'bgn_lab', *self.words()])}"


class Attempt:
    """The process of a run on this machine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process: subprocess.Popen[bytes] | None = None

    def run(self) -> tuple[int, str]:
        """Begin or resume the run, and wait for it: its exit code, and what it said last.

        An exception stops it at a checkpoint.
        """
        job, here = self.job, socket.gethostname()
        if not (job.folder / job.recipe).exists():
            return INVISIBLE, (
                f"{job.folder} is not visible on {here}, where a run of it was to begin; expected"
                " a folder on a file system that all machines share, with the same path"
            )
        if not job.cwd.is_dir():
            return INVISIBLE, (
                f"the working folder {job.cwd} is not visible on {here}; expected one on a file"
                " system that all machines share, since paths may be relative to it"
            )
        if not _wait_until_free(job.folder):
            return 1, f"{job.folder} is being worked on by another process"
        with job.log.open("ab") as log:
            begin = log.tell()
            log.write(f"on {here}: {job.command()}\n".encode())
            log.flush()
            # Slurm's signal for a time limit reaches all processes; this one passes it on as
            # SIGTERM
            with signals.ignore_signals(*_passed_on()):
                self.process = subprocess.Popen(
                    [sys.executable, "-m", __name__, *job.words()],
                    cwd=job.cwd, stdin=subprocess.PIPE, stdout=log, stderr=log,
                    env=_environment(os.environ, job.resources),
                )  # fmt: skip
        try:
            while (code := self.process.poll()) is None:
                time.sleep(0.1)
        finally:
            self.stop()
        if code < 0:
            return code, f"its process was killed by {signal.Signals(-code).name}"
        return code, _reason(job.log, begin) if code else ""

    def ask(self) -> None:
        """Ask the run to stop at a checkpoint."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def stop(self) -> None:
        """Stop the run at a checkpoint, and wait until it is written."""
        self.ask()
        if self.process is not None:
            self.process.wait(PATIENCE)


def _passed_on() -> tuple[int, ...]:
    return (signal.SIGUSR2,) if hasattr(signal, "SIGUSR2") else ()


def _environment(outer: Mapping[str, str], resources: Resources) -> dict[str, str]:
    """Ray and Slurm set threads as well, each by rules of its own."""
    return {**outer, "OMP_NUM_THREADS": str(resources.threads)}


def _wait_until_free(folder: Path) -> bool:
    deadline = time.monotonic() + LOCKED
    while not files.is_free(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _reason(log: Path, begin: int) -> str:
    """The last error in a log since a byte, else its last line."""
    with log.open("rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - TAIL))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    said = [line for line in lines if line]
    errors = [line for line in said if "error: " in line]
    found = (errors or said or [""])[-1]
    return found.partition("error: ")[2] or found


def _follow() -> None:
    """Ask this process to stop when nobody holds the other end of its standard input."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    from bgn_lab import __main__

    threading.Thread(target=_follow, daemon=True).start()
    sys.argv[0] = "bgn"
    sys.exit(__main__.main())

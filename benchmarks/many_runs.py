"""A comparison of hundreds of tiny runs: memory of the driver, time, and the size of its report.

    python -m benchmarks.many_runs --runs 500 --out results/many_runs/record.json

The runs are real: `bgn compare` on 8x8 images, on a terminal of 100 x 40 characters, with one job.
Memory is what the system says of the driver and of its worker, once a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

NORMS, SIZES = ("bn", "in", "ln", "gn", "bgn"), (4, 8)
COLUMNS, LINES = 100, 40


@dataclass
class Seen:
    """What was seen of a study while it ran."""

    seconds: list[float] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    driver_mb: list[float] = field(default_factory=list)
    workers_mb: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    everyone: set[int] = field(default_factory=set)


def words(folder: Path, seeds: int, jobs: int) -> list[str]:
    """The command, whose images it writes."""
    draws = np.random.default_rng(0)
    images = folder / "tiny.npz"
    x = draws.integers(0, 255, (64, 8, 8, 1), np.uint8)
    y = np.arange(64) % 2
    np.savez(images, x_train=x, y_train=y, x_test=x[:16], y_test=y[:16])
    return [
        *("compare", "--data", str(images), "--width", "2", "--epochs", "1", "--validation", "0.2"),
        *("--norms", *NORMS, "--batch-sizes", *map(str, SIZES), "--groups", "2"),
        *("--seeds", str(seeds), "--jobs", str(jobs), "--out", str(folder / "out")),
    ]


def descendants(pid: int) -> list[int]:
    """Processes below one, at this moment."""
    with contextlib.suppress(OSError):
        own = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [found for child in map(int, own) for found in (child, *descendants(child))]
    return []


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only its exit code."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def megabytes(pid: int) -> float:
    """Resident memory of a process; none where it is gone."""
    with contextlib.suppress(OSError, IndexError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0


def start(command: list[str]) -> tuple[subprocess.Popen[bytes], int]:
    """The command on a terminal of its own, and the other end of that."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": str(LINES), "TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, "-m", "bgn_lab", *command],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return child, ours


def watch(
    child: subprocess.Popen[bytes], terminal: int, out: Path, minutes: float, every: float = 1.0
) -> Seen:
    """Read the terminal and look at the processes until the command ends; Ctrl-C after a time."""
    seen, begin = Seen(), time.perf_counter()

    def sample() -> None:
        while child.poll() is None:
            below = descendants(child.pid)
            seen.seconds.append(round(time.perf_counter() - begin, 1))
            seen.done.append(sum(1 for _ in out.glob("runs/*/result.json")))
            seen.driver_mb.append(round(megabytes(child.pid), 1))
            seen.workers_mb.append(round(sum(map(megabytes, below)), 1))
            seen.processes.append(len(below))
            seen.everyone |= {*below}
            time.sleep(every)
            if seen.seconds[-1] > 60 * minutes:
                child.send_signal(signal.SIGINT)
                break

    sampler = threading.Thread(target=sample)
    sampler.start()
    with contextlib.suppress(OSError):  # the other end was closed
        while child.poll() is None or select.select([terminal], [], [], 0)[0]:
            if select.select([terminal], [], [], 0.5)[0] and not os.read(terminal, 1 << 16):
                break
    child.wait()
    sampler.join()
    os.close(terminal)
    return seen


def main() -> int:
    """Run it, print what was seen, and write a record; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="a multiple of 10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120, help="after which it is stopped")
    parser.add_argument("--out", type=Path, help="file for the record")
    given = parser.parse_args()
    seeds = given.runs // (len(NORMS) * len(SIZES))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        child, terminal = start(words(folder, seeds, given.jobs))
        seen = watch(child, terminal, folder / "out", given.minutes)
        report = folder / "out" / "report.html"
        sizes = {p.name: p.stat().st_size for p in report.parent.iterdir() if p.is_file()}
        text = report.read_text() if report.exists() else ""
    quarter = max(1, len(seen.done) // 4)
    early, late = seen.driver_mb[quarter], max(seen.driver_mb[-quarter:])
    runs = seeds * len(NORMS) * len(SIZES)
    shown = {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "runs": runs, "done": seen.done[-1], "exit": child.returncode, "seconds": seen.seconds[-1],
        "driver_mb_after_a_quarter": early, "driver_mb_at_most_in_the_last_quarter": late,
        "workers_mb_at_most": max(seen.workers_mb), "report_rows": len(re.findall("<tr", text)),
        "bytes": sizes, "left_over_processes": sum(map(is_alive, seen.everyone)),
    }  # fmt: skip
    for key, value in shown.items():
        print(f"{key}: {value}")
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(
            json.dumps({**shown, "samples": asdict(seen) | {"everyone": len(seen.everyone)}}) + "\n"
        )
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())

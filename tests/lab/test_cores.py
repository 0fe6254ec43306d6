import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bgn_lab.system import cores


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="this system does not tell which cores a process may use",
)
def test_cores_are_those_that_the_process_may_use() -> None:
    assert 1 <= cores.count() <= (os.cpu_count() or 1)
    one = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "from bgn_lab.system import cores; print(cores.count())"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", one], capture_output=True, text=True, check=True
        ).stdout
        == "1\n"
    )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], Path]:
    """A machine of 64 cores, with these files below its root."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)

    def make(files: dict[str, str]) -> Path:
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content + "\n")
        return tmp_path

    return make


GROUP = "proc/self/cgroup"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({GROUP: "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 64),
        ({GROUP: "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({GROUP: "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({GROUP: "0::/", "sys/fs/cgroup/cpu.max": "1000 100000"}, 1),
        ({GROUP: "0::/", "sys/fs/cgroup/cpu.max": "12800000 100000"}, 64),
        ({GROUP: "0::/a/b", "sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3),
        (
            {
                GROUP: "0::/a/b",
                "sys/fs/cgroup/a/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/b/cpu.max": "800000 100000",
            },
            3,
        ),
        (
            {
                GROUP: "5:memory:/x\n4:cpu,cpuacct:/docker/abc\n0::/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            3,
        ),
        (
            {
                GROUP: "4:cpu,cpuacct:/job",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            {
                GROUP: "4:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            64,
        ),
        ({GROUP: "0::/", "sys/fs/cgroup/cpu.max": "rubbish"}, 64),
    ],
)
def test_a_containers_quota_counts(
    machine: Callable[[dict[str, str]], Path], files: dict[str, str], expected: int
) -> None:
    assert cores.count(machine(files)) == expected


@pytest.mark.parametrize(
    ("words", "processes", "expected"),
    [(None, 3, 2), (None, 16, 1), ("1", 1, 1), ("5", 2, 5), ("4,2", 2, 4), ("", 2, 4), ("x", 2, 4)],
)
def test_threads(
    monkeypatch: pytest.MonkeyPatch, words: str | None, processes: int, expected: int
) -> None:
    """What the user says in OMP_NUM_THREADS wins."""
    monkeypatch.setattr(cores, "count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if words is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", words)
    assert cores.threads(processes) == expected

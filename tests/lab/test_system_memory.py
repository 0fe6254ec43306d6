"""Available memory: the smallest of the machine's and of every control group's."""

from pathlib import Path

import pytest

from bgn_lab.system.memory import available_memory

GB = 1 << 30


def files(root: Path, **content: str) -> None:
    for name, text in content.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files(tmp_path, proc__meminfo="MemTotal: 9 kB\nMemAvailable:   8388608 kB\n")
    return tmp_path


def test_this_machine() -> None:
    found = available_memory()
    assert found is None or 1 << 20 < found < 1 << 50


def test_the_machine_alone(root: Path) -> None:
    assert available_memory(root) == 8 * GB


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8 * GB), (str(4 * GB), 3 * GB), (str(GB // 2), 0)]
)
def test_a_container(root: Path, limit: str, expected: int) -> None:
    files(
        root,
        proc__self__cgroup="0::/\n",
        sys__fs__cgroup__memory_DOT_max=f"{limit}\n",
        sys__fs__cgroup__memory_DOT_current=f"{2 * GB}\n",
        sys__fs__cgroup__memory_DOT_stat=f"anon 5\ninactive_file {GB // 2}\n"
        f"active_file {GB // 2}\n",
    )
    assert available_memory(root) == expected


def test_a_group_in_a_group(root: Path) -> None:
    files(
        root,
        proc__self__cgroup="0::/slice/job\n",
        sys__fs__cgroup__slice__memory_DOT_max=str(3 * GB),
        sys__fs__cgroup__slice__memory_DOT_current=str(GB),
        sys__fs__cgroup__slice__job__memory_DOT_max="max",
        sys__fs__cgroup__slice__job__memory_DOT_current=str(GB),
    )
    assert available_memory(root) == 2 * GB


@pytest.mark.parametrize(("limit", "expected"), [(9223372036854771712, 8 * GB), (5 * GB, 4 * GB)])
def test_version_1(root: Path, limit: int, expected: int) -> None:
    files(
        root,
        proc__self__cgroup="5:cpu,cpuacct:/other\n4:memory:/job\n",
        sys__fs__cgroup__memory__job__memory_DOT_limit_in_bytes=str(limit),
        sys__fs__cgroup__memory__job__memory_DOT_usage_in_bytes=str(GB),
    )
    assert available_memory(root) == expected

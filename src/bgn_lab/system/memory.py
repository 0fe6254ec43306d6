"""How much memory this process can still take."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated before the system swaps or the container's limit is reached.

    The smallest of what the machine has left and what each control group of the process has left
    (versions 1 and 2). Pages of cached files count as free: they are dropped when memory is short.
    None where the system does not say (without /proc). ``root`` is for tests.
    """
    found = [*_machine(root), *_version_2(root), *_version_1(root)]
    return max(min(found), 0) if found else None


def gigabytes(size: float) -> str:
    """A number of bytes in words.

    >>> gigabytes(3.21e9), gigabytes(64e6), gigabytes(2e15)
    ('3.2 GB', '64 MB', '2,000,000 GB')
    """
    return (
        f"{size / 1e9:,.{1 if size < 1e11 else 0}f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
    )


def _machine(root: Path) -> list[int]:
    with suppress(OSError, ValueError, KeyError, IndexError):
        lines = (root / "proc/meminfo").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines if ":" in line)
        return [1024 * int(values["MemAvailable"].split()[0])]
    return []


def _version_2(root: Path) -> list[int]:
    mount = root / "sys/fs/cgroup"
    return [
        left
        for group in _groups(root, mount, "")
        if (left := _left(group, "memory.max", "memory.current")) is not None
    ]


def _version_1(root: Path) -> list[int]:
    mount = root / "sys/fs/cgroup/memory"
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    return [
        left
        for group in _groups(root, mount, "memory")
        if (left := _left(group, *names)) is not None
    ]


def _groups(root: Path, mount: Path, controller: str) -> list[Path]:
    """The folder of the process's control group and of all those that contain it."""
    own = "/"  # what a process in a container of its own sees, too
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = (*line.split(":", 2), "", "")[:3]
            if controller in controllers.split(","):
                own = path
    found = mount / own.lstrip("/")
    return [found, *(path for path in found.parents if path == mount or mount in path.parents)]


def _left(group: Path, limit: str, usage: str) -> int | None:
    with suppress(OSError, ValueError):
        most = (group / limit).read_text().strip()
        if most == "max" or int(most) >= 1 << 60:  # version 1 writes a huge number for no limit
            return None
        cached = 0
        with suppress(OSError, ValueError):
            for line in (group / "memory.stat").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name in ("inactive_file", "active_file"):
                    cached += int(value)
        return int(most) - int((group / usage).read_text()) + cached
    return None

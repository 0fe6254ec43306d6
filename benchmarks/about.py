"""The machine and the versions that figures come from."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import bgn
from bgn import kernels
from bgn_lab.system import cores

QUIET = 0.5  # load average per core above which figures are doubtful


def cpu_model() -> str:
    """The CPU's name as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def caches() -> str:
    """Data caches as the first core sees them, such as ``L1 32K, L2 1024K``; empty if unknown."""
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "size")
            )
        except OSError:
            continue
        if kind != "Instruction":
            found.append(f"L{level} {size}")
    return ", ".join(found)


def load() -> float | None:
    """Processes that ran or waited in the last minute, on average; None where nobody counts."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def about() -> dict[str, Any]:
    """What a reader of the figures must know, at the start of a run."""
    info, library = bgn.info(), kernels.cpu.library
    now = load()
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_model(),
        "cores": cores.count(),
        "threads": torch.get_num_threads(),
        "caches": caches(),
        "instructions": {
            "bgn": getattr(library, "capability", "no C core"),
            "torch": torch.backends.cpu.get_cpu_capability(),
        },
        "platform": info.platform,
        "bgn": info.version,
        "torch": info.torch,
        "python": info.python,
        "backend": info.backend,
        "node": info.node,
        "load": None if now is None else round(now, 2),
    }


def describe(facts: dict[str, Any]) -> str:
    """The same as two sentences for people."""
    caches = f" ({facts['caches']})" if facts["caches"] else ""
    load = "unknown" if facts["load"] is None else f"{facts['load']:.2f}"
    minutes = f", {facts['minutes']:.1f} minutes" if "minutes" in facts else ""
    return (
        f"{facts['cpu']}{caches}, {facts['threads']} of {facts['cores']} cores used;"
        f" instruction set of our kernels: {facts['instructions']['bgn']},"
        f" of torch's: {facts['instructions']['torch']}.\n"
        f"bgn {facts['bgn']} ({facts['backend']}, node {facts['node'].split(' (')[0]}),"
        f" torch {facts['torch']}, Python {facts['python']}, {facts['platform']};"
        f" {facts['date']}, load average at start {load}{minutes}."
    )


def warning(facts: dict[str, Any]) -> str:
    """A sentence where the machine was not quiet at the start, or nothing."""
    if facts["load"] is None or facts["load"] <= QUIET * facts["cores"]:
        return ""
    return (
        f"The machine is not quiet: load average {facts['load']:.2f} on {facts['cores']} cores;"
        f" above {QUIET} per core, figures are doubtful."
    )

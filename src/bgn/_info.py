"""What is installed, and which backend and autograd node are at work."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from bgn import kernels
from bgn._version import __version__


@dataclass(frozen=True)
class Info:
    """What :func:`info` found; prints as a table."""

    version: str
    torch: str
    python: str
    platform: str
    backends: tuple[str, ...]
    backend: str
    reason: str
    devices: str
    gpu: str
    node: str

    def __str__(self) -> str:
        rows = {
            "bgn": self.version,
            "torch": self.torch,
            "python": self.python,
            "platform": self.platform,
            "backends": ", ".join(self.backends),
            "chosen": f"{self.backend} ({self.reason})",
            "devices": self.devices,
            "gpu": self.gpu,
            "node": self.node,
        }
        return "\n".join(f"{name:<9} {value}" for name, value in rows.items())

    __repr__ = __str__


def info() -> Info:
    """Versions, the backends available, which of them and which autograd node are used and why.

    >>> info().backend in info().backends
    True
    """
    return Info(
        version=__version__,
        torch=torch.__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        backends=kernels.BACKENDS,
        backend=kernels.choice.name,
        reason=kernels.choice.reason,
        devices=kernels.devices(),
        gpu=kernels.backends.on_gpus(),
        node=str(kernels.cpu.node_choice),
    )

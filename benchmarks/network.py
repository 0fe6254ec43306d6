"""A whole training step of a network with each normalizer: its time, and the peak of its memory.

A step is forward, loss, backward and SGD. Its peak is taken in a process of its own:

    python -m benchmarks.network resnet50 bgn 8
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import bgn
from benchmarks.allocator import GIVE_BACK
from bgn.surgery.modules import replace
from bgn_lab.models.resnet import resnet

SIDE = {"resnet50": 224, "resnet20": 32}
CLASSES = {"resnet50": 1000, "resnet20": 10}
ROOT = Path(__file__).parent.parent
# activations and sums in the normalizers; the same with leaky ReLU, whose output alone is kept
FUSED = ("bgn, fused", "bgn, fused, output kept")
PROCESSES = 3  # for a peak; their median counts


def _norm(name: str, N: int) -> Callable[[int], nn.Module]:
    norms: dict[str, Callable[[int], nn.Module]] = {
        "bgn": lambda C: bgn.BatchGroupNorm2d(C, bgn.paper_groups(N)),
        **dict.fromkeys(FUSED, lambda C: bgn.BatchGroupNorm2d(C, bgn.paper_groups(N))),
        "nn.BatchNorm2d": nn.BatchNorm2d,
        "no normalizer": lambda _: nn.Identity(),
    }
    return norms[name]


def step(network: str, name: str, N: int, standardized: bool = False) -> Callable[[], None]:
    """A training step on a batch of random images, maybe with standardized weights."""
    torch.manual_seed(0)
    side, classes = SIDE[network], CLASSES[network]
    model = resnet(network, _norm(name, N), classes)
    if name == FUSED[1]:
        leaky = [m for m in model.modules() if isinstance(m, nn.ReLU)]
        replace(model, {m: nn.LeakyReLU(0.01, inplace=True) for m in leaky})
    if name in FUSED:
        bgn.convert(model, num_groups=bgn.paper_groups(N), exact=False, fuse_act="output")
    if standardized:
        bgn.standardize(model)
    x, target = torch.randn(N, 3, side, side), torch.randint(classes, (N,))
    # a rate of 0: every step computes the same, however many there are
    optimizer = torch.optim.SGD(model.parameters(), 0.0, 0.9, fused=True)

    def run() -> None:
        torch.autograd.backward(F.cross_entropy(model(x), target))
        optimizer.step()
        optimizer.zero_grad()

    return run


def high_water() -> float:
    """Megabytes at the peak of this process, so far."""
    # getrusage would also give the peak of the process that started this one
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def peaks(network: str, name: str, N: int, processes: int = PROCESSES) -> list[float]:
    """Megabytes at the peak of training steps, from several processes; none without /proc."""
    if not Path("/proc/self/status").exists():
        return []
    command = [sys.executable, "-m", "benchmarks.network", network, name, str(N)]
    settings: dict[str, Any] = {"env": {**os.environ, **GIVE_BACK}, "cwd": ROOT, "text": True}
    found = (
        subprocess.run(command, capture_output=True, check=True, **settings)
        for _ in range(processes)
    )
    return [float(process.stdout) for process in found]


if __name__ == "__main__":
    run = step(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    for _ in range(2):
        run()
    print(high_water())

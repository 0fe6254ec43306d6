"""A whole training step of ResNet-50, BN against BGN: time, and memory at its peak."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bgn
from benchmarks.timing import interleaved


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, and the shortcut around them."""

    def __init__(self, inputs: int, width: int, stride: int, norm: Any) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), norm(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), norm(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), norm(outputs),
        )  # fmt: skip
        changes = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
            if changes
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu_(self.body(x) + self.shortcut(x))


def resnet50(norm: Any) -> nn.Sequential:
    """ResNet-50 for 1000 classes with a normaliser: norm(C)."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        norm(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for k in range(blocks):
            layers.append(Bottleneck(inputs, width, stride if k == 0 else 1, norm))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


NORMS = {
    "bn": nn.BatchNorm2d,
    "bgn": lambda C: bgn.BatchGroupNorm2d(C, bgn.paper_groups(8)),
    "no normaliser": lambda _: nn.Identity(),
}


def step(name: str, N: int = 8) -> Any:
    """Forward, loss and backward on a batch of random images."""
    torch.manual_seed(0)
    model, x, target = resnet50(NORMS[name]), torch.randn(N, 3, 224, 224), torch.randint(1000, (N,))
    loss = nn.CrossEntropyLoss()

    def run() -> None:
        loss(model(x), target).backward()
        model.zero_grad(set_to_none=True)

    return run


def high_water() -> float:
    """Megabytes at the peak of this process, so far."""
    status = Path(
        "/proc/self/status"
    ).read_text()  # getrusage would give the peak of the process that started this one, too
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def peak(name: str) -> float:
    """Megabytes at the peak of a training step, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.network", name]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(seconds: float) -> dict[str, Any]:
    """Times and peak memory of each normaliser."""
    times = interleaved({name: step(name) for name in NORMS}, seconds)
    return {name: {**times[name], "peak megabytes": peak(name)} for name in NORMS}


if __name__ == "__main__":
    run = step(sys.argv[1])
    for _ in range(2):
        run()
    print(high_water())

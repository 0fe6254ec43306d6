"""What statistics across processes cost: a training step of one layer, with and without them.

    python -m benchmarks.sync

Milliseconds of forward and backward in several processes of this machine, the median of many, in
turns; the slowest process counts. With gloo and on the CPU, or with nccl where there is a device
for each process: there nn.SyncBatchNorm runs too and is the rival.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

import bgn

PROCESSES, STEPS, WARM = 2, 60, 10
SHAPES = ((2, 64, 56, 56), (2, 256, 28, 28), (2, 512, 7, 7), (8, 256, 14, 14))


def layers(C: int, device: str) -> dict[str, nn.Module]:
    """What is compared; BN's statistics are BGN's with one group per channel."""
    found: dict[str, nn.Module] = {
        "BGN, G = 1": bgn.BatchGroupNorm2d(C, 1),
        "BGN across, G = 1": bgn.SyncBatchGroupNorm(C, 1),
        "BN": nn.BatchNorm2d(C),
        "BN across (bgn)": bgn.SyncBatchGroupNorm(C, C),
    }
    if device != "cpu":
        found["nn.SyncBatchNorm"] = nn.SyncBatchNorm(C)
    return {name: layer.to(device) for name, layer in found.items()}


def _step(layer: nn.Module, x: torch.Tensor, gy: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        layer(x).backward(gy)
        x.grad = None

    return step


def _collectives(C: int, device: str) -> None:
    own = torch.zeros(3, C, device=device)
    dist.all_gather([torch.empty_like(own) for _ in range(PROCESSES)], own)
    dist.all_reduce(own[:2])


def _times(steps: dict[str, Callable[[], None]], device: str) -> dict[str, float]:
    """Milliseconds, the slowest process'."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARM + STEPS):
        for name, step in steps.items():
            dist.barrier()
            begin = time.perf_counter()
            step()
            if device != "cpu":
                torch.cuda.synchronize()
            if turn >= WARM:
                times[name].append(1000 * (time.perf_counter() - begin))
    found = torch.tensor([statistics.median(own) for own in times.values()], device=device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return dict(zip(times, found.tolist(), strict=True))


def _work(rank: int, port: int) -> None:
    cuda = torch.cuda.device_count() >= PROCESSES
    device = f"cuda:{rank}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if cuda else "gloo", f"tcp://localhost:{port}", rank=rank, world_size=PROCESSES
    )
    for N, C, H, W in SHAPES:
        x, gy = torch.randn(2, N, C, H, W, device=device)
        x.requires_grad_()
        steps = {name: _step(layer, x, gy) for name, layer in layers(C, device).items()}
        found = _times({**steps, "two collectives alone": partial(_collectives, C, device)}, device)
        if rank == 0:
            if SHAPES[0] == (N, C, H, W):
                print(
                    f"| {PROCESSES} processes, {device.split(':')[0]}: ms | {' | '.join(found)} |"
                )
                print("| --- " * (1 + len(found)) + "|")
            print(f"| {N}x{C}x{H}x{W} | {' | '.join(f'{value:.2f}' for value in found.values())} |")
    dist.destroy_process_group()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        number: int = free.getsockname()[1]
    return number


if __name__ == "__main__":
    spawn(_work, (free_port(),), PROCESSES)  # type: ignore[no-untyped-call]

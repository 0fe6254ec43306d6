"""Memory traffic of the GPU core, computed from its launch plans; and what it would take at best.

    python -m benchmarks.gpu.traffic               # the table of passes and launches
    python -m benchmarks.gpu.traffic --roofline    # and estimated times on some GPUs

A *pass* is one read or one write of x's size. The *floor* is one that reads x and writes y, and
reads x and the gradient and writes the gradient of x: 2 + 3 passes. Numbers between the sweeps
(statistics of programs, sums of cells) count, too. Reads that the L2 cache serves, because x fits
it, are counted as passes all the same, and named.

The roofline is an estimate, not a measurement: bytes divided by the memory's bandwidth, plus a
microsecond and a half per launch. Real kernels reach 70 to 90 % of the bandwidth.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.shapes import NETWORKS
from bgn.kernels.triton.launch import Launch, fits_positional, launch, positional
from bgn.partition import Partition, slices

FLOOR = (2.0, 3.0)
LAUNCH = 1.5e-6  # seconds between kernels of a stream or of a CUDA graph


@dataclass(frozen=True)
class Device:
    """What a data sheet says."""

    name: str
    processors: int
    bandwidth: float
    """Bytes per second."""
    cache: int
    """Bytes of the last cache before memory."""


DEVICES = (
    Device("A100", 108, 2.04e12, 40 << 20),
    Device("H100", 132, 3.35e12, 50 << 20),
    Device("B200", 148, 8.0e12, 126 << 20),
    Device("MI300X", 304, 5.3e12, 256 << 20),
)


@dataclass(frozen=True)
class Traffic:
    """Passes and launches of a training step, forward and backward."""

    passes: tuple[float, float]
    launches: tuple[int, int]

    def seconds(self, bytes_of_x: int, device: Device) -> float:
        """An estimate: bandwidth and launches alone."""
        return sum(self.passes) * bytes_of_x / device.bandwidth + sum(self.launches) * LAUNCH


def of_plan(part: Partition, way: Launch, itemsize: int, residual: bool = False) -> Traffic:
    """What a plan moves. The partial sums are float32, written once and read once.

    A residual before an activation is read, and the output and its gradient come by backward. An
    activation alone moves nothing.
    """
    more = (1, 2) if residual else (0, 0)
    bytes_of_x = part.N * part.D * itemsize
    statistics = 2 * 4 * part.B * part.G / bytes_of_x
    if way.fused is not None:
        splits = part.block_size if way.walk == 0 else 1
        sums = 2 * 2 * 4 * part.B * splits * way.slots / bytes_of_x
        forward, backward = 2 + statistics, 3 + statistics + sums
        return Traffic((forward + more[0], backward + more[1]), (1, 2))
    rows = part.B * way.splits
    of_moments = 3 * rows * (way.tiles if way.one_group else way.slots)
    of_products = 2 * rows * (way.slots + (way.tiles if way.one_group else 0))
    forward = 3 + 2 * 4 * of_moments / bytes_of_x + statistics
    backward = 5 + 2 * 4 * of_products / bytes_of_x + 2 * statistics
    return Traffic((forward + more[0], backward + more[1]), (3, 3))


def of_positional(N: int, C: int, P: int, last: bool, itemsize: int, processors: int) -> Traffic:
    """PN: x is read once each way."""
    own = positional(N, C, P, last, itemsize, processors)
    sums = 2 * 2 * 4 * own.programs * C / (N * C * P * itemsize)
    return Traffic((2.0, 3.0 + sums), (1, 2))


# what torch's kernels are known to do (REREADS in benchmarks.traffic; native kernels)
BATCH_NORM = Traffic((3.0, 5.0), (2, 1))  # and one for num_batches_tracked
GROUP_NORM = Traffic((3.0, 5.0), (3, 4))


@dataclass(frozen=True)
class Row:
    """One feature map."""

    name: str
    part: Partition
    last: bool
    itemsize: int
    residual: bool = False
    """Whether one is added before an activation."""

    @property
    def floor(self) -> float:
        """The least possible."""
        return sum(FLOOR) + (3 if self.residual else 0)


def rows() -> Iterable[Row]:
    """Every shape of ResNet-50 at batch 2 and 8 with the paper's G, and others beside."""
    for N, G in (2, 1), (8, 16):
        for shape in NETWORKS["resnet50"]:
            part = slices(N, shape.C, shape.H * shape.W, G)
            yield Row(f"ResNet-50 {N}x{shape}, G = {G}", part, False, 4)
    part = slices(2, 256, 56 * 56, 1)
    yield Row("2x256x56x56, G = 1, bfloat16", part, False, 2)
    yield Row("2x256x56x56, G = 1, channels_last", part, True, 4)
    yield Row("2x256x56x56, G = 1, channels_last, bfloat16", part, True, 2)
    for C, side in (32, 128), (128, 32), (320, 8):
        yield Row(f"U-Net 3D 2x{C}x{side}^3, G = 1", slices(2, C, side**3, 1), False, 2)
    for C, P in (256, 3136), (1024, 196), (2048, 49):
        yield Row(f"GN(32) 8x{C}x{P}", slices(8, C, P, 32, 8), False, 4)
    yield Row("IN 8x256x3136", slices(8, 256, 3136, 256, 8), False, 4)
    yield Row("uneven groups: 8x64x1024, G = 7", slices(8, 64, 1024, 7), False, 4)
    yield Row("uneven, channels_last", slices(8, 64, 1024, 7), True, 4)
    yield Row("2x256x56x56, G = 1, sum and ReLU", slices(2, 256, 3136, 1), False, 4, True)
    yield Row("GN(32) 8x1024x196, sum and ReLU", slices(8, 1024, 196, 32, 8), False, 4, True)
    yield Row("one sample of 4e8 elements, G = 1", slices(1, 64, 6_250_000, 1), False, 4)
    yield Row("G = D: 64x64x64, G = 4096", slices(64, 64, 64, 4096), False, 4)


def of_row(row: Row, device: Device) -> Traffic:
    """The traffic of a row on a device."""
    way = launch(row.part, row.last, row.itemsize, device.processors)
    return of_plan(row.part, way, row.itemsize, row.residual)


def table(roofline: bool = False) -> str:
    """Passes, launches and, on request, estimated microseconds of a training step, as Markdown."""
    header = [
        "forward + backward",
        "MB",
        "passes",
        "by the floor",
        "launches",
        "x and gy fit L2 of",
    ]
    if roofline:
        header += [f"{d.name}: ours, BN, GN (us)" for d in DEVICES]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for row in rows():
        own = of_row(row, DEVICES[1])
        size = row.part.N * row.part.D * row.itemsize
        cells = [
            row.name, f"{size / 1e6:.3g}", f"{own.passes[0]:.3g} + {own.passes[1]:.3g}",
            f"{sum(own.passes) / row.floor:.2f}", f"{own.launches[0]} + {own.launches[1]}",
            ", ".join(d.name for d in DEVICES if 2 * size <= d.cache) or "none",
        ]  # fmt: skip
        if roofline:
            cells += [
                ", ".join(
                    f"{1e6 * t.seconds(size, d):.0f}"
                    for t in (of_row(row, d), BATCH_NORM, GROUP_NORM)
                )
                for d in DEVICES
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def positional_lines() -> str:
    """PN, whose plan is another one."""
    found = []
    for last in (False, True):
        own = of_positional(8, 256, 3136, last, 4, DEVICES[1].processors)
        assert fits_positional(256, last, 4)
        name = f"PN 8x256x3136{', channels_last' if last else ''}"
        found.append(f"{name}: {own.passes[0]:.3g} + {own.passes[1]:.3g} passes, 1 + 2 launches")
    return "\n".join(found)


if __name__ == "__main__":
    print(table("--roofline" in sys.argv))
    print()
    print(positional_lines())

"""What standardized weights cost in a training step, and which operation standardizes fastest.

    python -m benchmarks.standardize
    python -m benchmarks.standardize --seconds 300 --out results/bench/standardize
    python -m benchmarks.standardize --cpu-time     # where other processes compute too

Medians of interleaved rounds: whole steps of ResNet-50 (8 images of 224 x 224) and ResNet-20 (2
images of 32 x 32) with BGN, with and without; and forward and backward of the formula alone, on
all convolutions of ResNet-50, by several operations. The target is a step of ResNet-50 in at most
1.03 of its time without.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from benchmarks import script
from benchmarks.network import step
from benchmarks.tables import Table
from benchmarks.timing import interleaved
from bgn.surgery.standardize import EPS
from bgn_lab.models.resnet import resnet

STEPS = (("resnet50", 8), ("resnet20", 2))
NETWORK = "resnet50"  # whose weights the formula alone is timed on
NAMES = {"bgn": False, "bgn, standardized": True}
Clock = Callable[[], float]
Found = dict[str, dict[str, float]]


def _naive(weight: Tensor) -> Tensor:
    var, mean = torch.var_mean(weight, tuple(range(1, weight.dim())), correction=0, keepdim=True)
    return (weight - mean) * (var + EPS).rsqrt()


def _batch_norm(weight: Tensor) -> Tensor:
    return F.batch_norm(weight.flatten(1)[None], None, None, training=True, eps=EPS).view_as(weight)


def _group_norm(weight: Tensor) -> Tensor:
    return bgn.functional.group_norm(weight.flatten(1)[None], len(weight), eps=EPS).view_as(weight)


OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "F.layer_norm": lambda weight: F.layer_norm(weight, weight.shape[1:], eps=EPS),
    "bgn.functional.group_norm": _group_norm,
    "F.batch_norm": _batch_norm,
    "var_mean": _naive,
}


def steps(network: str, N: int, duration: float, clock: Clock) -> Found:
    """Seconds of a training step, with and without."""
    turns = {name: step(network, "bgn", N, standardized) for name, standardized in NAMES.items()}
    return interleaved(turns, duration, clock=clock)


def operations(duration: float, clock: Clock) -> Found:
    """Seconds of forward and backward of the formula, on all convolutions of ResNet-50."""
    model = resnet(NETWORK, nn.BatchNorm2d, 1000)
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    gradients = [torch.randn_like(weight) for weight in weights]

    def turn(operation: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            for weight, gradient in zip(weights, gradients, strict=True):
                torch.autograd.grad(operation(weight), weight, gradient)

        return run

    turns = {name: turn(own) for name, own in OPERATIONS.items()}
    return interleaved(turns, duration, clock=clock)


def table(found: dict[str, Found], what: str) -> Table:
    """A line per network and normalizer, and one per operation."""
    lines = []
    for case, times in found.items():
        for name, own in times.items():
            base = times.get(name.removesuffix(", standardized"))
            ratio = own["median"] / base["median"] if base and base is not own else None
            shown = "-" if ratio is None else f"{ratio:.3f}"
            lines.append([case, name, f"{1e3 * own['median']:.1f}", shown])
    return Table(f"Milliseconds ({what})", ["", "", "median", "of the one without"], lines)


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    """Times of the networks and of the formula alone, and a table of them."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    found = {
        f"{network}, {N} images": steps(network, N, options.seconds, clock) for network, N in STEPS
    }
    found["the formula alone"] = operations(min(options.seconds, 20.0), clock)
    return {"times": found}, table(found, "processor time" if options.cpu_time else "time")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = script.parser("standardize", __doc__, 180.0, "each network")
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="processor time on one thread, which other processes disturb less",
    )
    options = parser.parse_args(arguments)
    title = "Cost of standardized weights"
    return script.run("standardize", title, options, measured, one_thread=options.cpu_time)


if __name__ == "__main__":
    sys.exit(main())

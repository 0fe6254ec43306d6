"""What partners cost: a layer's forward and backward with renormalization, or means per channel.

    python -m benchmarks.partners
    python -m benchmarks.partners --seconds 3 --out results/bench/partners

Medians of interleaved rounds on shapes of ResNet-50, with all threads, and ratios to the plain
layer. The target for renormalization is at most 1.03, as a geometric mean. For standardized
weights: python -m benchmarks.standardize.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import bgn
from benchmarks import script
from benchmarks.tables import Table
from benchmarks.timing import interleaved

SHAPES = (
    (2, 64, 112, 112),
    (2, 256, 56, 56),
    (2, 512, 28, 28),
    (2, 1024, 14, 14),
    (2, 512, 7, 7),
    (2, 2048, 7, 7),
    (8, 256, 56, 56),
    (8, 1024, 14, 14),
)
GROUPS = (1, 16)
PLAIN, BN = "plain", "nn.BatchNorm2d"
PARTNERS: dict[str, dict[str, Any]] = {
    "renorm": {"renorm": bgn.Renorm(warmup=0)},
    "center": {"center": "channel"},
}
TARGETS = {"renorm": 1.03}


def measure(shape: tuple[int, ...], G: int, duration: float) -> dict[str, dict[str, float]]:
    """Seconds of a training call of each layer."""
    x, gy = torch.randn(shape).requires_grad_(), torch.randn(shape)

    def turn(layer: nn.Module) -> Callable[[], Any]:
        of = (x, layer.weight, layer.bias)
        return lambda: torch.autograd.grad(layer(x), of, gy)  # type: ignore[arg-type]

    layers = {name: bgn.BatchGroupNorm2d(shape[1], G, **own) for name, own in PARTNERS.items()}
    plain = {PLAIN: bgn.BatchGroupNorm2d(shape[1], G)}
    turns = {**plain, **layers, BN: nn.BatchNorm2d(shape[1])}
    return interleaved({name: turn(layer) for name, layer in turns.items()}, duration)


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    """Times of every shape, geometric means of the ratios, and a table of both."""
    found = {
        f"{'x'.join(map(str, shape))}, G = {G}": measure(shape, G, options.seconds)
        for shape in SHAPES
        for G in GROUPS
    }
    ratios = {
        name: {case: own[name]["median"] / own[PLAIN]["median"] for case, own in found.items()}
        for name in (*PARTNERS, BN)
    }
    means = {
        name: math.exp(sum(map(math.log, own.values())) / len(own)) for name, own in ratios.items()
    }
    lines = [
        [
            case,
            f"{1e6 * own[PLAIN]['median']:.0f}",
            *(f"{1e6 * own[name]['median']:.0f} ({ratios[name][case]:.2f})" for name in ratios),
        ]
        for case, own in found.items()
    ]
    lines.append(["geometric mean", "", *(_mean(name, mean) for name, mean in means.items())])
    header = ["", PLAIN, *ratios]
    table = Table("Microseconds of forward and backward (of the plain layer's)", header, lines)
    return {"times": found, "means": means}, table


def _mean(name: str, value: float) -> str:
    target = f", target {TARGETS[name]}" if name in TARGETS else ""
    return f"({value:.3f}{target})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = script.parser("partners", __doc__, 2.0, "each shape")
    options = parser.parse_args(arguments)
    return script.run("partners", "Cost of partners", options, measured, one_thread=False)


if __name__ == "__main__":
    sys.exit(main())

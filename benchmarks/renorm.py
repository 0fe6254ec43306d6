"""What batch renormalization costs: a layer's forward and backward with and without.

    python -m benchmarks.renorm
    python -m benchmarks.renorm --seconds 3 --out results/bench/renorm

Medians of interleaved rounds on shapes of ResNet-50, with two threads. The target is at most 1.03
of the time without, as a geometric mean.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console

import bgn
from benchmarks.about import about, describe, warning
from benchmarks.arguments import folder, seconds
from benchmarks.tables import Table
from benchmarks.timing import interleaved
from bgn_lab.system.files import write, write_json

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
TARGET = 1.03


def measure(shape: tuple[int, ...], G: int, duration: float) -> dict[str, dict[str, float]]:
    """Seconds of a training call of a layer, with and without."""
    x, gy = torch.randn(shape).requires_grad_(), torch.randn(shape)

    def turn(renorm: bool) -> Callable[[], Any]:
        layer = bgn.BatchGroupNorm2d(shape[1], G, renorm=bgn.Renorm(warmup=0) if renorm else None)
        of = (x, layer.weight, layer.bias)

        return lambda: torch.autograd.grad(layer(x), of, gy)

    turns = {"plain": turn(False), "renorm": turn(True)}
    return interleaved(turns, duration)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.renorm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=seconds, default=2.0, help="for each shape (default: 2)")
    parser.add_argument("--out", type=folder, help="folder for renorm.json and renorm.md")
    options = parser.parse_args(arguments)
    facts = about()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(describe(facts))
    if warning(facts):
        console.print(warning(facts), style="bold yellow")
    found = {
        f"{'x'.join(map(str, shape))}, G = {G}": measure(shape, G, options.seconds)
        for shape in SHAPES
        for G in GROUPS
    }
    ratios = {case: own["renorm"]["median"] / own["plain"]["median"] for case, own in found.items()}
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    lines = [
        [case, *(f"{1e6 * own[name]['median']:.0f}" for name in own), f"{ratios[case]:.3f}"]
        for case, own in found.items()
    ]
    lines.append(["geometric mean", "", "", f"{mean:.3f} (target {TARGET})"])
    table = Table("Microseconds of forward and backward", ["", "plain", "renorm", "ratio"], lines)
    console.print(table.rich())
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / "renorm.json", {"about": facts, "times": found, "mean": mean})
        parts = ["# Cost of renormalization", describe(facts), warning(facts)]
        text = "\n\n".join(part for part in (*parts, table.markdown()) if part)
        write(options.out / "renorm.md", text + "\n")
        console.print(f"Wrote renorm.json and renorm.md in {options.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a call costs on the smallest maps, where there is hardly anything to compute.

    python -m benchmarks.call
    python -m benchmarks.call --seconds 5 --out results/bench/call     # call.json and call.md

Microseconds of one layer on one thread, medians of interleaved rounds: training (forward and
backward) and eval (forward without gradients), BGN through its autograd node in C++ and in Python.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import bgn
from benchmarks import rivals, script
from benchmarks.tables import Table
from benchmarks.timing import samples, summary
from bgn.kernels import cpu

SHAPES = ((2, 16, 8, 8), (2, 64, 8, 8), (2, 16, 32, 32), (8, 64, 8, 8), (2, 512, 7, 7))
NODES = {"cpp": "bgn, C++", "python": "bgn, Python"}
CALLS = 50  # in a turn: switching the node takes time too, and is shared by so many
Found = dict[str, dict[str, float]]


def _is_built(node: str) -> bool:
    try:
        with cpu.use_node(node):
            return True
    except ValueError:
        return False


def nodes() -> list[str]:
    """The autograd nodes that there are here."""
    return [name for name in NODES if cpu.available() and _is_built(name)]


def _turn(step: rivals.Step, node: str | None) -> rivals.Step:
    def repeat() -> None:
        for _ in range(CALLS):
            step()

    def repeat_with() -> None:
        assert node is not None
        with cpu.use_node(node):
            repeat()

    return repeat if node is None else repeat_with


def compare(shape: tuple[int, int, int, int], mode: str, duration: float) -> Found:
    """Seconds of one call of each layer."""
    N, C = shape[:2]
    x, gy = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))

    def turn(layer: nn.Module, node: str | None = None) -> rivals.Step:
        train = mode == "train"
        step = rivals.training_step(layer, x, gy) if train else rivals.eval_step(layer, x)
        return _turn(step, node)

    groups = bgn.paper_groups(N)
    turns = {NODES[node]: turn(bgn.BatchGroupNorm2d(C, groups), node) for node in nodes()}
    turns["nn.BatchNorm2d"] = turn(nn.BatchNorm2d(C))
    turns["nn.GroupNorm"] = turn(nn.GroupNorm(groups, C))
    return summary({n: [t / CALLS for t in own] for n, own in samples(turns, duration).items()})


def table(rows: Sequence[dict[str, object]]) -> Table:
    """Microseconds, a line per shape and mode."""
    names = list(dict.fromkeys(name for row in rows for name in _times(row)))
    lines = []
    for row in rows:
        times = _times(row)
        cells = [f"{1e6 * times[n]['median']:.1f}" if n in times else "-" for n in names]
        lines.append([str(row["shape"]), str(row["mode"]), *cells])
    return Table("Microseconds of a call, one thread", ["shape", "mode", *names], lines)


def _times(row: dict[str, object]) -> Found:
    times = row["times"]
    assert isinstance(times, dict)
    return times


def measured(options: argparse.Namespace) -> tuple[dict[str, Any], Table]:
    """Times of every shape in both modes, and a table of them."""
    rows: list[dict[str, object]] = [
        {
            "shape": "x".join(map(str, shape)),
            "mode": mode,
            "times": compare(shape, mode, options.seconds),
        }
        for mode in ("train", "eval")
        for shape in SHAPES
    ]
    return {"rows": rows}, table(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options = script.parser("call", __doc__, 2.0, "each shape and mode").parse_args(arguments)
    return script.run("call", "Cost of a call", options, measured, one_thread=True)


if __name__ == "__main__":
    sys.exit(main())

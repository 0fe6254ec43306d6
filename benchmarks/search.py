"""A step of architecture search: the laboratory's mixture against a straightforward one.

And one path in place of the mixture, as in MANAS:

    python -m benchmarks.search --seconds 120 --out results/bench/search.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.network import high_water
from benchmarks.timing import interleaved
from bgn_lab import norms
from bgn_lab.experiments.nas.genotype import EDGES, INPUTS, NODES, OPERATIONS
from bgn_lab.experiments.nas.network import Mix, SearchCell, SearchNetwork
from bgn_lab.experiments.nas.operations import FactorizedReduce, Zero
from bgn_lab.experiments.nas.recipe import DartsRecipe
from bgn_lab.norms import AnyNorm
from bgn_lab.system import files

CELLS, C, N, CLASSES = 5, 8, 64, 10  # as in the laboratory's preset for laptops
NORMS = ("bn", "gn", "bgn")
PASSES = ("mixture", "straightforward", "straightforward, channels_last", "one path")


def _convs(C: int, size: int, stride: int, dilation: int, norm: AnyNorm) -> list[nn.Module]:
    alone = nn.Conv2d(C, C, size, stride, dilation * (size // 2), dilation, groups=C, bias=False)
    return [nn.ReLU(), alone, nn.Conv2d(C, C, 1, bias=False), norm(C, affine=False)]


def _operation(name: str, C: int, stride: int, norm: AnyNorm) -> nn.Module:
    size = int(name[-1]) if name[-1].isdigit() else 0
    if "pool" in name:
        pool = (
            nn.MaxPool2d(3, stride, 1)
            if name.startswith("max")
            else nn.AvgPool2d(3, stride, 1, count_include_pad=False)
        )
        return nn.Sequential(pool, norm(C, affine=False))
    if name.startswith("sep"):
        return nn.Sequential(*_convs(C, size, stride, 1, norm), *_convs(C, size, 1, 1, norm))
    if name.startswith("dil"):
        return nn.Sequential(*_convs(C, size, stride, 2, norm))
    if name == "none":
        return Zero(stride)
    return nn.Identity() if stride == 1 else FactorizedReduce(C, C, norm, False)


class StraightCell(nn.Module):
    """Every edge applies every operation to its state and adds up the results times weights."""

    def __init__(
        self, enter0: nn.Module, enter1: nn.Module, C: int, reduces: bool, norm: AnyNorm
    ) -> None:
        super().__init__()
        self.enter0, self.enter1 = enter0, enter1
        self.edges = nn.ModuleList(
            nn.ModuleList(
                _operation(name, C, 2 if reduces and state < INPUTS else 1, norm)
                for name in OPERATIONS
            )
            for state, _ in EDGES
        )

    def forward(self, s0: Tensor, s1: Tensor, mix: Tensor) -> Tensor:
        states = [self.enter0(s0), self.enter1(s1)]
        for node in range(INPUTS, INPUTS + NODES):
            parts = [
                w * own(states[state])
                for i, (state, to) in enumerate(EDGES)
                if to == node
                for w, own in zip(mix[i], cast(nn.ModuleList, self.edges[i]), strict=True)
            ]
            states.append(reduce(torch.add, parts))
        return torch.cat(states[INPUTS:], 1)


def straightforward(network: SearchNetwork, norm: AnyNorm) -> SearchNetwork:
    """The network of cells of that kind with the same weights; the one given is used up."""
    for i, cell in enumerate(network.cells):
        weights = list(cell.parameters())
        assert isinstance(cell, SearchCell)
        channels = cast(nn.Conv2d, cast(nn.Sequential, cell.enter1)[1]).out_channels
        new = StraightCell(cell.enter0, cell.enter1, channels, i in network.small, norm)
        with torch.no_grad():
            for own, weight in zip(new.parameters(), weights, strict=True):
                own.data = weight.data
        network.cells[i] = new
    return network


def step(which: str, name: str) -> Callable[[], None]:
    """Forward, loss and backward, to weights and mixture, on random images of 32x32."""
    torch.manual_seed(0)
    norm = norms.constructor(DartsRecipe(norm=name))
    network = SearchNetwork(C, CELLS, CLASSES, norm)
    x, target = torch.randn(N, 3, 32, 32), torch.randint(CLASSES, (N,))
    if which.startswith("straightforward"):
        network = straightforward(network, norm)
    if which != "straightforward":
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    alphas = torch.zeros(2, len(EDGES), len(OPERATIONS), requires_grad=True)

    def run() -> None:
        mixes: list[Mix] = list(alphas.softmax(-1))
        if which == "one path":
            mixes = torch.randint(len(OPERATIONS), (CELLS, len(EDGES))).tolist()
        torch.autograd.backward(F.cross_entropy(network(x, mixes), target))
        network.zero_grad(set_to_none=True)

    return run


def peak(which: str, norm: str) -> float:
    """Megabytes at the peak of some steps, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.search", "--peak", which, "--norm", norm]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=120, help="for each normalizer (default: 120)"
    )
    parser.add_argument("--threads", type=int, help="of torch (default: one per core)")
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--norm", choices=NORMS, help="one only")
    parser.add_argument("--peak", choices=PASSES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        run = step(options.peak, options.norm)
        for _ in range(3):
            run()
        print(high_water())
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    found: dict[str, Any] = {}
    for name in [options.norm] if options.norm else NORMS:
        times = interleaved({which: step(which, name) for which in PASSES}, options.seconds)
        base = times["straightforward"]["min"]
        for which in PASSES:
            times[which] |= {
                "times as fast": round(base / times[which]["min"], 2),
                "peak megabytes": peak(which, name),
            }
            print(f"{name:4} {which:32} {times[which]}", flush=True)
        found[name] = times
    if options.out:
        about = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "cells": CELLS,
            "C": C,
            "N": N,
        }
        files.write(options.out, json.dumps({**about, "steps": found}, indent=1).encode())


if __name__ == "__main__":
    main()

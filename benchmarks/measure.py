"""From a case to its row: times of all rivals, or the peak memory of a network with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import bgn
from benchmarks import network, rivals
from benchmarks.cases import Case
from benchmarks.others import is_disturbed
from benchmarks.timing import samples, summary

Row = dict[str, Any]
Times = dict[str, list[float]]
FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HUGE = 100  # megabytes; one round less in each pass, as they take long
STEP_RUNS = 7  # alternating training steps of a network; short ones have more:
STEP_TIME = 30  # times as long as a layer


def steps(case: Case) -> dict[str, rivals.Step]:
    """The functions to be timed, by rival."""
    shape, train = case.shape, case.mode == "train"
    draws = torch.Generator().manual_seed(0)
    x, gy = (
        torch.randn(case.N, shape.C, shape.H, shape.W, generator=draws)
        .to(DTYPES[case.dtype])
        .contiguous(memory_format=FORMATS[case.layout])
        for _ in range(2)
    )
    found: dict[str, rivals.Step] = {}
    for name in case.layers:
        if name == "floor":
            found[name] = rivals.floor(x, gy if train else None)
        elif shape.C % 32 == 0 or name not in rivals.NEEDS_32:
            layer = rivals.LAYERS[name](shape.C, bgn.paper_groups(case.N))
            found[name] = (
                rivals.training_step(layer, x, gy) if train else rivals.eval_step(layer, x)
            )
    return found


def times(case: Case, seconds: float, least: int = 3, seed: int = 0) -> Times:
    """Seconds of each rival, one number per round, for about ``seconds`` in all."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if case.one_thread else threads)
    try:
        if case.mode == "step":
            steps_ = {name: network.step(case.network, name, case.N) for name in case.layers}
            return samples(steps_, STEP_TIME * seconds, STEP_RUNS, seed)
        return samples(steps(case), seconds, least - (case.megabytes > HUGE), seed)
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Sitting:
    """What one pass found for a case, and the cores that other processes took meanwhile."""

    times: Times
    others: float | None


def row(case: Case, sittings: Sequence[Sitting]) -> Row:
    """What is kept of a case: its setting, and minimum, median and rounds of each rival.

    Disturbed sittings are left out where there are others: by what other processes did, not by what
    was found. For memory there are megabytes in place of seconds. A training step keeps all runs,
    because its ratio is the median of the ratios of runs next to each other.
    """
    kept = [own for own in sittings if not is_disturbed(own.others)] or sittings
    measured = {name: [t for own in kept for t in own.times[name]] for name in kept[0].times}
    taken = [own.others for own in kept if own.others is not None]
    found: Row = {
        "network": case.network, "shape": str(case.shape), "count": case.shape.count, "N": case.N,
        "G": bgn.paper_groups(case.N), "mode": case.mode, "dtype": case.dtype,
        "layout": case.layout, "one_thread": case.one_thread,
        "megabytes": round(case.megabytes, 3), "others": round(max(taken), 2) if taken else None,
        "passes": len(kept),
        "memory" if case.mode == "memory" else "times": summary(measured),
    }  # fmt: skip
    if case.mode == "step":
        found["runs"] = {name: [round(t, 6) for t in own] for name, own in measured.items()}
    return found


def memory(case: Case) -> Times:
    """Megabytes at the peak of each network's training step, each in processes of its own."""
    return {name: network.peaks(case.network, name, case.N) for name in case.layers}

"""The targets that the speed of this library is held to, and whether measured rows meet them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import FUSED, FUSED_SUM, Case, full
from benchmarks.others import is_disturbed

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """Ours against theirs on the rows of a setting: a limit of the mean, and one of the worst row.

    Limits are ratios of times; with ``unit``, differences of memory, in MB or in % of theirs.
    ``name`` is what ``--only`` asks for; several targets may share it.
    """

    name: str
    what: str
    ours: str
    theirs: str
    where: Mapping[str, object]  # fields of a row and the value that each must have
    mean: float
    worst: float | None = None
    least_megabytes: float = 0
    unit: str = ""

    def covers(self, row: Row) -> bool:
        """Whether a row belongs to the target."""
        return row["megabytes"] >= self.least_megabytes and all(
            row[field] == value for field, value in self.where.items()
        )

    def covers_case(self, case: Case) -> bool:
        """Whether a case gives a row of the target."""
        return self.covers({**vars(case), "megabytes": case.megabytes})


@dataclass(frozen=True)
class Verdict:
    """What was measured for a target."""

    target: Target
    mean: float | None  # None: nothing was measured
    worst: float | None
    at: str  # the shape of the worst
    rows: int
    wanted: int  # rows of a full run
    disturbed: int = 0  # rows during which other processes took the CPU: they prove nothing

    @property
    def holds(self) -> bool | None:
        """Whether the figures meet both limits; None where nothing was measured."""
        if self.mean is None or self.worst is None:
            return None
        limit = self.target.worst
        return self.mean <= self.target.mean and (limit is None or self.worst <= limit)


TRAINING = {
    "network": "resnet50", "mode": "train", "dtype": "float32", "layout": "contiguous",
    "one_thread": False,
}  # fmt: skip
_LAST = {**TRAINING, "layout": "channels_last"}
_STEP50 = {"network": "resnet50", "mode": "step"}
_MEMORY = {"network": "resnet50", "mode": "memory"}
_STEP20 = {"network": "resnet20", "mode": "step"}
BN, GN = "nn.BatchNorm2d", "nn.GroupNorm(32)"

TARGETS = (
    Target("training", "training", "bgn", BN, TRAINING, 0.42, 0.70),
    Target("training", "training", "bgn", GN, TRAINING, 0.80, 1.00),
    Target("floor", "training, from 10 MB", "bgn", "floor", TRAINING, 0.90, None, 10),
    Target("smallest", "training, 2x16x8x8", "bgn", BN, {"network": "smallest"}, 0.80),
    # as many groups as BGN has at batch 2; 16 channels do not make 32
    Target(
        "smallest", "training, 2x16x8x8", "bgn", "nn.GroupNorm(1)", {"network": "smallest"}, 0.95
    ),
    Target(
        "bfloat16", "training, bfloat16", "bgn", BN, {**TRAINING, "dtype": "bfloat16"}, 0.50
    ),
    Target("channels_last", "training, channels_last", "bgn", BN, _LAST, 0.80, 1.00),
    Target("narrow", "3 to 20 channels", "bgn", BN, {**TRAINING, "network": "narrow"}, 0.80, 1.00),
    Target(
        "narrow", "3 to 20 channels, channels_last", "bgn", BN, {**_LAST, "network": "narrow"},
        0.80, 1.00,
    ),
    Target("eval", "eval", "bgn", BN, {**TRAINING, "mode": "eval"}, 0.80, 1.00),
    Target("relatives", "GN, training", "bgn.GroupNorm(32)", GN, TRAINING, 0.85, 1.00),
    Target("relatives", "IN, training", "bgn IN", "nn.InstanceNorm2d", TRAINING, 0.85, 1.00),
    Target("relatives", "LN, training", "bgn LN", "nn.GroupNorm(1)", TRAINING, 0.85, 1.00),
    Target("relatives", "PN, channels_last", "bgn PN", "layer_norm", _LAST, 0.85, 1.00),
    Target("fused", "training, fused", *FUSED, TRAINING, 0.40),
    Target("fused", "training, fused sum", *FUSED_SUM, TRAINING, 0.40),
    Target("fused", "eval, fused", *FUSED, {**TRAINING, "mode": "eval"}, 0.60),
    Target("resnet50", "ResNet-50 step, batch 8", "bgn", BN, _STEP50, 0.92),
    Target("fused", "ResNet-50 step, fused", "bgn, fused", BN, _STEP50, 0.86),
    Target("resnet20", "ResNet-20 step, batch 2", "bgn", BN, _STEP20, 0.92),
    # plain: no more than a layer may; keeping outputs alone: the inputs of 53 layers less
    Target("fused", "ResNet-50 step, memory", "bgn, fused", BN, _MEMORY, 2.0, unit="MB"),
    Target(
        "fused", "ResNet-50 step, memory", "bgn, fused, output kept", BN, _MEMORY, -20.0, unit="%"
    ),
    # A layer may keep O(C + G) numbers beyond BN: below 1 MB for 53 layers. The other megabyte is
    # scatter between processes, about 0.5 MB. One more feature map per layer would take 300 MB.
    Target(
        "memory", "ResNet-50 step, memory", "bgn", BN, _MEMORY, 2.0, unit="MB",
    ),
)  # fmt: skip
NAMES = tuple(dict.fromkeys(target.name for target in TARGETS))


def ratio(row: Row, ours: str, theirs: str) -> float | None:
    """Our time by theirs, or None where one of them did not run.

    Median by median; where all runs are kept, the median of the ratios of runs in one round.
    """
    times = row.get("times", {})
    if ours not in times or theirs not in times:
        return None
    if "runs" in row:
        pairs = zip(row["runs"][ours], row["runs"][theirs], strict=True)
        return float(statistics.median(a / b for a, b in pairs))
    return float(times[ours]["median"] / times[theirs]["median"])


def extra_memory(row: Row, ours: str, theirs: str, unit: str = "MB") -> float | None:
    """Memory at our peak beyond theirs, or None where one of them did not run."""
    memory = row.get("memory", {})
    if ours not in memory or theirs not in memory:
        return None
    own, other = memory[ours]["median"], memory[theirs]["median"]
    return float(own - other if unit == "MB" else 100 * (own / other - 1))


def geometric_mean(ratios: Iterable[tuple[float, int]]) -> float:
    """Mean of (ratio, how often it counts)."""
    pairs = list(ratios)
    return math.exp(sum(n * math.log(r) for r, n in pairs) / sum(n for _, n in pairs))


def judge(target: Target, rows: Sequence[Row]) -> Verdict:
    """Mean and worst of the rows that belong to a target."""

    def value(row: Row, ours: str, theirs: str) -> float | None:
        return (
            extra_memory(row, ours, theirs, target.unit)
            if target.unit
            else ratio(row, ours, theirs)
        )

    found = [
        (v, row["count"], f"{row['N']}x{row['shape']}")
        for row in rows
        if target.covers(row) and (v := value(row, target.ours, target.theirs)) is not None
    ]
    wanted = sum(target.covers_case(case) for case in full(2))
    if not found:
        return Verdict(target, None, None, "", 0, wanted)
    worst, _, at = max(found)
    # a difference has one row and may be negative
    mean = worst if target.unit else geometric_mean((v, n) for v, n, _ in found)
    disturbed = sum(
        target.covers(row) and is_disturbed(row.get("others")) and target.theirs in row["times"]
        for row in rows
        if not target.unit
    )
    return Verdict(target, mean, worst, at, len(found), wanted, disturbed)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """One per target, also for those that were not measured."""
    return [judge(target, rows) for target in TARGETS]


def exit_code(found: Iterable[Verdict], strict: bool) -> int:
    """1 where ``strict`` and a target does not hold, is disturbed, or none was measured; else 0."""
    holds = [v.holds and not v.disturbed for v in found if v.holds is not None]
    return int(strict and not (holds and all(holds)))

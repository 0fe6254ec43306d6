"""One cell of a comparison: runs that differ in the seed only."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bgn_lab.experiments.fewshot.task import half_width
from bgn_lab.report.collect import Run
from bgn_lab.training.run import NOT_CONVERGED

NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Spread:
    """Mean, in percent, and what stands behind the ±: the standard deviation over seeds, or a 95 % interval over episodes."""

    mean: float
    deviation: float | None  # None of a single value
    count: int

    def text(self, sign: bool = False) -> str:
        """As in a table.

        >>> Spread(71.25, 0.5, 2).text(), Spread(3.0, None, 1).text(sign=True)
        ('71.2 ± 0.5', '+3.0')
        """
        deviation = "" if self.deviation is None else f" ± {self.deviation:.1f}"
        return f"{self.mean:{'+' if sign else ''}.1f}{deviation}"


def spread(values: Sequence[float]) -> Spread | None:
    """Of fractions, in percent; None of nothing."""
    if not values:
        return None
    percent = [100 * value for value in values]
    return Spread(
        statistics.mean(percent),
        statistics.stdev(percent) if len(percent) > 1 else None,
        len(percent),
    )


@dataclass(frozen=True)
class Cell:
    """The runs of one normaliser at one batch size, one per seed. Those that did not converge are counted, not averaged."""

    runs: tuple[Run, ...]
    accuracy: Spread | None
    difference: Spread | None  # to BN with the same seed
    best: bool = False

    @property
    def results(self) -> list[dict[str, Any]]:
        """Of the runs that are over."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def failed(self) -> int:
        """How many did not converge."""
        return sum(run.failed for run in self.runs)

    def text(self) -> str:
        """Without the difference."""
        if not self.results:
            return NOT_RUN
        return NOT_CONVERGED if self.accuracy is None else self.accuracy.text()

    def note(self) -> str:
        """How many failed, where others did not."""
        return (
            f"{self.failed} of {len(self.results)} {NOT_CONVERGED}"
            if self.failed and self.accuracy
            else ""
        )

    def difference_text(self) -> str:
        """Empty for BN itself and where there is nothing to compare."""
        return "" if self.difference is None else self.difference.text(sign=True)


def interval(values: Sequence[Sequence[float]]) -> Spread | None:
    """Of fractions by seed and episode: over the episodes, each the mean of its seeds."""
    if not values:
        return None
    episodes = [statistics.mean(column) for column in zip(*values, strict=True)]
    half = half_width(episodes)
    return Spread(
        100 * statistics.mean(episodes), None if half is None else 100 * half, len(values)
    )


def cell(runs: Mapping[int, Run], baseline: Mapping[int, Run], key: str = "test_accuracy") -> Cell:
    """Of runs by seed, with those of BN at the same batch size."""
    order = tuple(runs[seed] for seed in sorted(runs))
    own, other = _accuracies(runs, key), _accuracies(baseline, key)
    if any("episodes" in run.result for run in order if run.result is not None):
        parts, others = _episodes(runs, key), _episodes(baseline, key)
        differences = [
            [a - b for a, b in zip(parts[s], others[s], strict=True)] for s in parts if s in others
        ]
        return Cell(order, interval(list(parts.values())), interval(differences))
    paired = [own[seed] - other[seed] for seed in own if seed in other]
    return Cell(order, spread(list(own.values())), spread(paired))


def _converged(runs: Mapping[int, Run]) -> dict[int, dict[str, Any]]:
    return {
        seed: run.result for seed, run in runs.items() if run.result is not None and not run.failed
    }


def _accuracies(runs: Mapping[int, Run], key: str) -> dict[int, float]:
    return {
        seed: result[key]
        for seed, result in _converged(runs).items()
        if result.get(key) is not None
    }


def _episodes(runs: Mapping[int, Run], key: str) -> dict[int, list[float]]:
    return {seed: result["episodes"][key] for seed, result in _converged(runs).items()}


def count(n: int, what: str) -> str:
    """
    >>> count(1, "epoch"), count(1200, "epoch")
    ('1 epoch', '1,200 epochs')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def became(found: Cell) -> str:
    """What the normaliser amounts to in this network's layers, in short: its kind, its G and the values per statistic."""
    if not found.results:
        return ""
    rows = found.results[0]["normalisers"]
    kinds = Counter(row["acts_as"] for row in rows).most_common()
    kind = (
        kinds[0][0]
        if len(kinds) == 1
        else ", ".join(f"{kind} in {count(n, 'layer')}" for kind, n in kinds)
    )
    return f"{kind}; G {_range([row['G'] for row in rows])}; {_range([row['instances'] for row in rows])} values"


def _range(values: list[int]) -> str:
    """
    >>> _range([98, 1568, 392]), _range([8, 8])
    ('98 to 1,568', '8')
    """
    return f"{min(values):,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"

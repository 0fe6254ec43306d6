"""One cell of a comparison: runs that differ in the seed only."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bgn_lab.experiments.fewshot.task import half_width
from bgn_lab.report.collect import Run
from bgn_lab.training.result import NOT_CONVERGED, Result

NOT_RUN, INCOMPLETE = "not run yet", "incomplete"


@dataclass(frozen=True)
class Spread:
    """Mean in percent, and the ±: standard deviation over seeds, or 95 % interval over episodes."""

    mean: float
    deviation: float | None  # None for a single value
    count: int

    def text(self, sign: bool = False, space: str = " ") -> str:
        """As in a table.

        >>> Spread(71.25, 0.5, 2).text(), Spread(3.0, None, 1).text(sign=True)
        ('71.2 ± 0.5', '+3.0')
        """
        deviation = "" if self.deviation is None else f"{space}±{space}{self.deviation:.1f}"
        return f"{self.mean:{'+' if sign else ''}.1f}{deviation}"


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation of fractions, in percent; None without values."""
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
    """Runs of one normalizer at one place, one per seed.

    Runs that did not converge have an average of their own, which never mixes with that of the
    others.
    """

    runs: tuple[Run, ...]
    accuracy: Spread | None  # of runs that converged
    difference: Spread | None  # to BN with the same seed
    best: bool = False
    failed_accuracy: Spread | None = None  # of runs that did not converge and were tested
    missing: str = NOT_RUN  # what to write without a result

    @property
    def results(self) -> list[Result]:
        """Results of runs that are over."""
        return [run.result for run in self.runs if run.result is not None]

    @property
    def failed(self) -> int:
        """How many did not converge."""
        return sum(run.failed for run in self.runs)

    @property
    def shown(self) -> Spread | None:
        """What stands first: the accuracy of runs that converged or, if none did, of all."""
        return self.accuracy or self.failed_accuracy

    def text(self, space: str = " ") -> str:
        """The accuracy, without the difference."""
        if not self.results:
            return self.missing
        return NOT_CONVERGED if self.shown is None else self.shown.text(space=space)

    def note(self) -> str:
        """How many did not converge, with their accuracy where that of others stands before it."""
        if not self.failed or self.shown is None:
            return ""
        reached = self.failed_accuracy if self.accuracy else None
        return f"{NOT_CONVERGED}: {self.failed} of {len(self.results)}" + (
            f" ({reached.text()})" if reached else ""
        )

    def short_note(self) -> str:
        """The same for a narrow column: ``✗1/2``."""
        return f"✗{self.failed}/{len(self.results)}" if self.failed else ""

    def difference_text(self, space: str = " ") -> str:
        """Empty for BN itself and where there is nothing to compare."""
        return "" if self.difference is None else self.difference.text(sign=True, space=space)


def interval(values: Sequence[Sequence[float]]) -> Spread | None:
    """Mean over episodes, each the mean of its seeds, with its 95 % interval.

    ``values`` are fractions by seed and episode.
    """
    if not values:
        return None
    episodes = [statistics.mean(column) for column in zip(*values, strict=True)]
    half = half_width(episodes)
    return Spread(
        100 * statistics.mean(episodes), None if half is None else 100 * half, len(values)
    )


def cell(runs: Mapping[int, Run], baseline: Mapping[int, Run], key: str = "test_accuracy") -> Cell:
    """Averages of runs by seed; ``baseline`` has those of BN at the same place."""
    order = tuple(runs[seed] for seed in sorted(runs))
    own, other = _accuracies(runs, key), _accuracies(baseline, key)
    failed = spread(list(_accuracies(runs, key, failed=True).values()))
    if any(run.result.episodes for run in order if run.result is not None):
        parts, others = _episodes(runs, key), _episodes(baseline, key)
        differences = [
            [a - b for a, b in zip(parts[s], others[s], strict=True)] for s in parts if s in others
        ]
        found = interval(list(parts.values())), interval(differences)
    else:
        paired = [own[seed] - other[seed] for seed in own if seed in other]
        found = spread(list(own.values())), spread(paired)
    return Cell(order, *found, failed_accuracy=failed)


def _over(runs: Mapping[int, Run], failed: bool) -> dict[int, Result]:
    return {
        seed: run.result
        for seed, run in runs.items()
        if run.result is not None and run.failed == failed
    }


def _accuracies(runs: Mapping[int, Run], key: str, failed: bool = False) -> dict[int, float]:
    return {
        seed: value
        for seed, result in _over(runs, failed).items()
        if (value := result.measure(key)) is not None
    }


def _episodes(runs: Mapping[int, Run], key: str) -> dict[int, list[float]]:
    return {
        seed: accuracies
        for seed, result in _over(runs, failed=False).items()
        if (accuracies := result.episodes[key]) is not None
    }


def count(n: int, what: str) -> str:
    """
    >>> count(1, "epoch"), count(1200, "epoch")
    ('1 epoch', '1,200 epochs')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def became(found: Cell) -> str:
    """What the normalizer is in this network's layers, in short.

    That is its kind, its G and the values per statistic.
    """
    rows = found.results[0].layers if found.results else []
    if not rows:
        return ""
    kinds = Counter(row.acts_as for row in rows).most_common()
    kind = (
        kinds[0][0]
        if len(kinds) == 1
        else ", ".join(f"{kind} in {count(n, 'layer')}" for kind, n in kinds)
    )
    values = _range([row.instances for row in rows])
    return f"{kind}; G {_range([row.G for row in rows])}; {values} values"


def _range(values: list[int]) -> str:
    """
    >>> _range([98, 1568, 392]), _range([8, 8])
    ('98 to 1,568', '8')
    """
    return f"{min(values):,}" if len(set(values)) == 1 else f"{min(values):,} to {max(values):,}"

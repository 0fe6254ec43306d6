"""One cell of a comparison: runs that differ in the seed only."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bgn_lab.report.collect import Run
from bgn_lab.report.intervals import paired
from bgn_lab.training.result import NOT_CONVERGED, Result

NOT_RUN, INCOMPLETE = "not run yet", "incomplete"
AHEAD, BEHIND = "ahead", "behind"


@dataclass(frozen=True)
class Spread:
    """Mean in percent, and what stands after the ±.

    That is the standard deviation over seeds of an accuracy, and half of the 95 % interval of a
    difference.
    """

    mean: float
    deviation: float | None  # None for a single value
    count: int

    def text(self, sign: bool = False, space: str = " ") -> str:
        """The cell as text of a table.

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

    def by_seed(self, key: str) -> dict[int, float]:
        """A measure of the runs that converged."""
        return _accuracies({run.recipe.seed: run for run in self.runs}, key)

    @property
    def standing(self) -> str:
        """AHEAD or BEHIND of BN if the interval of the difference excludes zero, else nothing."""
        apart = self.difference
        if apart is None or apart.deviation is None or abs(apart.mean) <= apart.deviation:
            return ""
        return AHEAD if apart.mean > 0 else BEHIND

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


def difference(one: Mapping[int, float], other: Mapping[int, float]) -> Spread | None:
    """Mean difference of fractions by seed in percent points, ± half of its 95 % interval.

    >>> difference({0: 0.7, 1: 0.72, 2: 0.71}, {0: 0.6, 1: 0.61, 2: 0.61}).text(sign=True)
    '+10.3 ± 1.4'
    """
    count = len(one.keys() & other.keys())
    if not count:
        return None
    mean, half = paired(one, other)
    return Spread(100 * mean, None if half is None else 100 * half, count)


def cell(runs: Mapping[int, Run], baseline: Mapping[int, Run], key: str = "test_accuracy") -> Cell:
    """Averages of runs by seed; ``baseline`` has those of BN at the same place."""
    own, other = _accuracies(runs, key), _accuracies(baseline, key)
    failed = spread(list(_accuracies(runs, key, failed=True).values()))
    return Cell(
        tuple(runs[seed] for seed in sorted(runs)),
        spread(list(own.values())),
        difference(own, other),
        failed_accuracy=failed,
    )


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

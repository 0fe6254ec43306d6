"""What a comparison says, in sentences: which rows lead BN, which trail it, what is within noise.

A row leads or trails if the 95 % interval of its difference to BN, paired by seed, excludes zero
(:attr:`Cell.standing`). One seed says nothing about spread, so it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bgn_lab.report.cells import AHEAD, BEHIND, Cell, Spread, difference
from bgn_lab.report.grid import MEAN, Column, Comparison
from bgn_lab.report.intervals import CONFIDENCE

NAMED = 3  # rows that a sentence lists by name
ENOUGH = 3  # seeds from which on intervals are not very wide
SHOWN = 4  # sentences that stand at the top; a page folds the others
FEW_SEEDS = {
    1: "One seed says nothing about spread: any of these differences may be chance.",
    2: "Two seeds leave wide intervals.",
}
MORE_SEEDS = "The same command with more --seeds adds the runs that are missing."


class Sentence(NamedTuple):
    """A sentence about one column or, where they say the same, several."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where} {self.text}"


def verdict(found: Comparison) -> list[Sentence]:
    """Sentences for each column, a mean over tasks first; columns that say the same share one."""
    by_text: dict[str, list[Column]] = {}
    for column in sorted(found.columns, key=lambda column: column.place != MEAN):
        cells = {label: found.cells[label, column] for label in found.labels}
        for text in _sentences(found, cells, column.measure.key):
            by_text.setdefault(text, []).append(column)
    return [Sentence(_where(found, columns), text) for text, columns in by_text.items()]


def _sentences(found: Comparison, cells: Mapping[str, Cell], key: str) -> list[str]:
    """About one column: a sentence for each row of BN that others are compared with."""
    if not any(own.results for own in cells.values()):
        return []
    by_rival: dict[str, dict[str, Spread]] = {}
    for label, cell in cells.items():
        if cell.difference and label in found.rivals:
            by_rival.setdefault(found.rivals[label], {})[label] = cell.difference
    made = [_against(spoken(bn), own, cells) for bn, own in by_rival.items()]
    made = made or [_highest(cells, key)]
    made[-1] += _not_converged(cells)
    return [f"{'; '.join(parts)}." for parts in made if parts]


def advice(found: Comparison) -> str:
    """What few seeds mean and how to add some; empty with enough of them."""
    seeds = max((own.accuracy.count for own in found.cells.values() if own.accuracy), default=0)
    return f"{FEW_SEEDS[seeds]} {MORE_SEEDS}" if 0 < seeds < ENOUGH else ""


def noise(found: Comparison) -> str:
    """How rows are judged, and how often chance alone would mark one."""
    apart = (own.difference for own in found.cells.values())
    made = sum(one is not None and one.count > 1 for one in apart)
    if not made:
        return ""
    by_chance = round(made * (1 - CONFIDENCE))
    chance = f" Of {made} intervals chance alone makes about {by_chance} exclude it."
    return (
        "Within noise: the 95 % interval of the difference to BN, seed by seed (Student's t),"
        f" includes zero.{chance if by_chance else ''}"
    )


def spoken(label: str) -> str:
    """The name of a row in a sentence.

    >>> spoken("BGN + WS, G = 8"), spoken("BN")
    ('BGN + WS (G = 8)', 'BN')
    """
    name, _, rest = label.partition(", ")
    return f"{name} ({rest})" if rest else name


def _where(found: Comparison, columns: Sequence[Column]) -> str:
    if not found.by_batch_size:
        return f"{_list([column.title for column in columns])}:"
    images = "image" if [column.place for column in columns] == [1] else "images"
    each = " per worker" if found.setting.simulate_workers > 1 else ""
    return f"At {_list([str(column.place) for column in columns])} {images}{each}"


def _against(bn: str, gaps: Mapping[str, Spread], cells: Mapping[str, Cell]) -> list[str]:
    """Parts of a sentence that compares rows with one of BN."""
    order = sorted(gaps, key=lambda label: -gaps[label].mean)
    seeds = max(own.count for own in gaps.values())
    over = f"over {seeds} seeds"
    if seeds == 1:
        return [_single(order, gaps, bn)]
    ahead = [label for label in order if cells[label].standing == AHEAD]
    behind = [label for label in order if cells[label].standing == BEHIND]
    single = [label for label in order if gaps[label].count == 1]
    rest = [label for label in order if label not in (*ahead, *behind, *single)]
    if not ahead and not behind:
        parts = [_all_within_noise(rest, gaps, bn, over)]
    elif not ahead and not rest and len(behind) > 1:
        least = f"{_named(behind[0], gaps)} by least"
        parts = [f"{bn} leads every other row by more than noise {over}, {least}"]
    else:
        parts = _lead(bn, ahead, gaps, over)
        if behind:
            trail = "trails" if len(behind) == 1 else "trail"
            whom = "it" if ahead else f"{bn} by more than noise {over}"
            parts += [f"{_names(behind[::-1])} {trail} {whom}"]
        if rest:
            one = f"{spoken(rest[0])} is" if len(rest) == 1 else "the others are"
            parts += [f"{one} within noise"]
    return parts + ([f"{_names(single)}: one seed only"] if single else [])


def _lead(bn: str, ahead: Sequence[str], gaps: Mapping[str, Spread], over: str) -> list[str]:
    if not ahead:
        return []
    first, *others = ahead
    parts = [f"{spoken(first)} leads {bn} by {gaps[first].text()} points {over}"]
    if others:
        named = _list(_cut([_named(label, gaps) for label in others]))
        parts += [f"so {'does' if len(others) == 1 else 'do'} {named}"]
    return parts


def _single(order: Sequence[str], gaps: Mapping[str, Spread], bn: str) -> str:
    """One seed: what is highest, and by how much."""
    best = order[0]
    if gaps[best].mean > 0:
        return f"{spoken(best)} is {gaps[best].text()} points above {bn}, with one seed"
    return f"{bn} is highest with one seed, {_named(best, gaps)} next"


def _all_within_noise(order: Sequence[str], gaps: Mapping[str, Spread], bn: str, over: str) -> str:
    largest = max(order, key=lambda label: abs(gaps[label].mean))
    if len(order) == 1:
        return f"{_named(largest, gaps)} is within noise of {bn} {over}"
    return f"every row is within noise of {bn} {over}, {_named(largest, gaps)} farthest from it"


def _highest(cells: Mapping[str, Cell], key: str) -> list[str]:
    """Parts of a sentence where there is no BN: the best row beside the next."""
    means = {label: own.accuracy for label, own in cells.items() if own.accuracy and not own.failed}
    if not means:
        return []
    first, *others = sorted(means, key=lambda label: -means[label].mean)
    reached = f"{spoken(first)} is highest with {means[first].text()} %"
    lead = others and difference(cells[first].by_seed(key), cells[others[0]].by_seed(key))
    if not lead:
        return [reached]
    next_ = spoken(others[0])
    if lead.deviation is None:
        return [f"{reached} and one seed, {next_} next ({-lead.mean:+.1f})"]
    sure = lead.mean > lead.deviation
    what = f"its lead over {next_}, {lead.text()} points over {lead.count} seeds,"
    return [reached, f"{what} is {'more than' if sure else 'within'} noise"]


def _not_converged(cells: Mapping[str, Cell]) -> list[str]:
    failed = {label: own for label, own in cells.items() if own.failed}
    if not failed:
        return []
    names = [
        f"{spoken(label)} ({own.failed} of {len(own.results)} runs)"
        for label, own in failed.items()
    ]
    return [f"{_list(_cut(names))} did not converge"]


def _named(label: str, gaps: Mapping[str, Spread]) -> str:
    name, _, rest = label.partition(", ")
    difference = gaps[label].text(sign=True)
    return f"{name} ({rest}, {difference})" if rest else f"{name} ({difference})"


def _names(labels: Sequence[str]) -> str:
    return _list(_cut([spoken(label) for label in labels]))


def _cut(names: Sequence[str]) -> list[str]:
    """
    >>> _cut(["a", "b", "c", "d", "e"]), _cut(["a", "b", "c", "d"])
    (['a', 'b', 'c', '2 more'], ['a', 'b', 'c', 'd'])
    """
    more = len(names) - NAMED
    return [*names[:NAMED], f"{more} more"] if more > 1 else list(names)


def _list(names: Sequence[str]) -> str:
    """
    >>> _list(["2"]), _list(["2", "8", "32"])
    ('2', '2, 8 and 32')
    """
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last

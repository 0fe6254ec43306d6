"""Which runs: the paper's two ImageNet grids, or a grid of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from bgn import checks, paper_groups
from bgn.factory import NAMES
from bgn_lab import paper


@dataclass(frozen=True)
class Run:
    """One training run: a normalizer at a number of images per worker."""

    norm: str
    G: int | None  # of BGN; the others' follows from their name
    batch_size: int
    seed: int = 0


Grid = Mapping[str, Sequence[Run]]  # by part; a run may be in several


def paper_grid(seeds: int = 1) -> Grid:
    """The paper's ImageNet runs.

    These are every normalizer at every batch size, and BGN at every G for two batch sizes.

    >>> grid = paper_grid()
    >>> {part: len(runs) for part, runs in grid.items()}, len(distinct(grid))
    ({'table 2, batch sizes': 49, 'table 1, G': 20}, 67)
    """
    checks.positive_int("seeds", seeds)
    table, sweep = paper.IMAGENET, paper.GROUP_SWEEP
    sizes = [(norm, int(size)) for norm, size in product(table.rows, table.columns)]
    groups = [(int(size), int(G)) for size, G in product(sweep.rows, sweep.columns)]
    return {
        f"table {table.number}, batch sizes": [
            Run(norm, paper.GROUPS[size] if norm == "bgn" else None, size, seed)
            for seed in range(seeds)
            for norm, size in sizes
        ],
        f"table {sweep.number}, G": [
            Run("bgn", G, size, seed) for seed in range(seeds) for size, G in groups
        ],
    }


def own_grid(
    norms: Iterable[str], batch_sizes: Iterable[int], groups: Iterable[str], seeds: int = 1
) -> Grid:
    """Every normalizer at every batch size; BGN once for each of ``groups``, numbers or "paper".

    >>> grid = own_grid(["bn", "bgn"], [2, 8], ["paper", "1"])  # at 2 images the paper's G is 1
    >>> [(run.norm, run.G, run.batch_size) for run in distinct(grid)]
    [('bn', None, 2), ('bn', None, 8), ('bgn', 1, 2), ('bgn', 16, 8), ('bgn', 1, 8)]
    """
    norms, batch_sizes, groups = tuple(norms), tuple(batch_sizes), tuple(groups)
    for name, values in {"norms": norms, "batch_sizes": batch_sizes, "groups": groups}.items():
        if not values:
            raise ValueError(f"{name} is empty; expected at least one")
    for norm in norms:
        name, _, partner = norm.partition("+")
        if partner:
            raise ValueError(
                f"norms={norm!r} has the partner {partner!r}, whose time is not known here;"
                f" expected {name!r} alone"
            )
        checks.one_of("norms", name, NAMES)
    for size in batch_sizes:
        checks.positive_int("batch_sizes", size)
    for word in groups:
        if word != "paper" and not (word.isdecimal() and int(word)):
            raise ValueError(f"groups={word!r} is neither a positive number nor 'paper'")
    checks.positive_int("seeds", seeds)
    return {
        "own grid": [
            Run(norm, G, size, seed)
            for seed, norm, size in product(range(seeds), norms, batch_sizes)
            for G in (
                [paper_groups(size) if word == "paper" else int(word) for word in groups]
                if norm == "bgn"
                else [None]
            )
        ]
    }


def distinct(grid: Grid) -> list[Run]:
    """Every run once: what two parts share is trained once."""
    return list(dict.fromkeys(run for runs in grid.values() for run in runs))

"""What an architecture search finds: which operations lead to which node of a cell.

A cell has 6 states: 0 and 1 are the outputs of the two cells before, 2 to 5 are its nodes, each the
sum of some operations on earlier states. Its output is the concatenation of all nodes. Cells at a
third and at two thirds of a network halve the image (reduction cells). Either all reduction cells
are alike, and so are all others, or every cell is one of its own.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bgn import checks
from bgn_lab.system.printable import shorten
from bgn_lab.system.reading import DAMAGE, LONGEST, OBJECTS, read_bytes

NONE = "none"
RANDOM = "random-"
_RANDOM = re.compile(r"random-(?P<seed>\d+)(-of-(?P<cells>[1-9]\d*))?")
OPERATIONS = (
    NONE, "max_pool_3x3", "avg_pool_3x3", "skip_connect", "sep_conv_3x3", "sep_conv_5x5",
    "dil_conv_3x3", "dil_conv_5x5",
)  # fmt: skip
SOMETHING = [k for k, name in enumerate(OPERATIONS) if name != NONE]
NODES, INPUTS, KEPT = 4, 2, 2  # of a cell; edges that lead to a node in the end
EDGES = tuple(
    (state, INPUTS + node) for node in range(NODES) for state in range(INPUTS + node)
)  # (from, to), 14 of them


class Edge(NamedTuple):
    """An operation on a state."""

    operation: str
    state: int


Cell = tuple[tuple[Edge, ...], ...]  # the edges that lead to each node


def reductions(cells: int) -> tuple[int, int]:
    """Which cells of so many halve the image.

    >>> reductions(8), reductions(20)
    ((2, 5), (6, 13))
    """
    return cells // 3, 2 * cells // 3


@dataclass(frozen=True)
class Genotype:
    """Either ``normal`` and ``reduction``, or a list of ``cells``."""

    normal: Cell = ()
    reduction: Cell = ()
    cells: tuple[Cell, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.cells) == bool(self.normal or self.reduction):
            raise ValueError(
                "a genotype has either normal and reduction, or cells; this one has both or nothing"
            )
        named = {f"cells[{i}]": cell for i, cell in enumerate(self.cells)}
        for name, cell in (named or {"normal": self.normal, "reduction": self.reduction}).items():
            _check(name, cell)

    def of(self, cells: int) -> tuple[Cell, ...]:
        """The cells of a network that has so many."""
        if not self.cells:
            small = reductions(cells)
            return tuple(self.reduction if i in small else self.normal for i in range(cells))
        if len(self.cells) != cells:
            raise ValueError(
                f"cells={cells}, but the genotype is a list of {len(self.cells)} cells; "
                "expected as many"
            )
        return self.cells

    def to_json(self) -> dict[str, Any]:
        """Plain values, of which :meth:`from_json` makes the same."""
        if self.cells:
            return {"cells": [_plain(cell) for cell in self.cells]}
        return {"normal": _plain(self.normal), "reduction": _plain(self.reduction)}

    @classmethod
    def from_json(cls, values: Any) -> Genotype:
        """Checked."""
        if not isinstance(values, dict) or values.keys() not in (
            {"normal", "reduction"},
            {"cells"},
        ):
            found = (
                ", ".join(map(str, values)) if isinstance(values, dict) else type(values).__name__
            )
            raise ValueError(
                "a genotype is an object with normal and reduction, or with cells; "
                f"found {found or 'nothing'}"
            )
        if "cells" in values:
            if not isinstance(values["cells"], list):
                raise ValueError(
                    f"cells is a {type(values['cells']).__name__}; expected a list of cells"
                )
            return cls(
                cells=tuple(_cell(f"cells[{i}]", cell) for i, cell in enumerate(values["cells"]))
            )
        return cls(_cell("normal", values["normal"]), _cell("reduction", values["reduction"]))


def _plain(cell: Cell) -> list[list[list[Any]]]:
    return [[list(edge) for edge in node] for node in cell]


def _cell(name: str, values: Any) -> Cell:
    try:
        return tuple(tuple(Edge(operation, state) for operation, state in node) for node in values)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}={values!r} is no cell; "
            "expected a list of nodes, each a list of [operation, state]"
        ) from None


def _check(name: str, cell: Cell) -> None:
    if len(cell) != NODES:
        raise ValueError(f"{name} has {len(cell)} nodes; expected {NODES}")
    for i, node in enumerate(cell):
        where = f"{name}, node {INPUTS + i}"
        if not node:
            raise ValueError(f"{where} has no edges; expected at least one")
        for edge in node:
            checks.one_of(f"{where}: operation", edge.operation, OPERATIONS)
            if (
                not isinstance(edge.state, int)
                or isinstance(edge.state, bool)
                or not 0 <= edge.state < INPUTS + i
            ):
                raise ValueError(
                    f"{where}: state={edge.state!r}; expected one from 0 to {INPUTS + i - 1}"
                )
        if len({edge.state for edge in node}) < len(node):
            raise ValueError(f"{where} has two edges from one state; expected one at most")


def derive(weights: Sequence[Sequence[float]], strengths: Sequence[float] | None = None) -> Cell:
    """Derive a cell from (14, 8) weights of operations.

    Each edge takes the operation with the largest weight that is not none. Each node keeps its two
    strongest edges: by (14,) ``strengths``, or else by those largest weights.
    """
    nodes = []
    for node in range(INPUTS, INPUTS + NODES):
        own = []
        for i, (row, (state, to)) in enumerate(zip(weights, EDGES, strict=True)):
            if to == node:
                best = max(SOMETHING, key=lambda k: row[k])
                own.append(
                    (
                        row[best] if strengths is None else strengths[i],
                        Edge(OPERATIONS[best], state),
                    )
                )
        strongest = sorted(own, key=lambda pair: -pair[0])[:KEPT]
        nodes.append(tuple(sorted((edge for _, edge in strongest), key=lambda edge: edge.state)))
    return tuple(nodes)


_SEP, _DIL, _SKIP, _MAX, _AVG = (
    "sep_conv_3x3",
    "dil_conv_3x3",
    "skip_connect",
    "max_pool_3x3",
    "avg_pool_3x3",
)


def _pairs(*edges: tuple[str, int]) -> Cell:
    """Two edges for each node."""
    return tuple((Edge(*edges[i]), Edge(*edges[i + 1])) for i in range(0, len(edges), 2))


# found by DARTS of first and of second order (Liu et al. 2019)
NAMED = {
    "DARTS_V1": Genotype(
        _pairs(
            (_SEP, 1),
            (_SEP, 0),
            (_SKIP, 0),
            (_SEP, 1),
            (_SKIP, 0),
            (_SEP, 1),
            (_SEP, 0),
            (_SKIP, 2),
        ),
        _pairs(
            (_MAX, 0),
            (_MAX, 1),
            (_SKIP, 2),
            (_MAX, 0),
            (_MAX, 0),
            (_SKIP, 2),
            (_SKIP, 2),
            (_AVG, 0),
        ),
    ),
    "DARTS_V2": Genotype(
        _pairs(
            (_SEP, 0), (_SEP, 1), (_SEP, 0), (_SEP, 1), (_SEP, 1), (_SKIP, 0), (_SKIP, 0), (_DIL, 2)
        ),
        _pairs(
            (_MAX, 0),
            (_MAX, 1),
            (_SKIP, 2),
            (_MAX, 1),
            (_MAX, 0),
            (_SKIP, 2),
            (_SKIP, 2),
            (_MAX, 1),
        ),
    ),
}


def drawn(seed: int, cells: int = 0) -> Genotype:
    """Random genotype, out of all that :func:`derive` may give: what a search has to beat.

    It has normal and reduction cells or, with ``cells``, a list of so many.

    >>> drawn(0) == drawn(0), drawn(0) == drawn(1), len(drawn(0, 5).cells)
    (True, False, 5)
    """
    draws = random.Random(seed)

    def cell() -> Cell:
        states = [sorted(draws.sample(range(INPUTS + node), KEPT)) for node in range(NODES)]
        return tuple(
            tuple(Edge(draws.choice(OPERATIONS[1:]), state) for state in own) for own in states
        )

    return (
        Genotype(cells=tuple(cell() for _ in range(cells))) if cells else Genotype(cell(), cell())
    )


def find(name: str) -> Genotype:
    """Genotype by name: a published one, ``random-SEED`` or ``random-SEED-of-CELLS``.

    The name may also be that of a JSON file, or be JSON itself.

    >>> find("DARTS_V2").normal[0]
    (Edge(operation='sep_conv_3x3', state=0), Edge(operation='sep_conv_3x3', state=1))
    """
    if name in NAMED:
        return NAMED[name]
    if chance := _RANDOM.fullmatch(name):
        return drawn(int(chance["seed"]), int(chance["cells"] or 0))
    if name.startswith("{"):
        return _read("genotype", name)
    path = Path(name)
    if not path.is_file():
        raise ValueError(
            f"genotype={name!r} is neither a file nor one of {', '.join(NAMED)}, {RANDOM}SEED, "
            f"{RANDOM}SEED-of-CELLS"
        )
    return _read(str(path), read_bytes(path, OBJECTS))


def content(name: str) -> str:
    """Name of a genotype that holds even if its file goes or changes.

    Names that mean one genotype forever stay; other genotypes become their JSON.
    """
    found = find(name)
    return name if name in NAMED or _RANDOM.fullmatch(name) else json.dumps(found.to_json())


def _read(where: str, text: str | bytes) -> Genotype:
    try:
        return Genotype.from_json(json.loads(text))
    except DAMAGE as error:
        raise ValueError(f"{where} holds no genotype: {shorten(str(error), LONGEST)}") from None

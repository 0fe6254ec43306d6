"""Networks of cells (Liu et al. 2019): one for searching, and one built from a genotype.

The network for searching mixes all operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn

from bgn_lab.experiments.nas.genotype import (
    EDGES,
    INPUTS,
    NODES,
    OPERATIONS,
    SOMETHING,
    Cell,
    Genotype,
    reductions,
)
from bgn_lab.experiments.nas.mixture import mixture
from bgn_lab.experiments.nas.operations import (
    KINDS,
    FactorizedReduce,
    beginnings,
    convolved,
    operation,
)
from bgn_lab.norms import AnyNorm

Mix = (
    Tensor | Sequence[int]
)  # (14, 8) weights of all operations; or, of each edge, the one operation that is computed


def _entrance(C: int, K: int, halve: bool, norm: AnyNorm, affine: bool) -> nn.Module:
    """Input of a cell: an earlier output with K channels and the size of the cell before."""
    return FactorizedReduce(C, K, norm, affine) if halve else convolved(C, K, norm, affine)


class _Layout:
    """Channels and sizes of a network of cells."""

    def __init__(self, cells: int, C: int, stem: int) -> None:
        small, older, old, halved = reductions(cells), stem, stem, False
        self.rows: list[
            tuple[int, int, int, bool, bool]
        ] = []  # channels of the two before, own; whether the last, this halves
        for i in range(cells):
            reduces = i in small
            C = 2 * C if reduces else C
            self.rows.append((older, old, C, halved, reduces))
            older, old, halved = old, NODES * C, reduces
        self.out = old


class SearchCell(nn.Module):
    """All operations on all edges."""

    def __init__(
        self, older: int, old: int, C: int, halved: bool, reduces: bool, norm: AnyNorm
    ) -> None:
        super().__init__()
        self.enter0, self.enter1 = (
            _entrance(older, C, halved, norm, False),
            _entrance(old, C, False, norm, False),
        )
        strides = [2 if reduces and state < INPUTS else 1 for state in range(INPUTS + NODES - 1)]
        self.begins = nn.ModuleList(beginnings(C, stride, norm, True) for stride in strides)
        self.edges = nn.ModuleList(
            nn.ModuleList(
                KINDS[name].goes_on(C, strides[state], norm, False) for name in OPERATIONS
            )
            for state, _ in EDGES
        )

    def forward(self, s0: Tensor, s1: Tensor, mix: Mix) -> Tensor:
        states: list[Tensor] = [self.enter0(s0), self.enter1(s1)]
        begun: dict[tuple[int, str], Tensor] = {}

        def apply(i: int, number: int) -> Tensor:
            (state, _), begins = EDGES[i], KINDS[OPERATIONS[number]].begins
            if (state, begins) not in begun:  # once for all edges from a state
                begun[state, begins] = cast(nn.ModuleDict, self.begins[state])[begins](
                    states[state]
                )
            out: Tensor = cast(nn.ModuleList, self.edges[i])[number](begun[state, begins])
            return out

        for node in range(INPUTS, INPUTS + NODES):
            own = [i for i, (_, to) in enumerate(EDGES) if to == node]
            if isinstance(mix, Tensor):
                parts = [apply(i, number) for i in own for number in SOMETHING]
                states.append(mixture(mix[own][:, SOMETHING].flatten(), parts))
            else:
                states.append(reduce(torch.add, [apply(i, mix[i]) for i in own]))
        return torch.cat(states[INPUTS:], 1)


class SearchNetwork(nn.Module):
    """Takes one mix for all cells that reduce and one for the others, or one for each cell."""

    def __init__(self, C: int, cells: int, classes: int, norm: AnyNorm, channels: int = 3) -> None:
        super().__init__()
        layout = _Layout(cells, C, 3 * C)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 3 * C, 3, padding=1, bias=False), norm(3 * C, affine=True)
        )
        self.cells = nn.ModuleList(SearchCell(*row, norm) for row in layout.rows)
        self.small = reductions(cells)
        self.fc = nn.Linear(layout.out, classes)

    def forward(self, x: Tensor, mixes: Sequence[Mix]) -> Tensor:
        """``mixes``: of normal and of reduction cells, or of every cell."""
        if len(mixes) == 2 and len(self.cells) != 2:
            mixes = [mixes[i in self.small] for i in range(len(self.cells))]
        s0 = s1 = self.stem(x)
        for cell, mix in zip(self.cells, mixes, strict=True):
            s0, s1 = s1, cell(s0, s1, mix)
        logits: Tensor = self.fc(s1.mean((2, 3)))
        return logits


class FoundCell(nn.Module):
    """The operations of a genotype."""

    def __init__(
        self, cell: Cell, older: int, old: int, C: int, halved: bool, reduces: bool, norm: AnyNorm
    ) -> None:
        super().__init__()
        self.enter0, self.enter1 = (
            _entrance(older, C, halved, norm, True),
            _entrance(old, C, False, norm, True),
        )
        self.states = [[edge.state for edge in node] for node in cell]
        self.edges = nn.ModuleList(
            nn.ModuleList(
                operation(op, C, 2 if reduces and state < INPUTS else 1, norm) for op, state in node
            )
            for node in cell
        )

    def forward(self, s0: Tensor, s1: Tensor, drop: float = 0.0) -> Tensor:
        states = [self.enter0(s0), self.enter1(s1)]
        for own, operations in zip(self.states, self.edges, strict=True):
            assert isinstance(operations, nn.ModuleList)
            parts = []
            for state, apply in zip(own, operations, strict=True):
                y = apply(states[state])
                parts.append(
                    y if isinstance(apply, nn.Identity) else drop_path(y, drop, self.training)
                )
            states.append(reduce(torch.add, parts))
        return torch.cat(states[INPUTS:], 1)


def drop_path(x: Tensor, drop: float, training: bool) -> Tensor:
    """Whole samples become zero with probability ``drop``, the others more by as much."""
    if not training or not drop:
        return x
    keep = torch.empty(len(x), 1, 1, 1, device=x.device, dtype=x.dtype).bernoulli_(1 - drop)
    return x * (keep / (1 - drop))


class Auxiliary(nn.Module):
    """A classifier on 8x8 maps in the middle of the network, for training only."""

    def __init__(self, C: int, classes: int, norm: AnyNorm) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ReLU(), nn.AvgPool2d(5, 3, count_include_pad=False),
            nn.Conv2d(C, 128, 1, bias=False), norm(128, affine=True), nn.ReLU(),
            nn.Conv2d(128, 768, 2, bias=False), norm(768, affine=True), nn.ReLU(),
            nn.Flatten(), nn.Linear(768, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2:] != (8, 8):
            raise ValueError(
                f"the auxiliary classifier takes maps of 8x8, and these are "
                f"{x.shape[2]}x{x.shape[3]}; expected images of 32x32, or auxiliary=0"
            )
        logits: Tensor = self.layers(x)
        return logits


class FoundNetwork(nn.Module):
    """The network of a genotype, with an optional auxiliary classifier for images of 32x32."""

    def __init__(
        self,
        genotype: Genotype,
        C: int,
        cells: int,
        classes: int,
        norm: AnyNorm,
        auxiliary: bool = True,
        channels: int = 3,
    ) -> None:
        super().__init__()
        layout = _Layout(cells, C, 3 * C)
        self.stem = nn.Sequential(
            nn.Conv2d(channels, 3 * C, 3, padding=1, bias=False), norm(3 * C, affine=True)
        )
        self.cells = nn.ModuleList(
            FoundCell(cell, *row, norm)
            for cell, row in zip(genotype.of(cells), layout.rows, strict=True)
        )
        self.middle = reductions(cells)[1]
        self.auxiliary = (
            Auxiliary(NODES * layout.rows[self.middle][2], classes, norm) if auxiliary else None
        )
        self.fc = nn.Linear(layout.out, classes)

    def forward(
        self, x: Tensor, both: bool = False, drop: float = 0.0
    ) -> Tensor | tuple[Tensor, Tensor | None]:
        """Logits; with ``both`` also those of the auxiliary classifier, or None if there is none.

        The auxiliary classifier costs next to nothing. ``drop`` is the probability of dropping a
        path.
        """
        s0 = s1 = self.stem(x)
        beside = None
        for i, cell in enumerate(self.cells):
            s0, s1 = s1, cell(s0, s1, drop)
            if self.auxiliary is not None and i == self.middle:
                beside = self.auxiliary(s1)
        logits: Tensor = self.fc(s1.mean((2, 3)))
        return (logits, beside) if both else logits

"""Genotypes: read and written without loss, refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgn_lab.experiments.nas.genotype import (
    EDGES,
    INPUTS,
    NAMED,
    NODES,
    OPERATIONS,
    Cell,
    Edge,
    Genotype,
    derive,
    find,
)

GOOD = [[["skip_connect", 0], ["sep_conv_3x3", 1]]] * 4


@st.composite
def cells(draw: Any) -> Cell:
    nodes = []
    for i in range(NODES):
        states = draw(
            st.lists(st.integers(0, INPUTS + i - 1), min_size=1, max_size=INPUTS + i, unique=True)
        )
        nodes.append(tuple(Edge(draw(st.sampled_from(OPERATIONS)), state) for state in states))
    return tuple(nodes)


@given(normal=cells(), reduction=cells(), own=st.lists(cells(), min_size=1, max_size=3))
def test_there_and_back(normal: Cell, reduction: Cell, own: list[Cell]) -> None:
    for found in (Genotype(normal, reduction), Genotype(cells=tuple(own))):
        assert Genotype.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_edges() -> None:
    assert len(EDGES) == 14
    assert EDGES[:5] == ((0, 2), (1, 2), (0, 3), (1, 3), (2, 3))


def test_by_name_and_from_a_file(tmp_path: Path) -> None:
    assert find("DARTS_V1").reduction[3] == (Edge("skip_connect", 2), Edge("avg_pool_3x3", 0))
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(NAMED["DARTS_V2"].to_json()))
    assert find(str(file)) == NAMED["DARTS_V2"]


@given(seed=st.integers(0, 10**6))
def test_what_is_drawn_could_have_been_found(seed: int) -> None:
    """Two edges from different states to every node, never none; the same for the same seed."""
    found = find(f"random-{seed}")
    assert found == find(f"random-{seed}")
    for cell in (found.normal, found.reduction):
        weights = [[0.0] * len(OPERATIONS) for _ in EDGES]
        for node, edges in enumerate(cell):
            for edge in edges:
                weights[EDGES.index((edge.state, INPUTS + node))][
                    OPERATIONS.index(edge.operation)
                ] = 1.0
        assert derive(weights) == cell


def test_every_operation_is_drawn() -> None:
    drawn = {
        edge.operation
        for seed in range(20)
        for node in find(f"random-{seed}").normal
        for edge in node
    }
    assert drawn == set(OPERATIONS) - {"none"}


def test_cells_of_a_network() -> None:
    v2 = NAMED["DARTS_V2"]
    assert [i for i, cell in enumerate(v2.of(20)) if cell == v2.reduction] == [6, 13]
    own = Genotype(cells=(v2.normal, v2.reduction, v2.normal))
    assert own.of(3) == own.cells
    with pytest.raises(ValueError, match="cells=8, but the genotype is a list of 3 cells"):
        own.of(8)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "an object with normal and reduction, or with cells; found list"),
        ({"normal": GOOD}, "found normal"),
        ({"normal": GOOD[:3], "reduction": GOOD}, "normal has 3 nodes; expected 4"),
        (
            {"normal": GOOD, "reduction": [[["skip_connect", 0]], [], *GOOD[:2]]},
            "reduction, node 3 has no edges",
        ),
        (
            {"normal": GOOD, "reduction": [[["conv_7x7", 0]], *GOOD[:3]]},
            "reduction, node 2: operation='conv_7x7'",
        ),
        (
            {"normal": GOOD, "reduction": [[["none", 2]], *GOOD[:3]]},
            "reduction, node 2: state=2; expected one from 0 to 1",
        ),
        (
            {"normal": GOOD, "reduction": [[["none", 0], ["none", 0]], *GOOD[:3]]},
            "node 2 has two edges from one state",
        ),
        (
            {"normal": GOOD, "reduction": [["none", 0], *GOOD[:3]]},
            "reduction=.* is no cell; expected a list of nodes",
        ),
        ({"normal": GOOD, "reduction": 3}, "reduction=3 is no cell"),
        ({"cells": 3}, "cells is a int; expected a list"),
        ({"cells": [GOOD, GOOD[:1]]}, r"cells\[1\] has 1 nodes"),
        ({"cells": []}, "this one has both or nothing"),
    ],
)
def test_bad_ones_are_refused(values: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Genotype.from_json(values)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"mine.json holds no genotype: .*{message}"):
        find(str(file))


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="genotype='DARTS' is neither a file nor one of DARTS_V1, DARTS_V2, random-SEED",
    ):
        find("DARTS")
    (tmp_path / "cells.png").write_bytes(b"\x89PNG\r\n")
    with pytest.raises(ValueError, match=r"cells.png holds no genotype"):
        find(str(tmp_path / "cells.png"))
    (tmp_path / "cut.json").write_text('{"normal": [')
    with pytest.raises(ValueError, match=r"cut.json holds no genotype"):
        find(str(tmp_path / "cut.json"))

"""Each use of torch, on nn.BatchNorm2d (or the definition) and on ours, must have one outcome."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.differential.child import Server
from tests.differential.compare import verdict
from tests.differential.table import Use, Variant, load

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the uses run in forked processes"
)
ROWS = [
    pytest.param(
        use,
        variant,
        id=f"{use.name}-{variant}",
        marks=[pytest.mark.slow] if use.slow or variant.relu else [],
    )
    for use in load().values()
    for variant in use.variants
]


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def wrong(use: Use, variant: Variant, found: dict[str, Any]) -> list[str]:
    """What is wrong with ours.

    nn.BatchNorm2d decides whether a use works and how results are laid out; where the groups are
    not its channels, the definition says what the values are.
    """
    theirs, meaning, ours = found["torch"], found.get("definition"), found.get("bgn")
    if "crashed" in theirs or ours is None:
        return [f"the layers to compare with crashed: {found}"]
    check = functools.partial(verdict, dtype=variant.dtype, factor=use.tolerance)
    if "raised" in theirs and not (use.may_work and "result" in ours):
        return check(theirs, ours)
    if not meaning:
        return check(theirs, ours, warn=use.warnings, strides=use.strides)
    if "raised" in theirs and "raised" in meaning:
        return check(theirs, ours)
    if "result" not in meaning:
        return [f"the definition fails where nn.BatchNorm2d does not: {meaning}"]
    lines = check(meaning | {"warnings": theirs["warnings"]}, ours, strides=False)
    if "result" in theirs and "result" in ours and use.strides:
        lines += [line for line in check(theirs, ours, warn=False) if ": strides" in line]
    return lines


@pytest.mark.parametrize(("use", "variant"), ROWS)
def test_use(server: Server, use: Use, variant: Variant) -> None:
    found = server.ask(use, variant)
    lines = wrong(use, variant, found)
    if use.differs and "crashed" not in found.get("bgn", {}):
        assert lines, f"no longer differs: {use.differs}"
    else:
        assert not lines, "\n".join(lines)


def test_the_table_is_not_small() -> None:
    assert len(load()) >= 170

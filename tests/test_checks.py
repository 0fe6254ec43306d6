"""Integers of other libraries are accepted; what is no positive integer is refused."""

from typing import Any

import numpy as np
import pytest
import torch

import bgn
from bgn import checks


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_integers_of_any_library_become_ints(value: Any) -> None:
    found = checks.positive_int("n", value)
    assert (found, type(found)) == (3, int)


@pytest.mark.parametrize(
    "value", [True, np.bool_(True), torch.tensor(2), 2.0, np.float64(2), "2", None]
)
def test_what_is_no_integer_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"n=.* is a .*; expected a positive int"):
        checks.positive_int("n", value)


@pytest.mark.parametrize("value", [0, -1, np.int64(0)])
def test_what_is_not_positive_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"n=(0|-1) is not positive"):
        checks.positive_int("n", value)


def test_functions_of_groups_take_numpys_integers() -> None:
    eight = np.int64(8)
    found = [
        bgn.paper_groups(eight),
        bgn.nearest_groups(np.int64(64), eight),
        bgn.auto_groups(np.int64(64), np.int64(2), np.int64(4)),
    ]
    assert found == [16, 8, 16]
    assert {type(n) for n in found} == {int}

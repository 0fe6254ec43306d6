"""Merging is the same as computing at once."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from bgn.moments import Moments, moments
from tests.tolerance import assert_close


@given(seed=st.integers(0, 99), sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_merge_in_any_cut(seed: int, sizes: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(sizes), dtype=torch.float64, generator=generator) * 3 + 100
    merged, *rest = [moments(piece, (0,)) for piece in x.split(sizes)]
    for piece in rest:
        merged = merged.merge(piece)
    assert merged.count == x.numel()
    assert_close(merged.mean, x.mean())
    assert_close(merged.var, x.var(correction=0))
    if x.numel() > 1:
        assert_close(merged.unbiased_var, x.var())


def test_a_count_of_zero_adds_nothing() -> None:
    some = moments(torch.tensor([1.0, 2.0, 4.0]), (0,))
    nothing = Moments(torch.tensor(0.0), torch.tensor(123.0), torch.tensor(0.0))
    for merged in (some.merge(nothing), nothing.merge(some)):
        assert (merged.count, merged.mean, merged.M2) == (some.count, some.mean, some.M2)

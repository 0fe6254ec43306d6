"""Boundaries, counts and labels of the partitions."""

import math
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from bgn.partition import channel_groups, common_cells, num_channel_groups, slices

sizes = st.integers(1, 12)


@given(N=sizes, C=sizes, P=sizes, data=st.data())
def test_slices_cover_every_feature_once_and_nearly_equally(
    N: int, C: int, P: int, data: st.DataObject
) -> None:
    G = data.draw(st.integers(1, C * P))
    part = slices(N, C, P, G)
    bounds = part.bounds()
    assert bounds == [math.floor(g * part.D / G) for g in range(G + 1)]
    lengths = [b - a for a, b in pairwise(bounds)]
    assert sum(lengths) == C * P
    assert max(lengths) - min(lengths) <= 1
    assert part.smallest_count == N * min(lengths)
    if (C * P) % G == 0:
        assert set(lengths) == {C * P // G}


@given(N=sizes, C=sizes, P=sizes, data=st.data())
def test_labels_are_the_boundaries(N: int, C: int, P: int, data: st.DataObject) -> None:
    G = data.draw(st.integers(1, C * P))
    B = data.draw(st.sampled_from([b for b in range(1, N + 1) if N % b == 0]))
    part = slices(N, C, P, G, B)
    expected = torch.empty(N, C * P, dtype=torch.long)
    for n in range(N):
        for g in range(G):
            expected[n, g * C * P // G : (g + 1) * C * P // G] = n // (N // B) * G + g
    assert torch.equal(part.labels().view(N, -1), expected)


@given(C=st.integers(1, 200), G=st.integers(1, 200))
def test_channel_groups_are_wide_enough(C: int, G: int) -> None:
    part = channel_groups(1, C, 3, G)
    widths = torch.bincount(part.labels()[0, :, 0])
    assert len(widths) == num_channel_groups(C, G)
    assert widths.min() >= max(C // G, 1)
    assert widths.max() - widths.min() <= 1
    if C % G == 0:
        assert len(widths) == G
    if G >= C:
        assert len(widths) == C


@given(C=sizes, P=sizes, whole=st.booleans(), data=st.data())
def test_cells_are_the_runs_with_one_channel_and_one_group(
    C: int, P: int, whole: bool, data: st.DataObject
) -> None:
    G = data.draw(st.integers(1, C * P))
    part = (channel_groups if whole else slices)(1, C, P, G)
    length, channel, group = part.cells()
    assert (length > 0).all()
    features = torch.stack([torch.arange(C).repeat_interleave(P), part.labels().flatten()])
    assert torch.equal(channel.repeat_interleave(length), features[0])
    assert torch.equal(group.repeat_interleave(length), features[1])
    pairs = torch.stack([channel, group])
    assert torch.unique(pairs, dim=1).shape == pairs.shape, "each intersection once"
    assert all(torch.equal(a, b) for a, b in zip(part.cells(), common_cells(part), strict=True)), (
        "the short way for whole channels gives the same"
    )


@given(C=sizes, P=sizes, data=st.data())
def test_common_cells_have_one_group_of_each_partition(C: int, P: int, data: st.DataObject) -> None:
    first = slices(1, C, P, data.draw(st.integers(1, C * P)))
    second = slices(1, C, P, data.draw(st.integers(1, C * P)))
    length, channel, *groups = common_cells(first, second)
    assert (length > 0).all()
    assert torch.equal(channel.repeat_interleave(length), torch.arange(C).repeat_interleave(P))
    for part, group in zip((first, second), groups, strict=True):
        assert torch.equal(group.repeat_interleave(length), part.labels().flatten())

"""Spherical k-means, matching and trust."""

import math
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from bgn_lab.experiments.adaptation.clustering import (
    MOST,
    TOLERANCE,
    Clusters,
    centers,
    cluster,
    distance,
    match,
    shift,
    trusted,
)


def clouds(
    K: int, each: int, D: int, seed: int = 0, spread: float = 0.3
) -> tuple[Tensor, Tensor, Tensor]:
    """Features around K directions, their classes, and the directions."""
    draws = torch.Generator().manual_seed(seed)
    ways = F.normalize(torch.randn(K, D, generator=draws, dtype=torch.float64), dim=1)
    y = torch.arange(K).repeat(each)
    lengths = 1 + 9 * torch.rand(K * each, 1, generator=draws, dtype=torch.float64)
    noise = spread * torch.randn(K * each, D, generator=draws, dtype=torch.float64) / D**0.5
    return lengths * (ways[y] + noise), y, ways


def slow(
    features: list[list[float]], start: list[list[float]]
) -> tuple[list[int], list[list[float]]]:
    """By the definition, one image at a time, without the matching."""

    def apart(a: list[float], b: list[float]) -> float:
        norms = math.sqrt(sum(v * v for v in a)) * math.sqrt(sum(v * v for v in b))
        return 0.5 * (1 - sum(v * w for v, w in zip(a, b, strict=True)) / norms)

    def nearest(x: list[float], now: list[list[float]]) -> int:
        return min(range(len(now)), key=lambda k: apart(x, now[k]))

    now = start
    for _ in range(MOST):
        labels = [nearest(x, now) for x in features]
        new = []
        for k, begin in enumerate(start):
            own = [x for x, label in zip(features, labels, strict=True) if label == k]
            new.append([sum(column) for column in zip(*own, strict=True)] if own else begin)
        moved = sum(apart(a, b) for a, b in zip(now, new, strict=True)) / len(start)
        now = new
        if moved < TOLERANCE:
            break
    return [nearest(x, now) for x in features], now


@given(
    K=st.integers(1, 5),
    each=st.integers(1, 8),
    D=st.integers(2, 6),
    seed=st.integers(0, 50),
    spread=st.floats(0.1, 3),
)
def test_as_defined(K: int, each: int, D: int, seed: int, spread: float) -> None:
    features, _, ways = clouds(K, each, D, seed, spread)
    start = ways + 0.2 * torch.randn(
        K, D, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64
    )
    labels, now = slow(features.tolist(), start.tolist())
    found = cluster(features, start)
    own = match(torch.tensor(now, dtype=torch.float64), start)
    assert torch.equal(found.labels, own[labels])
    torch.testing.assert_close(found.centers[own], torch.tensor(now, dtype=torch.float64))
    torch.testing.assert_close(
        found.distances, distance(features, found.centers)[range(len(features)), found.labels]
    )


def test_an_assignment_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip(
        "sklearn.cluster", reason="scikit-learn is not installed; make test-all installs it"
    )
    features, _, ways = clouds(6, 30, 8, spread=2.0)
    on_sphere, start = F.normalize(features, dim=1).numpy(), F.normalize(ways, dim=1).numpy()
    theirs = sklearn.KMeans(6, init=start, n_init=1, max_iter=1).fit(on_sphere)
    theirs.cluster_centers_ = start.copy()
    assert distance(features, ways).argmin(1).tolist() == theirs.predict(on_sphere).tolist()


def test_clear_clouds_are_found_from_far_away() -> None:
    features, y, ways = clouds(5, 20, 16)
    moved = ways + 0.8 * F.normalize(torch.ones(16, dtype=torch.float64), dim=0)
    found = cluster(features, moved)
    assert torch.equal(found.labels, y)
    assert shift(found.centers, ways) < 0.01


def test_matching_minimises_the_sum() -> None:
    """Nearest would give both clusters the class of the first."""
    start = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    found = torch.tensor([[1.0, -0.2], [1.0, 0.1]])
    assert distance(found, start).argmin(1).tolist() == [0, 0]
    assert match(found, start).tolist() == [0, 1]
    assert match(found.flip(0), start).tolist() == [1, 0]


def test_an_empty_cluster_goes_back_to_where_it_began() -> None:
    features, start = (
        torch.tensor([[1.0, 0.0], [1.0, 0.1]]),
        torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),
    )
    found = cluster(features, start)
    assert found.labels.tolist() == [0, 0]
    assert torch.equal(found.centers[1], start[1])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_identical_features(value: float) -> None:
    found = cluster(torch.full((6, 3), value), torch.eye(3))
    assert bool(found.centers.isfinite().all())
    assert bool(found.distances.isfinite().all())
    assert len(found.labels.unique()) == 1


def test_centres_are_sums() -> None:
    features = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert centers(features, torch.tensor([2, 0, 2]), 3).tolist() == [[3, 4], [0, 0], [6, 8]]


def test_trust_needs_nearness_and_company() -> None:
    found = Clusters(
        torch.tensor([0, 0, 0, 1, 1, 1]),
        torch.tensor([0.01, 0.02, 0.03, 0.01, 0.02, 0.2]),
        torch.zeros(3, 2),
    )
    assert trusted(found, 0.05, 3).tolist() == [True, True, True, False, False, False]
    assert trusted(found, 0.05, 2).tolist() == [True, True, True, True, True, False]
    assert trusted(found, 1.0, 3).tolist() == [True] * 6
    assert not trusted(found, 0.001, 1).any()


def test_as_large_as_amazon_in_far_less_than_the_time_of_a_pass() -> None:
    """2,817 features of ResNet-50 take about a tenth of a second.

    The bound only says that it does not go pair by pair.
    """
    features, _, ways = clouds(31, 91, 2048, spread=1.5)
    begin = time.process_time()  # whatever else the machine is doing
    cluster(features[:2817].float(), ways.float())
    assert time.process_time() - begin < 5

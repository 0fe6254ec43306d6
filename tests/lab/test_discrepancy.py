"""CDD and MMD are what their definitions say, summed pair by pair in plain loops."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bgn_lab.experiments.adaptation import discrepancy
from bgn_lab.experiments.adaptation.discrepancy import cdd, mean_distance, mmd


def points(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def slow_mmd(source: list[list[float]], target: list[list[float]]) -> float:
    def squared(a: list[float], b: list[float]) -> float:
        return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))

    pooled = source + target
    different = [squared(a, b) for (i, a), (j, b) in product(enumerate(pooled), repeat=2) if i != j]
    width = sum(different) / len(different)

    def mean_kernel(first: list[list[float]], second: list[list[float]]) -> float:
        values = [
            sum(
                math.exp(-min(squared(a, b) / max(width * w, 1e-5), 1e5))
                for w in (0.25, 0.5, 1, 2, 4)
            )
            for a, b in product(first, second)
        ]
        return sum(values) / len(values)

    return (
        mean_kernel(source, source) + mean_kernel(target, target) - 2 * mean_kernel(source, target)
    )


def slow_cdd(source: Tensor, target: Tensor, M: int) -> float:
    total = 0.0
    for c, d in product(range(len(source)), repeat=2):
        value = slow_mmd(source[c].tolist(), target[d].tolist())
        total += value / M if c == d else -value / (M * (M - 1))
    return total


@given(
    K=st.integers(1, 4),
    n=st.integers(1, 4),
    m=st.integers(1, 4),
    D=st.integers(1, 5),
    more=st.integers(0, 5),
    scale=st.sampled_from([1e-4, 1.0, 300.0]),
    seed=st.integers(0, 100),
)
def test_as_defined(K: int, n: int, m: int, D: int, more: int, scale: float, seed: int) -> None:
    source, target = (
        points(K, n, D, seed=seed, scale=scale),
        points(K, m, D, seed=seed + 1, scale=scale),
    )
    assert float(cdd(source, target, K + more + 1)) == pytest.approx(
        slow_cdd(source, target, K + more + 1), rel=1e-9, abs=1e-12
    )


def test_kernels_are_those_of_scikit_learn() -> None:
    pairwise = pytest.importorskip(
        "sklearn.metrics.pairwise",
        reason="scikit-learn is not installed; make test-all installs it",
    )
    source, target = points(1, 6, 4), points(1, 5, 4, seed=1) + 1
    pooled = torch.cat([source[0], target[0]]).numpy()
    width = pairwise.euclidean_distances(pooled, squared=True).sum() / (11 * 10)
    kernel = sum(pairwise.rbf_kernel(pooled, gamma=1 / (width * w)) for w in (0.25, 0.5, 1, 2, 4))
    expected = kernel[:6, :6].mean() + kernel[6:, 6:].mean() - 2 * kernel[:6, 6:].mean()
    assert float(mmd(source, target)) == pytest.approx(expected)


def test_gradients() -> None:
    """With the widths given, which have no gradient."""
    source, target = points(3, 2, 4).requires_grad_(), points(3, 3, 4, seed=1).requires_grad_()
    widths = mean_distance(*discrepancy._distances(source, target))
    assert not widths.requires_grad
    assert torch.autograd.gradcheck(lambda s, t: mmd(s, t, widths), (source, target))
    cdd(source, target, 31).backward()  # type: ignore[no-untyped-call]
    assert source.grad is not None
    assert float(source.grad.abs().sum()) > 0


def test_alike_is_nothing_and_apart_is_much() -> None:
    own = points(2, 3, 4)
    same = mmd(own, own)
    assert torch.equal(same.diagonal(), torch.zeros(2, dtype=torch.float64))
    assert float(same[0, 1]) > 0
    assert float(mmd(own, own + 100)[0, 0]) > float(mmd(own, own + 1)[0, 0])


def test_descending_it_brings_classes_together_across_domains() -> None:
    """Two classes in two domains, the second moved: targets move onto the source of their class."""
    center = torch.tensor([[0.0, 4.0], [4.0, 0.0]], dtype=torch.float64)[:, None]
    source = center + points(2, 5, 2, scale=0.3)
    target = (center + 3 + points(2, 5, 2, seed=1, scale=0.3)).requires_grad_()
    # a rate at which the descent comes to rest: where it oscillates, rounding decides where it ends
    optimizer = torch.optim.SGD([target], 0.3)
    before = float(cdd(source, target, 2).detach())
    for _ in range(300):
        optimizer.zero_grad()
        cdd(source, target, 2).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert float(cdd(source, target, 2).detach()) < before - 3  # 6.9 less
    gap = torch.cdist(target.detach().mean(1), source.mean(1))
    assert float(gap.diagonal().max()) < 0.25  # 0.03
    assert min(float(gap[0, 1]), float(gap[1, 0])) > 2  # 5.7


@pytest.mark.parametrize("value", [0.0, 1.0, 1e6])
def test_identical_features(value: float) -> None:
    same = torch.full((3, 3, 4), value, requires_grad=True)
    loss = cdd(same, torch.full((3, 3, 4), value), 31)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0
    assert same.grad is not None
    assert bool(same.grad.isfinite().all())


def test_one_class() -> None:
    assert float(cdd(points(1, 3, 4), points(1, 3, 4, seed=1), 31)) > 0

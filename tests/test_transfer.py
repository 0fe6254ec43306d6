"""The formulas: exact where they must be, and the numbers of groups that they allow."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bgn.functional import batch_group_norm
from bgn.groups import nearest_groups
from bgn.surgery.kinds import Kind
from bgn.surgery.transfer import transfer
from tests.tolerance import assert_close


def output(
    x: Tensor, G: int, mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    return batch_group_norm(x, G, mean, var, weight, bias, eps=eps)


@given(
    C=st.integers(1, 24),
    old=st.integers(1, 60),
    new=st.integers(1, 60),
    seed=st.integers(0, 9),
    same_eps=st.booleans(),
)
def test_the_output_stays_exactly_where_the_transfer_says_so(
    C: int, old: int, new: int, seed: int, same_eps: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def random(size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=generator)

    mean, var, weight, bias = random(old), random(old).square() + 0.1, random(C), random(C)
    eps = 1e-5 if same_eps else 1e-2
    t = transfer(Kind("bgn", C, old), Kind("bgn", C, new), mean, var, 1e-5, eps)
    # positions so many that every border of groups is a border of features
    x = torch.randn(2, C, old * new, dtype=torch.float64, generator=generator)
    before = output(x, old, mean, var, weight, bias, 1e-5)
    after = output(x, new, t.mean, t.var, weight * t.scale, bias + weight * t.shift, eps)
    if t.exact:
        assert_close(after, before)
    elif C > 1 or old > 1:
        assert (after - before).abs().max() > 1e-8


@given(C=st.integers(1, 64), G=st.integers(1, 200))
def test_batch_norm_goes_exactly_to_divisors_and_multiples(C: int, G: int) -> None:
    t = transfer(Kind("bn", C, C), Kind("bgn", C, G), torch.zeros(C), torch.ones(C), 1e-5, 1e-5)
    assert t.exact == (C % G == 0 or G % C == 0)
    near = nearest_groups(C, G)
    assert C % near == 0 or near % C == 0
    assert near == G if t.exact else near != G


def test_pooling_is_the_law_of_total_variance() -> None:
    data = (
        torch.randn(4, 100, dtype=torch.float64) * torch.tensor([[1.0], [3.0], [0.1], [2.0]])
        + torch.arange(4.0)[:, None]
    )
    t = transfer(
        Kind("bn", 4, 4), Kind("bgn", 4, 2), data.mean(1), data.var(1, correction=0), 1e-5, 1e-5
    )
    assert_close(t.mean, data.reshape(2, 200).mean(1))
    assert_close(t.var, data.reshape(2, 200).var(1, correction=0))


def test_general_groups_of_channels_are_always_exact() -> None:
    for C in (5, 16, 100):
        for G in (1, 3, 7, 32):
            assert transfer(
                Kind("bn", C, C), Kind("gbgn", C, G, 2), torch.zeros(C), torch.ones(C), 1e-5, 1e-5
            ).exact

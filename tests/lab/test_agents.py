"""Agents find the operation that is best for each of them from one loss for all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bgn_lab.experiments.nas import agents

N, K = 12, 8


def bandit(seed: int) -> torch.Tensor:
    """(N, K): what each choice adds to the loss.

    Operation i % K is best for agent i, by a clear margin.
    """
    draws = torch.Generator().manual_seed(seed)
    costs = 0.5 + 0.5 * torch.rand(N, K, generator=draws, dtype=torch.float64)
    costs[torch.arange(N), torch.arange(N) % K] = 0.1
    return costs / N


def loss_of(costs: torch.Tensor, chosen: torch.Tensor, draws: torch.Generator) -> float:
    noise = 0.02 * float(torch.randn((), generator=draws))
    return float(costs[torch.arange(N), chosen].sum()) + noise


@pytest.mark.parametrize("seed", range(3))
def test_least_squares_finds_the_best_arm_of_every_agent(seed: int) -> None:
    costs, draws = bandit(seed), torch.Generator().manual_seed(seed)
    state = agents.begin(N, K, 400)
    for _ in range(400):
        chosen = agents.sample(state, draws)
        agents.remember(state, chosen, loss_of(costs, chosen, draws))
        if int(state["rounds"]) >= 50:
            agents.learn_by_squares(state)
    assert state["policy"].argmax(1).tolist() == [i % K for i in range(N)]
    assert float(state["policy"].max()) == pytest.approx(1 / sum(1 / k for k in range(1, K + 1)))


@pytest.mark.parametrize("seed", range(3))
def test_importance_weights_find_the_best_arm_of_every_agent(seed: int) -> None:
    costs, draws = N * bandit(seed), torch.Generator().manual_seed(seed)
    state = agents.begin(N, K, 1)
    for _ in range(8000):
        chosen = agents.sample(state, draws)
        agents.learn_by_weights(state, chosen, 10 - loss_of(costs, chosen, draws), 1000.0, 0.1)
    assert state["policy"].argmax(1).tolist() == [i % K for i in range(N)]


def test_the_loss_in_place_of_the_reward_learns_the_opposite() -> None:
    """As the method's text has it: agents would come to prefer what loses."""
    costs, draws = N * bandit(0), torch.Generator().manual_seed(0)
    state = agents.begin(N, K, 1)
    for _ in range(8000):
        chosen = agents.sample(state, draws)
        agents.learn_by_weights(state, chosen, loss_of(costs, chosen, draws), 1000.0, 0.1)
    best = torch.arange(N) % K
    assert float(state["policy"][torch.arange(N), best].mean()) < 1 / K


@given(S=st.integers(1, 12), n=st.integers(1, 4), k=st.integers(2, 4), seed=st.integers(0, 100))
def test_credits_are_the_least_squares_solution_of_least_norm(
    S: int, n: int, k: int, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    choices, losses = (
        torch.randint(k, (S, n), generator=draws),
        torch.randn(S, generator=draws, dtype=torch.float64),
    )
    Z = torch.nn.functional.one_hot(choices, k).view(S, n * k).double()
    expected = (torch.linalg.pinv(Z, rtol=1e-9) @ losses).view(n, k)
    torch.testing.assert_close(agents.credits(choices, losses, k), expected, rtol=1e-6, atol=1e-8)


@given(
    agents_=st.integers(1, 40),
    S=st.integers(2, 24),
    level=st.floats(-5, 5),
    seed=st.integers(0, 100),
)
def test_policies_do_not_depend_on_the_level_of_the_loss(
    agents_: int, S: int, level: float, seed: int
) -> None:
    """What is tried often must not look bad for that.

    This holds where there are fewer rounds than unknowns, too.
    """
    draws = torch.Generator().manual_seed(seed)
    choices, losses = (
        torch.randint(K, (S, agents_), generator=draws),
        torch.randn(S, generator=draws, dtype=torch.float64),
    )
    found = []
    for shift in (0.0, level):
        state = agents.begin(agents_, K, S)
        for chosen, loss in zip(choices, losses.tolist(), strict=True):
            agents.remember(state, chosen, loss + shift)
        agents.learn_by_squares(state)
        found.append(state["credit"])
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_the_oldest_rounds_are_forgotten() -> None:
    state = agents.begin(2, 3, 4)
    for i in range(6):
        agents.remember(state, torch.tensor([i % 3, 0]), float(i))
    assert sorted(state["losses"].tolist()) == [2, 3, 4, 5]
    assert int(state["rounds"]) == 6


def test_policies_are_probabilities_that_never_vanish() -> None:
    state = agents.begin(5, K, 3)
    agents.learn_by_weights(state, agents.sample(state), 1e9, 1.0, 0.1)
    assert bool((state["policy"] >= 0.1 / K - 1e-12).all())
    torch.testing.assert_close(state["policy"].sum(1), torch.ones(5, dtype=torch.float64))
    agents.remember(state, agents.sample(state), 1.0)
    agents.learn_by_squares(state)
    torch.testing.assert_close(state["policy"].sum(1), torch.ones(5, dtype=torch.float64))

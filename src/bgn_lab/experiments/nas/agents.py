"""Agents that choose operations at once and learn from one loss (MANAS, Carlucci et al. 2019).

Each of N agents has a policy over K operations. How much an agent's choice contributed is estimated
in one of two ways:

- least squares: L - mean(L) ~ sum_i b_i[a_i] over the last S rounds, solved for b by the
  pseudo-inverse. An agent's operations are ranked by b, lowest loss first, and the policy is
  Zipf's, 1 / rank up to a factor. The method's text has L itself. With fewer rounds than unknowns,
  which is usual, the solution of least norm would then share out the mean among the choices made,
  and what was tried often would look bad for that alone. What was not tried for S rounds counts as
  neither good nor bad, b = 0.
- importance weights: B_i[a_i] += r / p_i[a_i] with a reward r = c - L; the policy is
  (1 - g) softmax(B / T) + g / K. The method's text has the loss itself in place of the reward, with
  a positive sign: that would prefer what loses. A reward that is larger where the loss is smaller
  is what makes it learn; c keeps it positive.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

State = dict[str, Tensor]


def begin(agents: int, operations: int, window: int) -> State:
    """State with uniform policies and no memory.

    ``policy`` and ``credit`` are (N, K), the last choices (S, N), their losses (S,); ``rounds``
    counts them.
    """
    return {
        "policy": torch.full((agents, operations), 1 / operations, dtype=torch.float64),
        "credit": torch.zeros(agents, operations, dtype=torch.float64),
        "choices": torch.zeros(window, agents, dtype=torch.long),
        "losses": torch.zeros(window, dtype=torch.float64),
        "rounds": torch.zeros((), dtype=torch.long),
    }


def sample(state: State, draws: Generator | None = None) -> Tensor:
    """(N,): an operation for each agent."""
    return torch.multinomial(state["policy"], 1, generator=draws)[:, 0]


def remember(state: State, chosen: Tensor, loss: float) -> None:
    """One more round, in place of the oldest."""
    at = int(state["rounds"]) % len(state["losses"])
    state["choices"][at], state["losses"][at] = chosen, loss
    state["rounds"] += 1


def learn_by_squares(state: State) -> None:
    """Policies by the ranks of least-squares credits over what is remembered."""
    count = min(int(state["rounds"]), len(state["losses"]))
    choices, losses = state["choices"][:count], state["losses"][:count]
    state["credit"].copy_(credits(choices, losses - losses.mean(), state["policy"].shape[1]))
    state["policy"].copy_(zipf(state["credit"]))


def credits(choices: Tensor, losses: Tensor, operations: int) -> Tensor:
    """(S, N) choices, (S,) losses -> (N, K): the least-squares solution of least norm.

    With Z the (S, N K) indicator of all choices, it is Z'(Z Z')^+ L. The entry of Z Z' for two
    rounds is the number of agents that chose alike, so that Z itself is not needed until the end.
    """
    S, N = choices.shape
    alike = (choices[:, None] == choices[None]).sum(-1).double()  # (S, S)
    weights = torch.linalg.pinv(alike, hermitian=True, rtol=1e-9) @ losses.double()
    found = torch.zeros(N, operations, dtype=torch.float64)
    return found.scatter_add_(1, choices.T, weights.expand(N, S))


def zipf(credit: Tensor) -> Tensor:
    """(N, K) -> (N, K): probabilities by rank, the lowest credit first.

    >>> [round(p, 2) for p in zipf(torch.tensor([[0.3, 0.1, 0.2]]))[0].tolist()]
    [0.18, 0.55, 0.27]
    """
    order = torch.argsort(credit, dim=1, stable=True)
    share = 1 / torch.arange(1.0, credit.shape[1] + 1, dtype=torch.float64)
    return torch.empty_like(credit, dtype=torch.float64).scatter_(
        1, order, (share / share.sum()).expand_as(credit)
    )


def learn_by_weights(
    state: State, chosen: Tensor, reward: float, temperature: float, explore: float
) -> None:
    """Policies by what importance-weighted rewards add up to."""
    policy, credit = state["policy"], state["credit"]
    index = chosen[:, None]
    credit.scatter_add_(1, index, reward / policy.gather(1, index))
    K = policy.shape[1]
    policy.copy_((1 - explore) * (credit / temperature).softmax(1) + explore / K)

"""The gradient of the architecture: against exact differentiation, on a small float64 network."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from bgn_lab.experiments.nas.bilevel import Step, first_order, second_order

RATE = 0.3


class Mixed(nn.Module):
    """Two layers, each a weighted sum of two."""

    def __init__(self) -> None:
        super().__init__()
        self.alphas = nn.Parameter(torch.randn(2, 2))
        self.first = nn.ModuleList([nn.Linear(5, 6), nn.Linear(5, 6)])
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])

    def forward(self, x: Tensor) -> Tensor:
        mix = self.alphas.softmax(1)
        x = torch.tanh(
            self.norm(sum(w * own(x) for w, own in zip(mix[0], self.first, strict=True)))
        )
        parts = [w * own(x) for w, own in zip(mix[1], self.second, strict=True)]
        total: Tensor = sum(parts)  # type: ignore[assignment]
        return total


@pytest.fixture
def model() -> Mixed:
    torch.manual_seed(0)
    return Mixed().double()


def batch(seed: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(seed)
    return torch.randn(12, 5, generator=draws, dtype=torch.float64), torch.randint(
        3, (12,), generator=draws
    )


def sgd(model: Mixed, momentum: float = 0.9) -> torch.optim.Optimizer:
    weights = [p for name, p in model.named_parameters() if name != "alphas"]
    return torch.optim.SGD(weights, RATE, momentum, weight_decay=0.01)


def exact(model: Mixed, optimizer: torch.optim.Optimizer) -> Tensor:
    """By differentiating the step itself."""
    (x, y), (new_x, new_y) = batch(1), batch(2)
    weights = {name: p for name, p in model.named_parameters() if name != "alphas"}
    gradients = torch.autograd.grad(
        F.cross_entropy(model(x), y), list(weights.values()), create_graph=True
    )
    after = {}
    for (name, w), gradient in zip(weights.items(), gradients, strict=True):
        buffer = optimizer.state.get(w, {}).get("momentum_buffer", torch.zeros_like(w))
        after[name] = w - RATE * (0.9 * buffer + gradient + 0.01 * w)
    loss = F.cross_entropy(functional_call(model, after, (new_x,)), new_y)
    return torch.autograd.grad(loss, model.alphas)[0]


@pytest.mark.parametrize("steps", [0, 3])
def test_second_order(model: Mixed, steps: int) -> None:
    """With and without momentum from before."""
    optimizer = sgd(model)
    for i in range(steps):
        optimizer.zero_grad()
        x, y = batch(10 + i)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    expected = exact(model, optimizer)
    (found,) = second_order(model, [model.alphas], batch(1), batch(2), Step(optimizer, RATE))
    (rough,) = first_order(model, [model.alphas], batch(2))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    assert float((rough - expected).norm()) > 50 * float((found - expected).norm()), (
        "first order is another"
    )


def test_weights_stay_to_the_bit_and_get_no_gradients(model: Mixed) -> None:
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    second_order(model, [model.alphas], batch(1), batch(2), Step(sgd(model), RATE))
    first_order(model, [model.alphas], batch(2))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_the_step_is_that_of_the_optimizer(model: Mixed) -> None:
    optimizer = sgd(model)
    for i in range(2):
        optimizer.zero_grad()
        x, y = batch(i)
        F.cross_entropy(model(x), y).backward()
        if i == 0:
            optimizer.step()
    weights = {name: p for name, p in model.named_parameters() if name != "alphas"}
    ahead = Step(optimizer, RATE)(
        weights, {name: p.grad for name, p in weights.items() if p.grad is not None}
    )
    optimizer.step()
    for name, p in weights.items():
        torch.testing.assert_close(ahead[name], p)


def test_passes_over_training_images_move_statistics_the_one_ahead_does_not(model: Mixed) -> None:
    second_order(model, [model.alphas], batch(1), batch(2), Step(sgd(model), RATE))
    assert int(model.norm.num_batches_tracked) == 3
    first_order(model, [model.alphas], batch(2))
    assert int(model.norm.num_batches_tracked) == 4

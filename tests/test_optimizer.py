"""An optimizer goes on through a conversion, and what it remembers fits the new parameters."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import bgn
from tests.test_convert import Residual, trained, x
from tests.tolerance import assert_close


def test_warnings_as_errors_change_nothing() -> None:
    model = trained(Residual().stem)
    optimizer = torch.optim.Adadelta(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    before = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="acc_delta"):
            bgn.convert(model, num_groups=4, optimizer=optimizer)
    assert torch.equal(model(x), before)


def test_every_new_parameter_reaches_the_optimizer() -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    bgn.convert(model, num_groups=2, affine=True, optimizer=optimizer)
    assert {id(p) for g in optimizer.param_groups for p in g["params"]} == {
        id(p) for p in model.parameters()
    }


def test_momentum_of_rmsprop_is_of_steps_and_starts_anew() -> None:
    model = trained(Residual().stem)
    optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9)
    model(x).sum().backward()
    optimizer.step()
    with pytest.warns(UserWarning, match="starts anew: momentum_buffer"):
        bgn.convert(model, num_groups=4, optimizer=optimizer)


@pytest.mark.parametrize(
    "make", [lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), lambda p: torch.optim.AdamW(p, 0.01)]
)
def test_the_optimizer_goes_on(make: Any) -> None:
    torch.manual_seed(0)
    model: Any = trained(Residual().stem)
    optimizer = make(model.parameters())
    target = torch.randn(4, 16, 7, 7, dtype=torch.float64)

    def step() -> float:
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3):
        step()
    weight = model[1].weight
    bgn.convert(model, num_groups=2, optimizer=optimizer)
    assert model[1].weight is weight
    losses = [step() for _ in range(20)]
    assert losses[-1] < losses[0]


def test_momentum_is_that_of_the_new_parameters() -> None:
    """In eval mode both models are the same function, so the chain rule relates their momentum."""
    old: Any = trained(Residual().stem)
    new: Any = copy.deepcopy(old)
    optimizer = torch.optim.SGD(old.parameters(), 0.0, momentum=0.9)
    bgn.convert(new, num_groups=4)
    expected = torch.optim.SGD(new.parameters(), 0.0, momentum=0.9)
    for _ in range(3):
        batch = torch.randn(4, 3, 9, 9, dtype=torch.float64)
        for net, opt in ((old, optimizer), (new, expected)):
            opt.zero_grad()
            net(batch).pow(3).mean().backward()
            opt.step()
    bgn.convert(old, num_groups=4, optimizer=optimizer)
    for ours, theirs in (
        (old[1].weight, new[1].weight),
        (old[1].bias, new[1].bias),
        (old[0].weight, new[0].weight),
    ):
        assert_close(
            optimizer.state[ours]["momentum_buffer"], expected.state[theirs]["momentum_buffer"]
        )


def test_unknown_optimizer_state_starts_anew_with_a_word() -> None:
    model = trained(Residual().stem)
    optimizer = torch.optim.Rprop(model.parameters())
    model(x).sum().backward()
    optimizer.step()
    with pytest.warns(
        UserWarning,
        match="not known here, so those layers' state starts anew: prev, step_size",
    ):
        bgn.convert(model, num_groups=4, optimizer=optimizer)
    assert model[1].weight not in optimizer.state
    optimizer.step()

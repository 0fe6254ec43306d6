"""The attack: within its bounds, harmless to the network, as strong as an independent one."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.experiments.adversarial.pgd import PGD, ball


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)
    ).eval()


def images(count: int = 16) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 1, 8, 8), generator=draws) / 255, torch.randint(
        3, (count,), generator=draws
    )


@given(
    bound=st.floats(1e-4, 1),
    size=st.floats(1e-4, 1),
    steps=st.integers(0, 4),
    start=st.booleans(),
    restarts=st.integers(1, 3),
)
def test_never_outside_the_ball_or_the_range_of_images(
    bound: float, size: float, steps: int, start: bool, restarts: int
) -> None:
    x, y = images()
    found = PGD(bound, size, steps, start, restarts)(network(), x, y)
    assert float((found.double() - x.double()).abs().max()) <= bound, "exactly, not up to rounding"
    assert 0 <= float(found.min()) <= float(found.max()) <= 1


def test_the_ball_reaches_as_far_as_it_may() -> None:
    x, bound = torch.rand(10_000), 0.0157
    low, high = ball(x, bound)
    assert float((high - x)[x < 0.9].min()) > bound * 0.9999
    assert float((x - low)[x > 0.1].min()) > bound * 0.9999
    assert bool((low >= 0).all())
    assert bool((high <= 1).all())


def test_each_step_follows_the_sign_of_the_gradient() -> None:
    model, (x, y) = network(), images()
    inside = x.clamp(0.3, 0.7)
    own = inside.clone().requires_grad_()
    F.cross_entropy(model(own), y).backward()
    assert own.grad is not None
    assert torch.equal(PGD(0.1, 0.02, 1)(model, inside, y), inside + 0.02 * own.grad.sign())


def test_nothing_of_the_network_changes() -> None:
    model, (x, y) = network(), images()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    PGD(0.1, 0.02, 3, start=True, restarts=2)(model, x, y)
    assert not model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_weights_get_no_gradients_on_the_way() -> None:
    """A backward pass to the images alone computes no gradients of the weights.

    They would be a third of the work.
    """
    model, (x, y) = network(), images()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as seen:
        PGD(0.1, 0.02, 1)(model, x, y)
    made = [event for event in seen.events() if event.name == "aten::convolution_backward"]
    assert len(made) == 1
    assert made[0].concrete_inputs[-1] == [True, False, False], "of input, weight and bias"
    assert not any(event.name == "torch::autograd::AccumulateGrad" for event in seen.events())


def fooled(model: nn.Module, attack: PGD, x: Tensor, y: Tensor) -> Tensor:
    torch.manual_seed(3)
    found = attack(model, x, y)
    with torch.no_grad():
        return model(found).argmax(1) != y


def test_more_steps_are_stronger() -> None:
    model, (x, y) = network(), images(200)

    def loss(steps: int) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(model(PGD(0.1, 0.02, steps)(model, x, y)), y))

    assert loss(0) < loss(1) < loss(10)


def test_restarts_fool_more_and_leave_alone_what_is_fooled() -> None:
    model, (x, y) = network(), images(300)
    # a step so small that the random start decides what is fooled: 217 images, and 241 of 300
    once, often = PGD(0.2, 0.001, 1, start=True), PGD(0.2, 0.001, 1, start=True, restarts=6)
    clean = fooled(model, PGD(0.2, 0.001, 0), x, y)
    assert int(fooled(model, once, x, y).sum()) + 10 < int(fooled(model, often, x, y).sum())
    assert torch.equal(often(model, x, y)[clean], x[clean]), "misclassified as they are"
    assert bool(fooled(model, often, x, y)[clean].all())
    shown: list[int] = []
    model.register_forward_hook(lambda _module, args, _output: shown.append(len(args[0])))
    often(model, x, y)
    assert shown == sorted(shown, reverse=True), "only what is still right is attempted again"
    assert shown[-1] < shown[1]


def test_an_independent_implementation_agrees() -> None:
    foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed")
    model, (x, y) = network(), images(500)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    y = (x.mean((1, 2, 3)) * 60).long() % 3  # something to learn
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        clean = float((model(x).argmax(1) == y).float().mean())
        bound, size, steps = 0.0157, 2 / 255, 4
        ours = float((model(PGD(bound, size, steps)(model, x, y)).argmax(1) == y).float().mean())
    attack = foolbox.attacks.LinfPGD(abs_stepsize=size, steps=steps, random_start=False)
    _, _, fooled = attack(foolbox.PyTorchModel(model, bounds=(0, 1)), x, y, epsilons=bound)
    theirs = 1 - float(fooled.float().mean())
    assert clean > 0.6
    assert ours < clean - 0.1
    assert ours == pytest.approx(theirs, abs=0.01)

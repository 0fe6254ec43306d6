"""Changes in place: of inputs, outputs, parameters and statistics, before or after forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, EVALUATION, STANDARD, use


def _change(layer: nn.Module, which: str) -> None:
    with torch.no_grad():
        getattr(layer, which).mul_(2)


@use(CORE, groups=())
def input_changed_before_backward(make: Make) -> Any:
    layer, x = make(), make.x()
    h = x * 1
    y = layer(h)
    h.mul_(2)
    y.backward(make.gy(y))
    return x.grad


@use(groups=())
def input_changed_through_a_view(make: Make) -> Any:
    layer, x = make(), make.x()
    h = x * 1
    y = layer(h)
    h[0].zero_()
    y.backward(make.gy(y))


@use()
def input_changed_behind_autograd(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    x.data = x.data.clone()
    y.backward(make.gy(y))
    return x.grad, state(layer)


@use(cases={"which": ["weight", "bias"]}, groups=(), relu=False)  # that keeps the bias, too
def parameter_changed_before_backward(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    _change(layer, which)
    y.backward(make.gy(y))
    return x.grad, state(layer)


@use(cases={"which": ["weight", "bias"]}, groups=(), relu=False)  # that keeps the bias, too
def parameter_changed_before_double_backward(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    _change(layer, which)
    return torch.autograd.grad(y, (x, layer.weight), make.gy(y), create_graph=True)


@use(cases={"which": ["weight", "bias"]}, groups=(), may_work=True, relu=False)
def parameter_changed_where_not_needed(make: Make, which: str) -> Any:
    """Only the bias's gradient is asked for."""
    layer, x = make(), make.x()
    layer.weight.requires_grad_(False)
    y = layer(x)
    _change(layer, which)
    return torch.autograd.grad(y, layer.bias, make.gy(y))


@use(groups=(), may_work=True)
def weight_changed_for_a_layer_without_input_gradient(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    y = layer(x)
    _change(layer, "weight")
    y.backward(make.gy(y))
    return state(layer)


@use(
    STANDARD,
    cases={"which": ["running_mean", "running_var"], "graph": [False, True]},
    groups=(),
    may_work=True,
)
def statistics_changed_before_backward(make: Make, which: str, graph: bool) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    _change(layer, which)
    return torch.autograd.grad(y, (x, layer.weight), make.gy(y), create_graph=graph)


@use(EVALUATION, groups=())
def statistics_replaced_before_backward(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    layer.running_mean = layer.running_mean * 3
    layer.running_var = layer.running_var * 3
    y.backward(make.gy(y))
    return x.grad, state(layer)


@use(
    EVALUATION,
    groups=(),
    differs="nn.BatchNorm2d differentiates with the statistics that training moved meanwhile",
)
def statistics_moved_by_training_before_backward(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    layer.train()
    layer(make.x(seed=1))
    y.backward(make.gy(y))
    return x.grad


@use(groups=())
def second_batch_before_the_first_backward(make: Make) -> Any:
    layer, xs = make(), [make.x(seed=seed) for seed in range(2)]
    ys = [layer(x) for x in xs]
    for y in ys:
        y.backward(make.gy(y))
    return [x.grad for x in xs], state(layer)


@use(CORE, relu=False)
def output_changed_in_place(make: Make) -> Any:
    layer, x = make(), make.x()
    y = torch.relu_(layer(x).mul_(2))
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(relu=False)
def output_changed_through_views(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y[0].zero_()
    y.view(4, -1)[:, :3].add_(1)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(relu=False)
def output_added_to_the_input(make: Make) -> Any:
    layer, x = make(), make.x()
    h = x * 1
    y = layer(h)
    y += h
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def output_detached_in_place(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x).detach_()
    return y, state(layer)


@use(relu=False)
def leaf_changed_in_place(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    with torch.no_grad():
        y.mul_(3)
    y.backward(make.gy(y))
    return y, x.grad


@use()
def input_changed_before_forward(make: Make) -> Any:
    layer, x = make(), make.x()
    h = (x * 1).relu_()
    y = layer(h)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def requires_grad_view(make: Make) -> Any:
    layer, base = make(), make.x(8)
    y = layer(base[2:6])
    y.backward(make.gy(y))
    return y, base.grad, state(layer)


@use()
def gradient_is_not_changed(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y)
    y.backward(gy)
    return gy, x


@use()
def versions(make: Make) -> Any:
    """How autograd counts the changes that a call makes."""
    layer, x = make(), make.x()
    before = [t._version for t in (x, layer.weight, layer.bias)]
    y = layer(x)
    after = [t._version for t in (x, layer.weight, layer.bias)]
    return before == after, y._version


@use()
def output_is_no_view(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    return y._is_view(), y.data_ptr() == x.data_ptr(), y.untyped_storage().nbytes()


@use()
def detached_output_keeps_its_values(make: Make) -> Any:
    layer, x = make(), make.x()
    kept = layer(x).detach()
    layer(make.x(seed=2))
    return kept


@use()
def accumulated_gradients(make: Make) -> Any:
    layer = make()
    found = [step(make, layer, make.x(seed=seed)) for seed in range(3)]
    return found[-1]


@use()
def gradient_kept_and_changed(make: Make) -> Any:
    """The gradient that a parameter keeps is its own memory."""
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(make.gy(y))
    layer.weight.grad.zero_()
    layer.bias.grad.add_(1)
    x.grad.fill_(2)
    y = layer(x)
    y.backward(make.gy(y))
    return x.grad, state(layer)

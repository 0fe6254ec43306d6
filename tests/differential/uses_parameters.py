"""Parameters and statistics: frozen, missing, tied, parametrized, of another dtype, nonsense."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, EVALUATION, STANDARD, TRAINING, use


@use(cases={"affine": [True, False], "tracking": [True, False]})
def options(make: Make, affine: bool, tracking: bool) -> Any:
    layer = make(affine=affine, track_running_stats=tracking)
    return step(make, layer, make.x()), step(make, layer, make.x(seed=1))


@use(cases={"bias": [True, False]})
def bias_option(make: Make, bias: bool) -> Any:
    layer = make(bias=bias)
    return step(make, layer, make.x()), [name for name, _ in layer.named_parameters()]


@use(cases={"missing": ["weight", "bias", "both"]})
def missing_parameter(make: Make, missing: str) -> Any:
    layer = make()
    for name in ("weight", "bias") if missing == "both" else (missing,):
        setattr(layer, name, None)
    return step(make, layer, make.x())


@use(cases={"frozen": ["weight", "bias", "all"]})
def frozen_parameter(make: Make, frozen: str) -> Any:
    layer = make()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(frozen not in (name, "all"))
    return step(make, layer, make.x())


@use()
def everything_frozen(make: Make) -> Any:
    layer = make().requires_grad_(False)
    return step(make, layer, make.x(grad=False))


@use(cases={"momentum": [None, 0.0, 1.0, 0.3, 1]})
def momentum(make: Make, momentum: Any) -> Any:
    layer = make(momentum=momentum)
    return [step(make, layer, make.x(seed=seed)) for seed in range(3)]


@use()
def momentum_changed(make: Make) -> Any:
    layer = make()
    found = []
    for value in (0.1, 0.5, None, 0.9):
        layer.momentum = value
        found.append(step(make, layer, make.x()))
    return found


@use(
    TRAINING,
    cases={"value": [2.0, -0.5, float("nan")]},
    groups=(),
    differs="refused: such a momentum is no weight of an average",
)
def nonsense_momentum_set_later(make: Make, value: float) -> Any:
    layer = make()
    layer.momentum = value
    return step(make, layer, make.x())


@use(TRAINING, groups=())
def momentum_that_is_a_string(make: Make) -> Any:
    layer = make()
    layer.momentum = "0.1"
    return step(make, layer, make.x())


@use(TRAINING, groups=(), differs="refused: reading a tensor would wait for its device")
def momentum_that_is_a_tensor(make: Make) -> Any:
    layer = make()
    layer.momentum = torch.tensor(0.1)
    return step(make, layer, make.x())


@use(cases={"eps": [0.0, 1e-12, 0.1, 10.0]}, may_work=True)
def epsilon(make: Make, eps: float) -> Any:
    return step(make, make(eps=eps), make.x())


@use(cases={"eps": [1e-3, 0.0, -1e-5]}, may_work=True)
def epsilon_set_later(make: Make, eps: float) -> Any:
    layer = make()
    layer.eps = eps
    return step(make, layer, make.x())


@use(groups=(), differs="refused")
def epsilon_is_not_a_number(make: Make) -> Any:
    layer = make()
    layer.eps = float("nan")
    return step(make, layer, make.x())


@use(cases={"eps": ["text", None]}, groups=())
def epsilon_that_is_no_number(make: Make, eps: Any) -> Any:
    layer = make()
    layer.eps = eps
    return layer(make.x())


@use()
def no_counter(make: Make) -> Any:
    layer = make()
    layer.num_batches_tracked = None
    return step(make, layer, make.x()), step(make, layer, make.x(seed=1))


@use()
def no_counter_and_no_momentum(make: Make) -> Any:
    layer = make(momentum=None)
    layer.num_batches_tracked = None
    return step(make, layer, make.x())


@use(cases={"which": ["running_mean", "running_var"]}, groups=())
def one_statistic_missing(make: Make, which: str) -> Any:
    layer = make()
    setattr(layer, which, None)
    return step(make, layer, make.x())


@use()
def both_statistics_missing(make: Make) -> Any:
    layer = make()
    layer.running_mean = layer.running_var = None
    return step(make, layer, make.x())


@use()
def tracking_switched_off(make: Make) -> Any:
    layer = make()
    layer.track_running_stats = False
    return step(make, layer, make.x())


@use()
def tracking_switched_on(make: Make) -> Any:
    layer = make(track_running_stats=False)
    layer.track_running_stats = True
    return step(make, layer, make.x())


@use(cases={"dtype": ["int32", "float32"]})
def counter_of_another_dtype(make: Make, dtype: str) -> Any:
    layer = make(momentum=None)
    layer.num_batches_tracked = torch.tensor(3, dtype=getattr(torch, dtype))
    return step(make, layer, make.x())


@use(groups=())
def counter_with_one_dimension(make: Make) -> Any:
    layer = make(momentum=None)
    layer.num_batches_tracked = torch.tensor([3])
    return step(make, layer, make.x())


@use(EVALUATION, cases={"which": ["running_mean", "running_var"]}, groups=(), may_work=True)
def statistics_that_require_gradients(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    getattr(layer, which).requires_grad_()
    y = layer(x)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(TRAINING, cases={"which": ["running_mean", "running_var"]}, groups=(), may_work=True)
def moving_statistics_that_require_gradients(make: Make, which: str) -> Any:
    layer = make()
    getattr(layer, which).requires_grad_()
    return layer(make.x())


DTYPES = ["float64", "bfloat16", "float16"]


@use(cases={"dtype": DTYPES}, groups=(), may_work=True)
def input_of_another_dtype(make: Make, dtype: str) -> Any:
    return step(make, make(), make.x(dtype=getattr(torch, dtype)))


@use(cases={"dtype": ["bfloat16", "float16"]})
def low_precision_input(make: Make, dtype: str) -> Any:
    layer = make()
    return [step(make, layer, make.x(dtype=getattr(torch, dtype), seed=s)) for s in (0, 1)]


@use(cases={"dtype": DTYPES})
def layer_of_another_dtype(make: Make, dtype: str) -> Any:
    layer = make().to(getattr(torch, dtype))
    return step(make, layer, make.x(dtype=getattr(torch, dtype)))


@use(cases={"dtype": DTYPES}, groups=(), may_work=True)
def float32_input_to_a_layer_of_another_dtype(make: Make, dtype: str) -> Any:
    return step(make, make().to(getattr(torch, dtype)), make.x())


@use(cases={"dtype": DTYPES}, groups=(), may_work=True)
def statistics_of_another_dtype(make: Make, dtype: str) -> Any:
    layer = make()
    layer.running_mean = layer.running_mean.to(getattr(torch, dtype))
    layer.running_var = layer.running_var.to(getattr(torch, dtype))
    return step(make, layer, make.x())


@use(cases={"dtype": DTYPES}, groups=(), may_work=True)
def bias_of_another_dtype(make: Make, dtype: str) -> Any:
    layer = make()
    layer.bias = nn.Parameter(layer.bias.detach().to(getattr(torch, dtype)))
    return step(make, layer, make.x())


@use(cases={"which": ["weight", "bias", "running_mean", "running_var"]}, groups=())
def state_of_another_length(make: Make, which: str) -> Any:
    layer = make()
    value = torch.ones(5)
    setattr(layer, which, nn.Parameter(value) if which in ("weight", "bias") else value)
    return layer(make.x())


@use(cases={"which": ["weight", "bias"]}, groups=(), differs="refused: not one entry per channel")
def parameters_with_two_dimensions(make: Make, which: str) -> Any:
    return state_with_two_dimensions(make, which)


@use(cases={"which": ["running_mean", "running_var"]}, groups=())
def state_with_two_dimensions(make: Make, which: str) -> Any:
    layer = make()
    value = getattr(layer, which).detach()[None]
    setattr(layer, which, nn.Parameter(value) if which in ("weight", "bias") else value)
    return layer(make.x())


class Doubled(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value * 2

    def right_inverse(self, value: Tensor) -> Tensor:
        return value / 2


@use(cases={"which": ["weight", "bias"]})
def parametrized(make: Make, which: str) -> Any:
    layer = make()
    parametrize.register_parametrization(layer, which, Doubled())
    found = [step(make, layer, make.x())]
    with parametrize.cached():
        found.append(step(make, layer, make.x(seed=1)))
    parametrize.remove_parametrizations(layer, which)
    return found, step(make, layer, make.x(seed=2))


@use(EVALUATION, cases={"which": ["running_mean", "running_var"]})
def parametrized_statistics(make: Make, which: str) -> Any:
    layer = make()
    parametrize.register_parametrization(layer, which, Doubled())
    return layer(make.x())


@use()
def tied_weights(make: Make) -> Any:
    first, second, x = make(), make(), make.x()
    second.weight = first.weight
    y = second(first(x))
    y.backward(make.gy(y))
    return y, x.grad, state(first)


@use()
def weight_and_bias_are_one(make: Make) -> Any:
    layer = make()
    layer.bias = layer.weight
    return step(make, layer, make.x())


@use()
def computed_weight(make: Make) -> Any:
    """A hypernetwork's output as weight: no leaf, no parameter."""
    layer, x, source = make(), make.x(), torch.linspace(0, 1, 8).requires_grad_()
    del layer._parameters["weight"]
    layer.weight = source.sin() + 1
    y = layer(x)
    y.backward(make.gy(y))
    return y, x.grad, source.grad, [b.clone() for b in layer.buffers()]


@use()
def pruned_weight(make: Make) -> Any:
    layer = make()
    prune.l1_unstructured(layer, "weight", amount=0.5)
    found = step(make, layer, make.x())
    prune.remove(layer, "weight")
    return found, step(make, layer, make.x(seed=1))


@use(cases={"kind": ["spectral", "weight", "old weight"]})
def normalized_weight(make: Make, kind: str) -> Any:
    layer = make()
    if kind == "old weight":
        nn.utils.weight_norm(layer, dim=None)
    else:
        {"spectral": spectral_norm, "weight": weight_norm}[kind](layer)
    return step(make, layer, make.x())


@use(CORE)
def partly_frozen_model(make: Make) -> Any:
    model = nn.Sequential(make(), nn.Sigmoid(), make())
    model[0].eval().requires_grad_(False)
    x = make.x()
    y = model(x)
    y.backward(make.gy(y))
    return y, x.grad, [state(layer) for layer in (model[0], model[2])]


@use(STANDARD)
def mode_switched_between_forward_and_backward(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    layer.train(not make.training)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(TRAINING, cases={"bad": ["eps", "momentum"]}, groups=(), differs="checked at once")
def nonsense_at_construction(make: Make, bad: str) -> Any:
    make.new(**{bad: "x"})
    return "made"


@use(TRAINING, groups=())
def number_of_features_is_no_integer(make: Make) -> Any:
    return make.new(8.0)

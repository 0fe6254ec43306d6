"""torch.autograd: gradients of gradients, batched, partly needed, under anomaly mode."""

# ruff: noqa: ARG004 (torch calls hooks with more than they need)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import functional

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, STANDARD, TRAINING, use

FLOAT64 = [(mode, "float64", "contiguous") for mode in (True, False)]


@use(CORE)
def two_steps(make: Make) -> Any:
    layer = make()
    return step(make, layer, make.x()), step(make, layer, make.x(seed=1))


@use(CORE)
def gradient_of_a_sum(make: Make) -> Any:  # the gradient is expanded from one number
    layer, x = make(), make.x()
    (layer(x) * 2).sum().backward()
    layer(x).sum().backward()
    # in training the gradient of the weight is a sum that is zero but for rounding
    return x.grad, layer.bias.grad, None if make.training else layer.weight.grad


@use([v for v in CORE if v[1] != "bfloat16"])
def gradient_penalty(make: Make) -> Any:
    layer, x = make(), make.x()
    (gx,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    (gx.norm() - 1).square().backward()
    return gx, x.grad, state(layer)


@use(
    [(True, "float64", "contiguous")],
    groups=(),
    differs="nn.BatchNorm2d takes the statistics for constants in the third derivative",
)
def third_derivatives_in_training(make: Make) -> Any:
    return third_derivatives(make)


@use([(False, "float64", "contiguous")])
def third_derivatives(make: Make) -> Any:
    layer, x = make(), make.x(2, H=3, W=2)
    found = [layer(x).pow(3).sum()]
    for _ in range(3):
        (g,) = torch.autograd.grad(found[-1], x, create_graph=True)
        found += [g, (g * make.gy(g)).pow(2).sum()]
    return found[1::2]


@use(cases={"needed": ["x", "weight", "bias", "x+weight", "weight+bias", "x+bias"]})
def gradients_of_some(make: Make, needed: str) -> Any:
    layer = make()
    x = make.x(grad="x" in needed)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name in needed)
    inputs = [t for t in (x, *layer.parameters()) if t.requires_grad]
    y = layer(x)
    return y, torch.autograd.grad(y, inputs, make.gy(y))


@use()
def asked_for_fewer_than_required(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    return torch.autograd.grad(y, layer.weight, make.gy(y)), x.grad, state(layer)


@use(FLOAT64, cases={"differentiable": [False, True]})
def batched_gradients(make: Make, differentiable: bool) -> Any:
    layer, x = make(), make.x(2, H=3, W=2)
    y = layer(x)
    gy = torch.stack([make.gy(y, seed) for seed in range(3)])
    return torch.autograd.grad(
        y, (x, layer.weight), gy, is_grads_batched=True, create_graph=differentiable
    )


@use()
def unused_inputs(make: Make) -> Any:
    layer, x = make(), make.x()
    other = torch.ones(3, requires_grad=True)
    y = layer(x).sum()
    loose = torch.autograd.grad(y, (x, other), allow_unused=True, retain_graph=True)
    return loose, torch.autograd.grad(y, (x, other), materialize_grads=True)


@use()
def unused_input_is_an_error(make: Make) -> Any:
    other = torch.ones(3, requires_grad=True)
    return torch.autograd.grad(make()(make.x()).sum(), other)


@use()
def retained_graph(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    for seed in range(3):
        y.backward(make.gy(y, seed), retain_graph=True)
    return x.grad, state(layer)


@use()
def backward_twice_without_retaining(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(make.gy(y))
    y.backward(make.gy(y))


@use(tolerance=10)
def backward_with_create_graph(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    with torch.autograd.grad_mode.set_grad_enabled(True):
        gx, gw = torch.autograd.grad(y, (x, layer.weight), make.gy(y), create_graph=True)
    return gx, gw, torch.autograd.grad(gx.pow(2).sum() + gw.pow(3).sum(), (x, layer.weight))


@use()
def gradient_that_requires_gradients(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y).requires_grad_()
    (gx,) = torch.autograd.grad(y, x, gy, create_graph=True)
    return gx, torch.autograd.grad(gx.sin().sum(), (gy, x, layer.weight), allow_unused=True)


REVERSE, FORWARD = "reverse-mode", "forward-mode"
METHODS = [(False, REVERSE), (True, REVERSE), (True, FORWARD)]  # what torch has


@use(FLOAT64, strides=False, cases={"method": METHODS})
def jacobian(make: Make, method: tuple[bool, str]) -> Any:
    layer = make(track_running_stats=not make.training)
    x = make.x(2, H=2, W=2)
    return functional.jacobian(layer, x, vectorize=method[0], strategy=method[1])


@use(FLOAT64, cases={"vectorize": [False, True]})
def jacobian_of_a_tracking_layer(make: Make, vectorize: bool) -> Any:
    return functional.jacobian(make(), make.x(2, H=2, W=2), vectorize=vectorize)


@use(FLOAT64, strides=False, cases={"method": METHODS})
def hessian(make: Make, method: tuple[bool, str]) -> Any:
    layer = make(track_running_stats=not make.training)

    def loss(x: Tensor) -> Tensor:
        return layer(x).pow(3).sum()

    x = make.x(2, H=2, W=2)
    return functional.hessian(loss, x, vectorize=method[0], outer_jacobian_strategy=method[1])


@use(FLOAT64, cases={"name": ["vjp", "jvp", "hvp", "vhp"], "graph": [False, True]})
def products(make: Make, name: str, graph: bool) -> Any:
    layer, x = make(), make.x(2, H=3, W=2)

    def loss(x: Tensor) -> Tensor:
        return layer(x).pow(3).sum()

    function = layer if name in ("vjp", "jvp") else loss
    return getattr(functional, name)(function, x, make.gy(x), create_graph=graph)


@use(cases={"check_nan": [False, True]})
def anomaly_mode(make: Make, check_nan: bool) -> Any:
    with torch.autograd.detect_anomaly(check_nan=check_nan):
        return step(make, make(), make.x())


@use()
def anomaly_mode_with_nan_gradient(make: Make) -> Any:
    layer, x = make(), make.x()
    with torch.autograd.detect_anomaly():
        y = layer(x)
        y.backward(torch.full_like(y, float("nan")))


@use(groups=(), relu=False)
def graph_reaches_the_leaves(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    assert y.grad_fn is not None
    leaves = [node for node, _ in y.grad_fn.next_functions if node is not None]
    return len(leaves), [type(node).__name__ for node in leaves], y.requires_grad, y.is_leaf


@use()
def undefined_gradient(make: Make) -> Any:
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: Tensor) -> Tensor:
            return y.clone()

        @staticmethod
        def backward(ctx: Any, gy: Tensor) -> Any:
            return None

    layer, x = make(), make.x()
    Nothing.apply(layer(x)).sum().backward()
    return x.grad, state(layer)


@use()
def inside_an_autograd_function(make: Make) -> Any:
    layer = make()

    class Around(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            with torch.enable_grad():
                inner = x.detach().requires_grad_()
                y = layer(inner)
            ctx.inner, ctx.y = inner, y
            return y.detach()

        @staticmethod
        def backward(ctx: Any, gy: Tensor) -> Any:
            return torch.autograd.grad(ctx.y, ctx.inner, gy)[0]

    x = make.x()
    y = Around.apply(x)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def two_uses_of_one_layer(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(layer(x))
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def one_input_of_two_layers(make: Make) -> Any:
    layers, x = [make(), make()], make.x()
    y = layers[0](x) * layers[1](x)
    y.backward(make.gy(y))
    return y, x.grad, [state(layer) for layer in layers]


@use(TRAINING)
def backward_of_a_graph_freed_meanwhile(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y)
    del layer
    y.backward(gy)
    return y, x.grad


@use(STANDARD)
def gradient_of_the_output_of_another_shape(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(torch.ones(4, 8, 5, 6))


@use(cases={"dtype": ["float64", "bfloat16"]})
def gradient_of_another_dtype(make: Make, dtype: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(make.gy(y).to(getattr(torch, dtype)))
    return x.grad, state(layer)


@use(
    [v for v in CORE if v[1] == "float32"],
    cases={"kind": ["channels_last", "contiguous", "transposed", "sliced", "expanded"]},
    tolerance=4,
)
def gradient_of_another_layout(make: Make, kind: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y)
    if kind == "channels_last":
        gy = gy.contiguous(memory_format=torch.channels_last)
    elif kind == "contiguous":
        gy = gy.contiguous()
    elif kind == "transposed":
        gy = gy.transpose(2, 3).contiguous().transpose(2, 3)
    elif kind == "sliced":
        gy = torch.stack([gy, gy * 0 + 7], -1)[..., 0]
    else:
        gy = gy[:1, :, :1, :1].expand_as(y)
    y.backward(gy)
    return x.grad, state(layer)

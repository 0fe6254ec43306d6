"""torch.func and forward-mode derivatives."""

from __future__ import annotations

from typing import Any

import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor
from torch.func import functional_call

from tests.differential.layers import Make, state
from tests.differential.table import EVALUATION, TRAINING, use

FLOAT64 = [(mode, "float64", "contiguous") for mode in (True, False)]
LAST = [(mode, "float64", "channels_last") for mode in (True, False)]


def _parts(layer: torch.nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    return parameters, {name: b.clone() for name, b in layer.named_buffers()}


def _loss(layer: torch.nn.Module) -> Any:
    return lambda x: layer(x).pow(3).sum()


@use(FLOAT64 + LAST, cases={"tracking": [True, False]})
def func_grad(make: Make, tracking: bool) -> Any:
    layer = make(track_running_stats=tracking)
    return torch.func.grad(_loss(layer))(make.x(grad=False)), state(layer)


@use(FLOAT64)
def func_grad_of_grad(make: Make) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x(grad=False)
    inner = torch.func.grad(_loss(layer))
    return torch.func.grad(lambda x: inner(x).pow(2).sum())(x)


@use(FLOAT64)
def func_grad_and_value_of_parameters(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    parameters, buffers = _parts(layer)

    def loss(parameters: Any, buffers: Any, x: Tensor) -> Any:
        y = functional_call(layer, (parameters, buffers), (x,))
        return y.pow(3).sum(), y

    call = torch.func.grad_and_value(loss, argnums=(0, 2), has_aux=True)
    return call(parameters, buffers, x), buffers


@use(FLOAT64)
def func_vjp(make: Make) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x(grad=False)
    y, pull = torch.func.vjp(layer, x)
    return y, pull(make.gy(y)), state(layer)


@use(FLOAT64 + LAST, cases={"tracking": [True, False]})
def func_jvp(make: Make, tracking: bool) -> Any:
    layer, x = make(track_running_stats=tracking), make.x(grad=False)
    return torch.func.jvp(layer, (x,), (make.gy(x),))


@use(
    FLOAT64,
    cases={"name": ["jacrev", "jacfwd", "hessian"], "tracking": [True, False]},
    strides=False,
)
def func_matrices(make: Make, name: str, tracking: bool) -> Any:
    layer, x = make(track_running_stats=tracking), make.x(2, H=2, W=2, grad=False)
    return getattr(torch.func, name)(_loss(layer) if name == "hessian" else layer)(x)


@use(FLOAT64, strides=False)
def func_jacrev_in_chunks(make: Make) -> Any:
    layer, x = make(track_running_stats=False), make.x(2, H=2, W=2, grad=False)
    return torch.func.jacrev(layer, chunk_size=5)(x)


@use(FLOAT64)
def func_linearize(make: Make) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x(grad=False)
    y, push = torch.func.linearize(layer, x)
    return y, push(make.gy(x)), push(make.gy(x, 1))


@use(FLOAT64, groups=())
def func_functionalize(make: Make) -> Any:
    layer = make()
    return torch.func.functionalize(layer)(make.x(grad=False)), state(layer)


@use(FLOAT64 + LAST, cases={"axis": [0, 1, -1], "tracking": [True, False]}, strides=False)
def vmap_over_inputs(make: Make, axis: int, tracking: bool) -> Any:
    layer = make(track_running_stats=tracking)
    x = torch.stack([make.x(seed=seed, grad=False) for seed in range(3)], axis)
    return torch.vmap(layer, in_dims=axis, out_dims=axis)(x)


@use(FLOAT64, cases={"randomness": ["different", "same"]}, strides=False)
def vmap_beside_dropout(make: Make, randomness: str) -> Any:
    layer = make(track_running_stats=False)
    net = torch.nn.Sequential(layer, torch.nn.Dropout(0.0))
    x = torch.stack([make.x(seed=seed, grad=False) for seed in range(3)])
    return torch.vmap(net, randomness=randomness)(x)


@use(FLOAT64, strides=False)
def vmap_in_chunks(make: Make) -> Any:
    layer = make(track_running_stats=False)
    x = torch.stack([make.x(seed=seed, grad=False) for seed in range(5)])
    return torch.vmap(layer, chunk_size=2)(x)


@use(FLOAT64, strides=False)
def vmap_over_weights(make: Make) -> Any:
    layer, x = make(track_running_stats=False), make.x(grad=False)
    parameters, _ = _parts(layer)
    many = {name: torch.stack([p, p * 2, p - 1]) for name, p in parameters.items()}
    return torch.vmap(lambda p: functional_call(layer, p, (x,)))(many)


@use(FLOAT64, strides=False)
def per_sample_gradients(make: Make) -> Any:
    layer = make(track_running_stats=not make.training)
    parameters, buffers = _parts(layer)

    def loss(parameters: Any, x: Tensor) -> Tensor:
        return functional_call(layer, (parameters, buffers), (x[None],)).pow(3).sum()

    call = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))
    return call(parameters, make.x(grad=False))


@use(FLOAT64, strides=False)
def ensemble(make: Make) -> Any:
    layers = [make(), make(), make()]
    with torch.no_grad():
        for i, layer in enumerate(layers):
            layer.weight.mul_(i + 1)
    parameters, buffers = torch.func.stack_module_state(layers)
    x = make.x(grad=False)

    def call(parameters: Any, buffers: Any) -> Tensor:
        return functional_call(layers[0], (parameters, buffers), (x,))

    return torch.vmap(call)(parameters, buffers), parameters, buffers


@use(FLOAT64, strides=False)
def ensemble_on_inputs_of_their_own(make: Make) -> Any:
    layers = [make(), make(), make()]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = torch.stack([make.x(seed=seed, grad=False) for seed in range(3)])

    def call(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        return functional_call(layers[0], (parameters, buffers), (x,))

    return torch.vmap(call)(parameters, buffers, x), buffers


@use(FLOAT64, strides=False)
def ensemble_gradients(make: Make) -> Any:
    layers = [make(track_running_stats=not make.training) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(layers)
    parameters = {name: p.detach() for name, p in parameters.items()}
    x = torch.stack([make.x(seed=seed, grad=False) for seed in range(3)])

    def loss(parameters: Any, buffers: Any, x: Tensor) -> Tensor:
        return functional_call(layers[0], (parameters, buffers), (x,)).pow(3).sum()

    return torch.vmap(torch.func.grad(loss))(parameters, buffers, x)


@use()
def functional_call_moves_given_buffers(make: Make) -> Any:
    layer, x = make(), make.x()
    parameters, buffers = _parts(layer)
    y = functional_call(layer, (parameters, buffers), (x,))
    return y, buffers, state(layer)


@use()
def functional_call_with_tied_parameters(make: Make) -> Any:
    layer, x = make(), make.x()
    shared = torch.rand(8, dtype=make.dtype, requires_grad=True)
    y = functional_call(layer, {"weight": shared, "bias": shared}, (x,))
    return y, torch.autograd.grad(y, (x, shared), make.gy(y))


def _dual(make: Make, tracking: bool, which: str) -> Any:
    layer, x = make(track_running_stats=tracking), make.x(grad=False)
    parameters, _ = _parts(layer)
    with fwd.dual_level():
        if "x" in which:
            x = fwd.make_dual(x, make.gy(x))
        for name in which.split("+"):
            if name in parameters:
                parameters[name] = fwd.make_dual(parameters[name], make.gy(parameters[name]))
        return fwd.unpack_dual(functional_call(layer, parameters, (x,)))


@use(
    FLOAT64,
    cases={"which": ["x", "weight", "bias", "x+weight+bias"], "tracking": [True, False]},
)
def dual_numbers(make: Make, which: str, tracking: bool) -> Any:
    dual = _dual(make, tracking, which)
    return dual.primal, dual.tangent


@use(FLOAT64)
def plain_input_within_a_dual_level(make: Make) -> Any:
    layer, x = make(), make.x()
    with fwd.dual_level():
        y = layer(x)
        y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(FLOAT64, cases={"which": ["gy", "x", "weight"]}, relu=False)
def forward_over_reverse(make: Make, which: str) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x()
    with fwd.dual_level():
        parts = {"x": x, "weight": layer.weight.detach().requires_grad_(), "gy": make.gy(x)}
        value = parts[which].detach()
        parts[which] = fwd.make_dual(value, make.gy(value, 5))
        if which != "gy":
            parts[which].requires_grad_()
        y = functional_call(layer, {"weight": parts["weight"]}, (parts["x"],))
        grads = torch.autograd.grad(y, (parts["x"], parts["weight"]), parts["gy"])
        return [list(fwd.unpack_dual(g)) for g in grads]


@use(FLOAT64)
def dual_gradient_of_a_graph_made_before(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    with fwd.dual_level():
        gy = fwd.make_dual(make.gy(y), make.gy(y, 7))
        return list(fwd.unpack_dual(torch.autograd.grad(y, x, gy)[0]))


@use(FLOAT64)
def jvp_of_grad(make: Make) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x(grad=False)
    return torch.func.jvp(torch.func.grad(_loss(layer)), (x,), (make.gy(x),))


@use(
    [(True, "float64", "contiguous")],
    groups=(),
    differs="nn.BatchNorm2d takes the statistics for constants in derivatives of forward mode",
)
def grad_of_jvp_in_training(make: Make) -> Any:
    return grad_of_jvp(make)


@use([(False, "float64", "contiguous")])
def grad_of_jvp(make: Make) -> Any:
    layer, x = make(track_running_stats=not make.training), make.x(grad=False)
    v = make.gy(x)
    return torch.func.grad(lambda x: torch.func.jvp(layer, (x,), (v,))[1].pow(2).sum())(x)


@use(TRAINING)
def grad_of_a_cumulative_layer(make: Make) -> Any:
    layer = make(momentum=None)
    return torch.func.grad(_loss(layer))(make.x(grad=False)), state(layer)


@use(EVALUATION, strides=False)
def vmap_of_statistics(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    parameters, buffers = _parts(layer)
    means = torch.stack([buffers["running_mean"] + i for i in range(3)])

    def call(mean: Tensor) -> Tensor:
        return functional_call(layer, (parameters, {**buffers, "running_mean": mean}), (x,))

    return torch.vmap(call)(means)


@use(FLOAT64, strides=False)
def vmap_of_a_backward_made_outside(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gys = torch.stack([make.gy(y, seed) for seed in range(3)])
    return torch.vmap(lambda gy: torch.autograd.grad(y, x, gy, retain_graph=True)[0])(gys)

"""Hooks of tensors, modules, graph nodes and gradients."""

# ruff: noqa: ARG001, ARG005 (torch calls hooks with more than they need)
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.nn.modules import module as global_hooks

from tests.differential.layers import Make, state, step
from tests.differential.table import use


def _kind(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_kind(item) for item in value]
    return None if value is None else [list(value.shape), str(value.dtype)]


@use(cases={"which": ["x", "y", "weight", "bias"], "change": [False, True]})
def tensor_hook(make: Make, which: str, change: bool) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    tensor = {"x": x, "y": y, "weight": layer.weight, "bias": layer.bias}[which]
    seen: list[Any] = []
    tensor.register_hook(lambda g: (seen.append(g.clone()), g * 3 if change else None)[1])
    y.backward(make.gy(y))
    return seen, x.grad, state(layer)


@use()
def hook_that_changes_the_gradient_in_place(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    x.register_hook(lambda g: g.mul_(2))
    y.backward(make.gy(y))
    return x.grad, state(layer)


@use()
def hook_that_changes_the_layout(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))
    y.backward(make.gy(y))
    return x.grad, state(layer)


@use()
def hook_that_returns_a_subclass(make: Make) -> Any:
    class Tagged(Tensor):
        pass

    layer, x = make(), make.x()
    y = layer(x)
    y.register_hook(lambda g: g.as_subclass(Tagged))
    y.backward(make.gy(y))
    return _kind(x.grad), _kind(layer.weight.grad), (x.grad - 0).as_subclass(Tensor)


@use()
def post_accumulate_grad_hook(make: Make) -> Any:
    layer, x = make(), make.x()
    seen: list[str] = []
    for name, parameter in layer.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: (seen.append(name), p.data.sub_(p.grad, alpha=0.1))[0]
        )
    y = layer(x)
    y.backward(make.gy(y))
    return sorted(seen), x.grad, state(layer)


@use(cases={"pre": [False, True], "change": [False, True]})
def full_backward_hook(make: Make, pre: bool, change: bool) -> Any:
    layer, x = make(), make.x()
    seen: list[Any] = []
    if pre:
        layer.register_full_backward_pre_hook(
            lambda m, gy: (seen.append(gy), (gy[0] * 2,) if change else None)[1]
        )
    else:
        layer.register_full_backward_hook(
            lambda m, gx, gy: (seen.append((gx, gy)), (gx[0] * 2,) if change else None)[1]
        )
    y = layer(x)
    y.backward(make.gy(y))
    return seen, x.grad, state(layer)


@use()
def full_backward_hook_without_input_gradient(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    seen: list[Any] = []
    layer.register_full_backward_hook(lambda m, gx, gy: seen.append((gx, gy)))
    y = layer(x)
    y.backward(make.gy(y))
    return seen, state(layer)


@use(cases={"kwargs": [False, True], "prepend": [False, True]})
def forward_hooks(make: Make, kwargs: bool, prepend: bool) -> Any:
    layer = make()

    def before(module: nn.Module, args: Any, *rest: Any) -> Any:
        return ((args[0] * 2,), *rest) if kwargs else (args[0] * 2,)

    def after(module: nn.Module, args: Any, *rest: Any) -> Any:
        return rest[-1] + 1

    layer.register_forward_pre_hook(before, with_kwargs=kwargs, prepend=prepend)
    layer.register_forward_hook(after, with_kwargs=kwargs, prepend=prepend)
    return step(make, layer, make.x())


@use(relu=False)
def forward_hook_in_place(make: Make) -> Any:
    layer = make()
    layer.register_forward_hook(lambda m, args, y: y.mul_(2))
    return step(make, layer, make.x())


@use()
def forward_hook_that_always_runs(make: Make) -> Any:
    layer, seen = make(), []
    layer.register_forward_hook(lambda *a: seen.append(len(a)), always_call=True)
    try:
        layer(torch.randn(2, 3, 4, 4))
    except (RuntimeError, ValueError):
        return seen
    return "no error"


@use()
def input_by_keyword(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(input=x)
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def global_module_hooks(make: Make) -> Any:
    layer, x, seen = make(), make.x(), []
    handles = [
        global_hooks.register_module_forward_pre_hook(lambda m, a: seen.append("pre")),
        global_hooks.register_module_forward_hook(lambda m, a, y: seen.append("forward")),
        global_hooks.register_module_full_backward_pre_hook(lambda m, g: seen.append("bpre")),
        global_hooks.register_module_full_backward_hook(lambda m, a, b: seen.append("backward")),
    ]
    found = step(make, layer, x)
    for handle in handles:
        handle.remove()
    return seen, found


@use(cases={"pre": [False, True]}, groups=(), relu=False)
def node_hook(make: Make, pre: bool) -> Any:
    layer, x, seen = make(), make.x(), []
    y = layer(x)
    assert y.grad_fn is not None
    if pre:
        y.grad_fn.register_prehook(lambda gy: (seen.append(gy), (gy[0] * 2,))[1])
    else:
        y.grad_fn.register_hook(lambda gx, gy: seen.append((_kind(gx[:3]), _kind(gy))))
    y.backward(make.gy(y))
    return seen, x.grad, state(layer)


@use()
def retained_gradients(make: Make) -> Any:
    layer, x = make(), make.x()
    h = x * 2
    y = layer(h)
    h.retain_grad()
    y.retain_grad()
    (y * y).sum().backward()
    return h.grad, y.grad, x.grad, state(layer)


@use(cases={"mode": ["all", "any"]})
def multi_grad_hook(make: Make, mode: str) -> Any:
    layer, x, seen = make(), make.x(), []
    y = layer(x)
    tensors = (x, layer.weight, layer.bias)
    register_multi_grad_hook(tensors, lambda g: seen.append(_kind(g)), mode=mode)
    y.backward(make.gy(y))
    if mode == "any":  # which comes first is not part of the bargain
        return len(seen), x.grad
    return seen, x.grad, state(layer)


@use()
def gradient_edges(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    edge = torch.autograd.graph.get_gradient_edge(y)
    inner = torch.autograd.graph.get_gradient_edge(layer.weight)
    return torch.autograd.grad(edge, (x, inner), make.gy(y))


@use()
def queued_callback(make: Make) -> Any:
    layer, x, seen = make(), make.x(), []
    engine = torch.autograd.Variable._execution_engine
    y = layer(x)
    x.register_hook(lambda g: engine.queue_callback(lambda: seen.append("done")))
    y.backward(make.gy(y))
    return seen, x.grad


@use()
def forward_inside_a_backward_hook(make: Make) -> Any:
    """A module that runs inside backward, as a teacher or a penalty may; its gradients count."""
    layer, other, x = make(), make(), make.x()
    results: list[Tensor] = []

    def hook(g: Tensor) -> Tensor:
        with torch.enable_grad():
            inner = g.detach().clone().requires_grad_()
            z = other(inner)
            results.extend(torch.autograd.grad(z, inner, torch.ones_like(z)))
        return g

    y = layer(x)
    y.register_hook(hook)
    y.backward(make.gy(y))
    return results, x.grad, state(layer)


@use()
def accumulate_grad_hook_of_the_weight(make: Make) -> Any:
    layer, x, seen = make(), make.x(), []
    node = layer.weight.view_as(layer.weight).grad_fn.next_functions[0][0]
    node.register_hook(lambda *a: seen.append("accumulated"))
    y = layer(x)
    y.backward(make.gy(y))
    return seen, x.grad


@use()
def module_hook_raises(make: Make) -> Any:
    layer = make()

    def hook(*args: Any) -> None:
        raise RuntimeError("no")

    layer.register_full_backward_hook(hook)
    y = layer(make.x())
    y.backward(make.gy(y))


@use()
def removed_hooks(make: Make) -> Any:
    layer = make()
    for handle in (
        layer.register_forward_hook(lambda m, a, y: y * 2),
        layer.register_full_backward_hook(lambda m, gx, gy: (gx[0] * 2,)),
    ):
        handle.remove()
    return step(make, layer, make.x())

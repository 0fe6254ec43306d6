"""Grad modes, dispatch and function modes, subclasses, autocast, default dtypes and devices."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, use


@use(CORE, cases={"mode": ["no_grad", "inference_mode", "set_grad_enabled"]})
def without_gradients(make: Make, mode: str) -> Any:
    layer, x = make(), make.x()
    context = torch.set_grad_enabled(False) if mode == "set_grad_enabled" else None
    with context or getattr(torch, mode)():
        y = layer(x)
    return y, state(layer)


@use()
def inference_tensor_into_a_graph(make: Make) -> Any:
    with torch.inference_mode():
        x = make.x(grad=False) * 1
    return step(make, make(), x)


@use()
def inference_tensor_into_a_frozen_layer(make: Make) -> Any:
    with torch.inference_mode():
        x = make.x(grad=False) * 1
    layer = make().requires_grad_(False)
    return layer(x), state(layer)


@use()
def layer_made_in_inference_mode(make: Make) -> Any:
    with torch.inference_mode():
        layer = make()
        y = layer(make.x(grad=False))
    return y, state(layer)


@use()
def layer_made_in_inference_mode_used_outside(make: Make) -> Any:
    with torch.inference_mode():
        layer = make()
    with torch.no_grad():
        y = layer(make.x(grad=False))
    return y, state(layer)


@use(may_work=True)
def statistics_made_in_inference_mode(make: Make) -> Any:
    layer = make()
    with torch.inference_mode():
        layer.running_mean = layer.running_mean.clone()
        layer.running_var = layer.running_var.clone()
    return step(make, layer, make.x())


@use()
def inference_mode_then_training(make: Make) -> Any:
    layer = make()
    with torch.inference_mode():
        layer(make.x(grad=False))
    return step(make, layer, make.x(seed=1))


@use()
def inference_mode_switched_off_inside(make: Make) -> Any:
    layer = make()
    with torch.inference_mode(), torch.inference_mode(False):
        return step(make, layer, make.x())


@use()
def gradients_enabled_inside_no_grad(make: Make) -> Any:
    with torch.no_grad(), torch.enable_grad():
        return step(make, make(), make.x())


class Through(TorchDispatchMode):
    """Runs every operation as it is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    """Sees every operation; batch norm of either sort must not compute behind its back."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Runs every function as it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@use(CORE)
def dispatch_mode(make: Make) -> Any:
    with Through():
        return step(make, make(), make.x())


@use()
def dispatch_mode_sees_the_layer(make: Make) -> Any:
    layer, x = make(), make.x()
    layer(x)
    with Doubling() as mode:
        y = layer(x)
        forward = mode.seen
        y.backward(make.gy(y))
    return forward > 0, mode.seen > forward


@use()
def dispatch_mode_in_backward_only(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y)
    with Doubling() as mode:
        y.backward(gy)
    return mode.seen > 0, x.grad, state(layer)


@use()
def function_mode(make: Make) -> Any:
    with Functions():
        return step(make, make(), make.x())


@use()
def flop_counter(make: Make) -> Any:
    with FlopCounterMode(display=False) as counter:
        found = step(make, make(), make.x())
    return found, counter.get_total_flops()


@use()
def device_context(make: Make) -> Any:
    with torch.device("cpu"):
        return step(make, make(), make.x())


@use()
def made_on_meta(make: Make) -> Any:
    with torch.device("meta"):
        layer = make.new()
        y = layer(torch.randn(4, 8, 6, 5))
    return y, state(layer)


@use(groups=(1, 2))
def meta_layer(make: Make) -> Any:
    layer = make.new(device="meta").train(make.training)
    x = torch.randn(4, 8, 6, 5, device="meta", requires_grad=True)
    y = layer(x)
    y.sum().backward()
    return y, x.grad, state(layer)


@use(groups=())
def input_on_another_device(make: Make) -> Any:
    return make()(torch.randn(4, 8, 6, 5, device="meta"))


@use(groups=())
def weight_on_another_device(make: Make) -> Any:
    layer = make()
    layer.weight = nn.Parameter(torch.randn(8, device="meta"))
    return layer(make.x())


@use(groups=())
def statistics_on_another_device(make: Make) -> Any:
    layer = make()
    layer.running_mean = torch.zeros(8, device="meta")
    return layer(make.x())


@contextlib.contextmanager
def _default(dtype: torch.dtype) -> Any:
    torch.set_default_dtype(dtype)
    yield
    torch.set_default_dtype(torch.float32)


@use(cases={"dtype": ["float64", "bfloat16"]})
def default_dtype(make: Make, dtype: str) -> Any:
    with _default(getattr(torch, dtype)):
        layer = make.new().train(make.training)
        found = step(make, layer, torch.linspace(-2, 3, 960).view(4, 8, 6, 5).requires_grad_())
        mixed = step(make, make(), make.x())
    return found, mixed


@use()
def default_device_meta(make: Make) -> Any:
    layer, x = make(), make.x()
    y = None
    try:
        torch.set_default_device("meta")
        y = layer(x)
        gx = torch.autograd.grad(y.square().sum(), x)
    finally:
        torch.set_default_device(None)
    return y, gx, state(layer)


@use()
def deterministic_algorithms(make: Make) -> Any:
    torch.use_deterministic_algorithms(True)
    return step(make, make(), make.x())


@use(cases={"dtype": ["bfloat16", "float16"]})
def autocast(make: Make, dtype: str) -> Any:
    layer, x = make(), make.x()
    convolution = nn.Conv2d(8, 8, 3, padding=1)
    with torch.no_grad():
        convolution.weight.copy_(torch.linspace(-1, 1, 576).view(8, 8, 3, 3))
        convolution.bias.zero_()
    with torch.autocast("cpu", getattr(torch, dtype)):
        h = convolution(x)
        y = layer(h)
    y.float().square().sum().backward()
    return h, y, state(layer)


@use(cases={"dtype": ["bfloat16", "float16"]})
def autocast_of_the_layer_alone(make: Make, dtype: str) -> Any:
    with torch.autocast("cpu", getattr(torch, dtype)):
        return step(make, make(), make.x())


@use()
def scaled_loss(make: Make) -> Any:
    layer, x = make(), make.x()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD([*layer.parameters(), x], 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    scaler.scale(y.float().square().sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return y, state(layer)


class Tagged(Tensor):
    """A subclass that does nothing."""


class Wrapper(Tensor):
    """A wrapper subclass: its values are in another tensor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            dtype=inner.dtype,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner.detach()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inside = pytree.tree_map_only(Wrapper, lambda t: t.inner, (args, kwargs or {}))
        found = func(*inside[0], **inside[1])
        return pytree.tree_map_only(Tensor, lambda t: Wrapper(t.detach()), found)


@use()
def subclass_input(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x.as_subclass(Tagged))
    y.backward(make.gy(y).as_subclass(Tagged))
    return y, x.grad is not None, [type(p.grad).__name__ for p in layer.parameters()]


@use()
def wrapper_subclass_input(make: Make) -> Any:
    layer = make(track_running_stats=not make.training)
    x = Wrapper(make.x(grad=False)).requires_grad_()
    y = layer(x)
    y.sum().backward()
    return y.inner, x.grad.inner, type(y).__name__


@use()
def subclass_gradient(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gx, gw = torch.autograd.grad(y, (x, layer.weight), make.gy(y).as_subclass(Tagged))
    return gx.as_subclass(Tensor), gw.as_subclass(Tensor), isinstance(gx, Tagged)


@use()
def wrapper_gradient(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gx, gw = torch.autograd.grad(y, (x, layer.weight), Wrapper(make.gy(y)))
    return gx.inner, gw.inner


@use()
def subclass_weight(make: Make) -> Any:
    layer, x = make(), make.x()
    layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Tagged))
    y = layer(x)
    gx = torch.autograd.grad(y, x, make.gy(y))[0]
    return y.as_subclass(Tensor), gx.as_subclass(Tensor), isinstance(y, Tagged)

"""Numbers that are hard: infinite, not a number, huge, tiny, constant, far from zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.differential.layers import Make, state, step
from tests.differential.table import EVALUATION, STANDARD, use

LAST = [(mode, "float32", "channels_last") for mode in (True, False)]
BOTH = STANDARD + LAST
SPECIAL = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


def _with(x: Tensor, value: float) -> Tensor:
    with torch.no_grad():
        x[1, 2, 3, 4] = value
    return x


@use(BOTH, cases={"value": SPECIAL})
def special_value_in_the_input(make: Make, value: str) -> Any:
    found = step(make, make(), _with(make.x(), SPECIAL[value]))
    return found["y"], found["running_mean"], found["running_var"], found["bias.grad"]


@use([(False, *rest) for _, *rest in BOTH[::2]], cases={"value": SPECIAL})
def gradient_beside_a_special_value(make: Make, value: str) -> Any:
    return step(make, make(), _with(make.x(), SPECIAL[value]))["gx"]


@use(BOTH, cases={"value": SPECIAL})
def special_value_in_the_gradient(make: Make, value: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(_with(make.gy(y), SPECIAL[value]))
    return x.grad, state(layer)


@use(cases={"which": ["weight", "bias", "running_mean", "running_var"]}, groups=())
def special_value_in_the_state(make: Make, which: str) -> Any:
    layer = make()
    getattr(layer, which).data[3] = float("nan")
    return step(make, layer, make.x())


@use(groups=(), cases={"value": [0.0, -1.0, 1e-30]})
def running_variance(make: Make, value: float) -> Any:
    layer = make()
    layer.running_var[2] = value
    return step(make, layer, make.x())


def _scaled(make: Make, scale: float, shift: float) -> Tensor:
    x = make.x(grad=False).double()
    return (x * scale + shift).float().requires_grad_()


@use(BOTH, cases={"power": [-30, -20, -10, 6, 12, 15, 17]})
def scale(make: Make, power: int) -> Any:
    """The gradient is brought back to ordinary size before it is compared.

    Not beyond 1e17: there nn.BatchNorm2d's own variance overflows on some CPUs.
    """
    found = step(make, make(), _scaled(make, 10.0**power, 0.0))
    gx = found["gx"][0].double()
    return found["y"], gx / gx.abs().max(), found["weight.grad"]


@use(BOTH, cases={"shift": [1e2, 1e4, -1e4]}, tolerance=100)
def shift(make: Make, shift: float) -> Any:
    found = step(make, make(), _scaled(make, 1.0, shift))
    return found["y"], found["gx"], found["running_mean"] / shift, found["running_var"]


@use(BOTH, cases={"value": [0.0, 1.0, -3.5]}, tolerance=20)
def constant_input(make: Make, value: float) -> Any:
    """nn.BatchNorm2d rounds the mean on some CPUs, which 1 / sqrt(eps) enlarges."""
    x = torch.full_like(make.x(grad=False), value).requires_grad_()
    return step(make, make(), x)


@use(BOTH)
def one_outlier(make: Make) -> Any:
    x = make.x(grad=False)
    x[0, :, 0, 0] = 1e4
    return step(make, make(), x.requires_grad_())["y"]


@use(BOTH)
def denormal_numbers(make: Make) -> Any:
    return step(make, make(), _scaled(make, 1e-41, 0.0))["y"]


@use(BOTH)
def negative_zero(make: Make) -> Any:
    return make(affine=False)(-torch.zeros_like(make.x(grad=False)))


@use(EVALUATION)
def overflow_in_half_precision(make: Make) -> Any:
    layer = make().half()
    with torch.no_grad():
        layer.weight.fill_(60000.0)
    return layer(make.x(dtype=torch.float16))


@use()
def flushed_denormals(make: Make) -> Any:
    torch.set_flush_denormal(True)
    return step(make, make(), make.x())


@use(groups=())
def result_does_not_depend_on_the_call(make: Make) -> Any:
    """Bits are the same from call to call, cold and warm, with one thread and with two."""
    ys = []
    for threads in (1, 1, 2):
        torch.set_num_threads(threads)
        x = make.x(8, H=40, W=30)
        found = step(make, make(), x)
        ys.append([found["y"], found["gx"][0], found["weight.grad"], found["running_mean"]])
    return all(torch.equal(a, b) for a, b in zip(ys[0], ys[1], strict=True))

"""Unusual tensors: views, offsets, lazy values, freed storage, no elements, other layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, EVALUATION, TRAINING, use

VIEWS = {
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "batch inside": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced maps": lambda x: torch.cat([x, x * 0 - 9], 3)[..., : x.shape[3]],
    "sliced channels": lambda x: torch.cat([x, x * 0 - 9], 1)[:, : x.shape[1]],
    "sliced samples": lambda x: torch.stack([x, x * 0 - 9], 1)[:, 0],
    "every second": lambda x: torch.stack([x, x * 0 - 9], -1)[..., 0],
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "last and sliced": lambda x: torch.cat([x, x * 0 - 9], 1).contiguous(
        memory_format=torch.channels_last
    )[:, : x.shape[1]],
    "flipped": lambda x: x.flip(3).flip(3),
    "neg view": lambda x: torch._neg_view(-x),
    "imaginary part": lambda x: torch.complex(x * 0, -x).conj().imag,
    "as_strided": lambda x: x.contiguous().as_strided(x.shape, x.contiguous().stride()),
}


@use(cases={"kind": VIEWS})
def view_as_input(make: Make, kind: str) -> Any:
    layer, x = make(), make.x()
    y = layer(VIEWS[kind](x))
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(cases={"kind": VIEWS})
def leaf_view_as_input(make: Make, kind: str) -> Any:
    x = VIEWS[kind](make.x(grad=False)).requires_grad_()
    return step(make, make(), x)


@use(cases={"kind": VIEWS})
def view_as_input_without_gradients(make: Make, kind: str) -> Any:
    layer = make()
    with torch.no_grad():
        return layer(VIEWS[kind](make.x())), state(layer)


@use(cases={"kind": VIEWS}, strides=False)
def view_as_gradient(make: Make, kind: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(VIEWS[kind](make.gy(y)))
    return x.grad, state(layer)


@use(cases={"dim": [0, 1, 2, 3]})
def expanded_input(make: Make, dim: int) -> Any:
    layer, x = make(), make.x()
    y = layer(x.narrow(dim, 0, 1).expand(4, 8, 6, 5))
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def overlapping_input(make: Make) -> Any:
    layer, x = make(), torch.linspace(-2, 3, 400).requires_grad_()
    y = layer(x.as_strided((4, 8, 6, 5), (20, 30, 5, 1)))
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use()
def odd_strides_of_single_dimensions(make: Make) -> Any:
    layer, x = make(), make.x(1, H=1)
    y = layer(x.as_strided((1, 8, 1, 5), (7, 5, 333, 1)))
    y.backward(make.gy(y))
    return y, x.grad, state(layer)


@use(
    cases={"shape": ["1x8x6x5", "4x8x1x1", "1x8x1x2", "4x8x1x7", "2x8x7x1", "3x8x1x1"]},
    groups=(1, 2, 3),
)
def shapes(make: Make, shape: str) -> Any:
    N, channels, H, W = map(int, shape.split("x"))
    return step(make, make(), make.x(N, channels, H, W))


@use([(m, "float32", "channels_last") for m in (True, False)], cases={"N": [1, 4]}, groups=(1, 2))
def single_positions_channels_last(make: Make, N: int) -> Any:
    return step(make, make(), make.x(N, H=1, W=4)), step(make, make(), make.x(4, H=1, W=1))


@use(groups=())
def one_value_per_channel(make: Make) -> Any:
    return step(make, make(), make.x(1, H=1, W=1))


@use(cases={"shape": ["0x8x6x5", "4x8x0x5", "4x8x6x0", "0x8x0x0"]}, groups=())
def no_elements(make: Make, shape: str) -> Any:
    return step(make, make(), make.x(*map(int, shape.split("x"))))


@use(TRAINING, groups=())
def no_channels(make: Make) -> Any:
    return step(make, make(0), make.x(num_features=0))


@use(cases={"dims": [1, 2, 3, 5]}, groups=())
def other_numbers_of_dimensions(make: Make, dims: int) -> Any:
    return make()(torch.randn([8] * dims))


@use(cases={"channels": [1, 7, 9, 16]}, groups=())
def other_numbers_of_channels(make: Make, channels: int) -> Any:
    return make()(make.x(num_features=channels))


@use(cases={"dtype": ["int64", "int32", "uint8", "bool", "complex64", "complex128"]}, groups=())
def other_kinds_of_numbers(make: Make, dtype: str) -> Any:
    return make()(torch.ones(4, 8, 6, 5, dtype=getattr(torch, dtype)))


@use(cases={"dtype": ["float8_e4m3fn", "float8_e5m2"]}, groups=())
def eight_bit_floats(make: Make, dtype: str) -> Any:
    return make()(make.x(grad=False).to(getattr(torch, dtype)))


def _free(t: Tensor) -> None:
    t.untyped_storage().resize_(0)


@use(groups=())
def freed_input(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    _free(x)
    return layer(x).shape


@use()
def freed_memory_of_a_view(make: Make) -> Any:
    layer, x = make(), make.x(8, grad=False)[4:]
    _free(x)
    return layer(x).shape


@use(groups=())
def freed_input_after_a_good_one(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    layer(x)
    _free(x)
    return layer(x).shape


@use(cases={"which": ["x", "gy", "y"]}, groups=(), relu=False)  # torch's ReLU reads it
def freed_before_backward(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y)
    _free({"x": x.data, "weight": layer.weight.data, "gy": gy, "y": y.data}[which])
    y.backward(gy)
    return x.grad, layer.bias.grad


@use(cases={"which": ["weight", "bias", "running_mean", "running_var"]}, groups=())
def freed_state(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    layer(x)
    _free(getattr(layer, which).data)
    y = layer(x)
    y.sum().backward()


@use(EVALUATION, groups=(), cases={"which": ["running_mean", "running_var"]}, may_work=True)
def freed_statistics_before_backward(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    _free(getattr(layer, which))
    y.backward(make.gy(y))
    return x.grad, layer.weight.grad


@use(EVALUATION, groups=(), cases={"which": ["running_mean", "running_var"]})
def freed_statistics_before_double_backward(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    _free(getattr(layer, which))
    torch.autograd.grad(y, x, make.gy(y), create_graph=True)


@use(groups=(), differs="nn.BatchNorm2d reads beyond the end of the storage")
def short_storage(make: Make) -> Any:
    layer, x = make(), make.x(grad=False)
    x.untyped_storage().resize_(x.untyped_storage().nbytes() // 2)
    return layer(x).shape


@use()
def lazy_zeros_as_input(make: Make) -> Any:
    layer = make()
    return layer(torch._efficientzerotensor((4, 8, 6, 5))), state(layer)


@use()
def lazy_zeros_as_gradient(make: Make) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    y.backward(torch._efficientzerotensor((4, 8, 6, 5)))
    return x.grad, state(layer)


@use(EVALUATION, cases={"which": ["weight", "running_mean", "running_var"]}, groups=())
def lazy_zeros_as_state(make: Make, which: str) -> Any:
    layer = make()
    zeros = torch._efficientzerotensor((8,))
    setattr(layer, which, torch.nn.Parameter(zeros) if which == "weight" else zeros)
    return layer(make.x())


@use(
    TRAINING,
    cases={"which": ["running_mean", "running_var"]},
    groups=(),
    differs="nn.BatchNorm2d loses what it writes to lazy zeros, which cannot be written to",
)
def lazy_zeros_as_moving_statistics(make: Make, which: str) -> Any:
    return lazy_zeros_as_state(make, which)


@use(cases={"which": ["weight", "bias", "running_mean", "running_var"]})
def neg_view_as_state(make: Make, which: str) -> Any:
    layer = make()
    value = torch._neg_view(-getattr(layer, which).detach())
    if make.training and make.kind == "torch" and which not in ("weight", "bias"):
        value = value.resolve_neg()  # nn.BatchNorm2d loses what it writes to a negative view
    setattr(layer, which, torch.nn.Parameter(value) if which in ("weight", "bias") else value)
    found = step(make, layer, make.x())
    return found["y"], found["gx"], [b.clone() for b in layer.buffers()]


@use(cases={"which": ["weight", "bias", "running_mean", "running_var"]})
def strided_state(make: Make, which: str) -> Any:
    layer = make()
    old = getattr(layer, which).detach()
    value = torch.stack([old, old * 0 - 7], -1)[:, 0]
    setattr(layer, which, torch.nn.Parameter(value) if which in ("weight", "bias") else value)
    return step(make, layer, make.x()), step(make, layer, make.x(seed=1))


@use(cases={"which": ["weight", "bias"]})
def expanded_state(make: Make, which: str) -> Any:
    layer, x = make(), make.x()
    one = torch.nn.Parameter(torch.tensor(0.7))
    del layer._parameters[which]
    setattr(layer, which, one.expand(8))
    y = layer(x)
    y.backward(make.gy(y))
    return y, x.grad, one.grad, [b.clone() for b in layer.buffers()]


@use(
    TRAINING,
    groups=(),
    cases={"which": ["running_mean", "running_var"]},
    differs="eight statistics cannot be written to one number",
)
def expanded_statistics(make: Make, which: str) -> Any:  # eight channels write to one number
    layer = make()
    setattr(layer, which, torch.ones(1).expand(8))
    layer(make.x())


@use(TRAINING, groups=())
def statistics_share_memory(make: Make) -> Any:
    layer = make()
    layer.running_var = layer.running_mean
    return layer(make.x(grad=False))


@use(cases={"kind": ["sparse", "mkldnn", "quantized", "nested", "jagged"]}, groups=(), relu=False)
def other_layouts(make: Make, kind: str) -> Any:
    x = make.x(grad=False)
    if kind == "sparse":
        x = x.to_sparse()
    elif kind == "mkldnn":
        x = x.to_mkldnn()
    elif kind == "quantized":
        x = torch.quantize_per_tensor(x, 0.05, 128, torch.quint8)
    else:
        layout = torch.jagged if kind == "jagged" else torch.strided
        x = torch.nested.nested_tensor([x[0], x[1]], layout=layout)
    layer = make()
    return layer(x).to_dense() if kind == "mkldnn" else layer(x), state(layer)


@use(groups=(), may_work=True)
def masked_tensor(make: Make) -> Any:
    x = make.x(grad=False)
    return make()(torch.masked.masked_tensor(x, x > 0)).get_data()


@use(groups=(), cases={"kind": ["sparse", "mkldnn", "complex", "meta"]}, may_work=True)
def gradient_of_another_kind(make: Make, kind: str) -> Any:
    layer, x = make(), make.x()
    y = layer(x)
    gy = make.gy(y)
    if kind == "sparse":
        gy = gy.to_sparse()
    elif kind == "mkldnn":
        gy = gy.to_mkldnn()
    else:
        gy = gy.to(torch.complex64) if kind == "complex" else gy.to("meta")
    return torch.autograd.grad(y, x, gy)


@use(CORE)
def large_batch(make: Make) -> Any:
    found = step(make, make(), make.x(64, H=12, W=11))
    return found["y"][::16], found["gx"][0][::16], found["running_mean"], found["running_var"]


@use(EVALUATION, groups=())
def no_tensor(make: Make) -> Any:
    return make()([[1.0]])

"""State: saved, loaded, copied, converted, shared, averaged."""

# ruff: noqa: ARG005 (torch calls hooks with more than they need)
from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import (
    clip_grad_norm_,
    clip_grad_value_,
    parameters_to_vector,
    skip_init,
    vector_to_parameters,
)
from torch.optim import swa_utils

from tests.differential.layers import Make, state, step
from tests.differential.table import CORE, use


def _saved(thing: Any, **options: Any) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, **options)


@use(CORE)
def state_dict_saved_and_loaded(make: Make) -> Any:
    first, second = make(), make.new(dtype=make.dtype).train(make.training)
    step(make, first, make.x())
    told = second.load_state_dict(_saved(first.state_dict(), weights_only=True))
    return list(told), list(first.state_dict()), step(make, second, make.x(seed=1))


@use()
def state_dict_assigned(make: Make) -> Any:
    first, second = make(), make.new().train(make.training)
    values = {name: value.clone() for name, value in first.state_dict().items()}
    second.load_state_dict(values, assign=True)
    found = step(make, second, make.x())
    return found, second.running_mean is values["running_mean"], values


@use()
def state_dict_assigned_to_meta(make: Make) -> Any:
    layer = make.new(device="meta").train(make.training)
    layer.load_state_dict(make().state_dict(), assign=True)
    return step(make, layer, make.x())


@use(cases={"missing": ["weight", "running_mean", "num_batches_tracked"], "strict": [True, False]})
def incomplete_state_dict(make: Make, missing: str, strict: bool) -> Any:
    first, second = make(), make.new()
    values = first.state_dict()
    del values[missing]
    return list(map(list, second.load_state_dict(values, strict=strict))), state(second)


@use()
def state_dict_with_too_much(make: Make) -> Any:
    return make().load_state_dict({**make().state_dict(), "more": torch.ones(1)})


@use()
def state_dict_of_version_one(make: Make) -> Any:
    """Before the counter existed it was not in the state."""
    values = make().state_dict()
    del values["num_batches_tracked"]
    values._metadata[""]["version"] = 1
    layer = make.new()
    layer.load_state_dict(values)
    return state(layer), values._metadata


@use()
def state_dict_keeps_variables(make: Make) -> Any:
    layer = make()
    values = layer.state_dict(keep_vars=True)
    return [type(v).__name__ for v in values.values()], values["weight"] is layer.weight


@use(groups=())
def state_dict_exchanged_with_torch(make: Make) -> Any:
    layer = make.new().train(make.training)
    other = nn.BatchNorm2d(8)
    other.load_state_dict(make().state_dict())
    layer.load_state_dict(other.state_dict())
    return step(make, layer, make.x())


@use()
def load_hooks(make: Make) -> Any:
    layer, seen = make(), []
    layer.register_load_state_dict_pre_hook(lambda *a: seen.append("pre"))
    layer.register_load_state_dict_post_hook(lambda *a: seen.append("post"))
    layer.register_state_dict_pre_hook(lambda *a: seen.append("save"))
    layer.load_state_dict(layer.state_dict())
    return seen


@use(cases={"how": ["deepcopy", "pickle", "save", "copy of a used one"]})
def copied(make: Make, how: str) -> Any:
    layer = make()
    if how == "copy of a used one":
        step(make, layer, make.x(seed=3))
        layer.zero_grad()
    other = {
        "deepcopy": copy.deepcopy,
        "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
        "save": lambda layer: _saved(layer, weights_only=False),
        "copy of a used one": copy.deepcopy,
    }[how](layer)
    return step(make, other, make.x()), state(layer)


@use()
def shallow_copy(make: Make) -> Any:
    layer = make()
    other = copy.copy(layer)
    return step(make, other, make.x()), state(layer)


@use(cases={"how": ["half", "bfloat16", "double", "float", "channels_last", "share_memory", "cpu"]})
def converted(make: Make, how: str) -> Any:
    layer = make()
    if how == "channels_last":
        layer = layer.to(memory_format=torch.channels_last)
    else:
        layer = getattr(layer, how)()
    return step(make, layer, make.x(dtype=layer.weight.dtype)), layer.weight.is_shared()


@use(cases={"swap": [False, True]})
def conversion_of_parameters(make: Make, swap: bool) -> Any:
    torch.__future__.set_swap_module_params_on_conversion(swap)
    layer = make()
    before = layer.weight
    layer.double()
    return layer.weight is before, step(make, layer, make.x(dtype=torch.float64))


@use()
def swapped_tensors(make: Make) -> Any:
    layer = make()
    torch.utils.swap_tensors(layer.running_mean, torch.full_like(layer.running_mean, 0.25))
    return step(make, layer, make.x())


@use()
def emptied(make: Make) -> Any:
    layer = make.new(device="meta").to_empty(device="cpu").train(make.training)
    layer.reset_parameters()
    return step(make, layer, make.x())


@use(groups=())
def initialization_skipped(make: Make) -> Any:
    groups = () if make.kind == "torch" else (make.groups or 8,)
    layer = skip_init(type(make.new()), 8, *groups)
    layer.reset_parameters()
    return step(make, layer.train(make.training), make.x())


@use(cases={"what": ["running_stats", "parameters"]})
def reset(make: Make, what: str) -> Any:
    layer = make()
    step(make, layer, make.x())
    getattr(layer, f"reset_{what}")()
    return state(layer)


@use(cases={"buffers": [True, False], "used": [True, False]})
def averaged_model(make: Make, buffers: bool, used: bool) -> Any:
    layer = make()
    if used:
        step(make, layer, make.x())
    average = swa_utils.AveragedModel(layer, use_buffers=buffers)
    for seed in range(2):
        step(make, layer, make.x(seed=seed))
        average.update_parameters(layer)
    return average(make.x(grad=False)), state(average.module)


@use()
def moving_average_of_a_model(make: Make) -> Any:
    layer = make()
    average = swa_utils.AveragedModel(
        layer, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )
    for seed in range(3):
        step(make, layer, make.x(seed=seed))
        with torch.no_grad():
            layer.weight.add_(0.1)
        average.update_parameters(layer)
    return average.eval()(make.x(grad=False)), state(average.module)


@use(groups=(), differs="update_bn asks for _BatchNorm, which ours is deliberately not")
def statistics_recomputed(make: Make) -> Any:
    layer = make()
    swa_utils.update_bn([make.x(seed=seed, grad=False) for seed in range(3)], layer)
    return state(layer)


@use()
def extra_state_of_a_subclass(make: Make) -> Any:
    kind = type(make.new())

    class Noted(kind):  # type: ignore[misc, valid-type]
        note = "a"

        def get_extra_state(self) -> Any:
            return self.note

        def set_extra_state(self, value: Any) -> None:
            self.note = value

    arguments = (8,) if make.kind == "torch" else (8, make.groups or 8)
    first, second = Noted(*arguments), Noted(*arguments)
    first.note = "b"
    second.load_state_dict(first.state_dict())
    return second.note, list(first.state_dict())


@use()
def beside_a_lazy_module(make: Make) -> Any:
    model = nn.Sequential(nn.LazyConv2d(8, 3), make())
    nn.init.constant_(model(make.x()), 0.0)
    nn.init.constant_(model[0].weight, 0.01)
    nn.init.constant_(model[0].bias, 0.1)
    return [list(p.shape) for p in model.parameters()], model(make.x()).shape


@use()
def module_list_of_copies(make: Make) -> Any:
    layers = nn.ModuleList(copy.deepcopy(make()) for _ in range(3))
    x = make.x()
    h = x
    for layer in layers:
        h = layer(h).tanh()
    h.backward(make.gy(h))
    return h, x.grad, [state(layer) for layer in layers]


@use()
def vectors_of_parameters(make: Make) -> Any:
    layer = make()
    vector = parameters_to_vector(layer.parameters())
    vector_to_parameters(vector * 2, layer.parameters())
    return vector, step(make, layer, make.x())


@use()
def clipped_gradients(make: Make) -> Any:
    layer = make()
    step(make, layer, make.x())
    norm = clip_grad_norm_(layer.parameters(), 1.0)
    clip_grad_value_(layer.parameters(), 0.2)
    return norm, state(layer)


@use()
def named_members(make: Make) -> Any:
    layer = make()
    children = [name for name, _ in layer.named_modules()]
    return children, list(dict(layer.named_parameters())), list(dict(layer.named_buffers()))


@use()
def applied_to_all_tensors(make: Make) -> Any:
    layer = make()
    layer._apply(lambda t: t * 2 if t.is_floating_point() else t)
    return step(make, layer, make.x())


@use()
def buffers_replaced_by_loading_in_place(make: Make) -> Any:
    layer = make()
    first = layer(make.x())
    layer.running_mean.copy_(layer.running_mean + 1)
    layer.running_mean.set_(torch.full_like(layer.running_mean, 0.5))
    return first, step(make, layer, make.x())


@use()
def attribute_names(make: Make) -> Any:
    layer = make()
    names = ["num_features", "eps", "momentum", "affine", "track_running_stats", "training"]
    return {name: getattr(layer, name) for name in names}


@use()
def missing_attribute(make: Make) -> Any:
    return make().nothing


@use()
def zeroed_gradients(make: Make) -> Any:
    layer = make()
    found: list[Any] = []
    for to_none in (True, False):
        step(make, layer, make.x())
        layer.zero_grad(set_to_none=to_none)
        found.append([p.grad for p in layer.parameters()])
    return found


@use()
def tensor_dtype_of_new_layers(make: Make) -> Any:
    def kinds(layer: nn.Module) -> list[Tensor]:
        return [t.detach() * 0 for t in layer.state_dict().values()]

    return [kinds(make.new(dtype=dtype)) for dtype in (None, torch.float64, torch.bfloat16)]

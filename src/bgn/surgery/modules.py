"""Replace or observe modules of a model, and leave everything else as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

# hook tables; moved as objects, because a handle removes its hook from the table it was put into
_HOOKS = tuple(key for key in nn.Module().__dict__ if "hook" in key)


def inherit(new: nn.Module, old: nn.Module, except_for: Collection[str] = ()) -> None:
    """Give ``new`` the hooks, the mode and the extra attributes of ``old``."""
    for key in _HOOKS:
        new.__dict__[key] = old.__dict__[key]
    for key, value in old.__dict__.items():
        if key not in new.__dict__ and key not in except_for:
            new.__dict__[key] = value
    new.training = old.training


def move_hooks(layers: Sequence[nn.Module], to: nn.Module) -> None:
    """Move the forward and backward hooks of the first layer; the others, its copies, lose them."""
    for key in (key for key in _HOOKS if "state_dict" not in key):
        to.__dict__[key] = layers[0].__dict__[key]
        for layer in layers:
            table = layer.__dict__[key]
            layer.__dict__[key] = type(table)() if table is not None else None


def replace(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> nn.Module:
    """Swap modules wherever they occur; returns the model, or what replaces the model itself."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]
    return replacements.get(model, model)


@torch.no_grad()
def unparametrize(layer: Any) -> None:
    """Give a layer plain parameters with the values that its parametrizations compute."""
    if not parametrize.is_parametrized(layer):
        return
    # not remove_parametrizations, which changes a class that a copy of the layer shares
    values = {name: getattr(layer, name) for name in layer.parametrizations}
    flags = {
        name: any(p.requires_grad for p in layer.parametrizations[name].parameters())
        for name in values
    }
    layer.__class__ = type(layer).__bases__[0]
    del layer.parametrizations
    for name, value in values.items():
        setattr(layer, name, nn.Parameter(value, requires_grad=flags[name]))


def refuse_data_parallel(model: nn.Module, what: str) -> None:
    """Refuse a model in DistributedDataParallel, which would go on with the old tensors."""
    if any(isinstance(module, nn.parallel.DistributedDataParallel) for module in model.modules()):
        raise TypeError(
            f"model is wrapped in DistributedDataParallel, which keeps lists of its {what};"
            " convert model.module first"
        )


@contextlib.contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """Remove the hooks of all modules inside the context, so that they see nothing."""
    tables = [(module, key, module.__dict__[key]) for module in model.modules() for key in _HOOKS]
    try:
        for module, key, table in tables:
            module.__dict__[key] = type(table)() if table is not None else None
        yield
    finally:
        for module, key, table in tables:
            module.__dict__[key] = table


def listed(names: list[str]) -> str:
    """The first five names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@contextlib.contextmanager
def observed(
    model: nn.Module, layers: Iterable[nn.Module], see: Callable[[nn.Module, Tensor], None]
) -> Iterator[None]:
    """Eval mode, and ``see(layer, input)`` for every input of the layers, inside the context."""
    modes = {module: module.training for module in model.modules()}

    def hook(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        see(layer, args[0] if args else next(iter(kwargs.values())))

    handles = [layer.register_forward_pre_hook(hook, with_kwargs=True) for layer in layers]
    try:
        model.eval()
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes.items():
            module.training = mode

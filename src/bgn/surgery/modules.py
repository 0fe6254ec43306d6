"""Putting one module in another's place, or listening in, without anybody noticing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import Tensor, nn

# hook tables; moved as objects, because a handle removes its hook from the very table it was put into
_HOOKS = tuple(key for key in nn.Module().__dict__ if "hook" in key)


def inherit(new: nn.Module, old: nn.Module) -> None:
    """Give ``new`` the hooks, the mode and the extra attributes of ``old``."""
    for key in _HOOKS:
        new.__dict__[key] = old.__dict__[key]
    for key, value in old.__dict__.items():
        if key not in new.__dict__:
            new.__dict__[key] = value
    new.training = old.training


def move_hooks(layers: Sequence[nn.Module], to: nn.Module) -> None:
    """The hooks on forward and backward passes of the first layer; the others, copies of it, lose theirs."""
    for key in (key for key in _HOOKS if "state_dict" not in key):
        to.__dict__[key] = layers[0].__dict__[key]
        for layer in layers:
            table = layer.__dict__[key]
            layer.__dict__[key] = type(table)() if table is not None else None


def replace(model: nn.Module, replacements: dict[nn.Module, nn.Module]) -> nn.Module:
    """Swap modules wherever they occur, shared ones everywhere; returns the model, or what replaces it."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and child in replacements:
                parent._modules[name] = replacements[child]
    return replacements.get(model, model)


@contextlib.contextmanager
def without_hooks(model: nn.Module) -> Iterator[None]:
    """With the hooks of all modules put aside, so that they see nothing of what is done meanwhile."""
    tables = [(module, key, module.__dict__[key]) for module in model.modules() for key in _HOOKS]
    try:
        for module, key, table in tables:
            module.__dict__[key] = type(table)() if table is not None else None
        yield
    finally:
        for module, key, table in tables:
            module.__dict__[key] = table


def listed(names: list[str]) -> str:
    """The first names, and how many more."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


@contextlib.contextmanager
def observed(
    model: nn.Module, layers: Iterable[nn.Module], see: Callable[[nn.Module, Tensor], None]
) -> Iterator[None]:
    """In eval mode, with ``see(layer, input)`` called for every input of the layers; afterwards all is as before."""
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

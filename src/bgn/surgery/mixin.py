"""Classes made at run time from a mixin and a layer class, which pickle and deepcopy support."""

from __future__ import annotations

from typing import Any

from torch import nn


class Mixed:
    """Base of the mixins; ``prefix`` is put before the name of the layer class."""

    prefix: str

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        mixins, base = parts(type(self))
        return _new, (mixins, base), self.__dict__


_classes: dict[tuple[type[Any], type[Any]], type[nn.Module]] = {}


def mixed(mixin: type[Mixed], cls: type[Any]) -> type[nn.Module]:
    """The subclass of ``cls`` with ``mixin`` in front; one class per pair."""
    if (mixin, cls) not in _classes:
        body = {"__module__": cls.__module__, "__doc__": cls.__doc__}
        _classes[mixin, cls] = type(mixin.prefix + cls.__name__, (mixin, cls), body)
    return _classes[mixin, cls]


def parts(cls: type[Any]) -> tuple[tuple[type[Mixed], ...], type[nn.Module]]:
    """The mixins of a class, outermost first, and the class beneath them."""
    mixins: list[type[Mixed]] = []
    while issubclass(cls, Mixed):
        mixin, cls = cls.__bases__
        mixins.append(mixin)
    return tuple(mixins), cls


def _new(mixins: tuple[type[Mixed], ...], base: type[nn.Module]) -> nn.Module:
    cls = base
    for mixin in reversed(mixins):
        cls = mixed(mixin, cls)
    return cls.__new__(cls)

"""Layers that torch.fx sees as one node, as it sees those of torch.nn."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.fx import Proxy

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Within the context a traced ``forward`` may keep proxies in attributes; afterwards all
    attributes, and what lists, dicts and sets in them hold, are those from before."""
    before = [(module, dict(module.__dict__)) for module in model.modules()]
    containers = [
        (value, value.copy())
        for _, attributes in before
        for value in attributes.values()
        if isinstance(value, (list, dict, set))
    ]
    try:
        yield
    finally:
        for module, attributes in before:
            module.__dict__.clear()
            module.__dict__.update(attributes)
        for value, content in containers:
            value.clear()
            (value.extend if isinstance(value, list) else value.update)(content)


def leaf(forward: Callable[Concatenate[M, P], Tensor]) -> Callable[Concatenate[M, P], Tensor]:
    """Under symbolic tracing, record a call of the module instead of tracing into its checks.

    ``torch.fx`` takes only modules of torch.nn for leaves, and every tool on top of it (fusing,
    quantizing, feature extraction) would have to be told otherwise.
    """

    @functools.wraps(forward)
    def wrapper(self: M, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
        if args and isinstance(args[0], Proxy):
            tracer: Any = args[0].tracer
            node: Tensor = tracer.create_proxy(
                "call_module", tracer.path_of_module(self), args, kwargs
            )
            return node
        return forward(self, *args, **kwargs)

    typed: Any = wrapper
    return typed  # type: ignore[no-any-return]

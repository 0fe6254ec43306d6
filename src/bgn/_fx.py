"""Layers that torch.fx sees as one node, as it sees those of torch.nn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor, nn
from torch.fx import Proxy

M = TypeVar("M", bound=nn.Module)
P = ParamSpec("P")


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

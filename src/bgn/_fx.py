"""Layers that torch.fx sees as one node, as it sees those of torch.nn."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.fx import Proxy

M = TypeVar("M", bound=nn.Module)


def leaf(forward: Callable[[M, Tensor], Tensor]) -> Callable[[M, Tensor], Tensor]:
    """Under symbolic tracing, record a call of the module instead of tracing into its checks.

    ``torch.fx`` takes only modules of torch.nn for leaves, and every tool on top of it (fusing,
    quantizing, feature extraction) would have to be told otherwise.
    """

    @functools.wraps(forward)
    def wrapper(self: M, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            tracer: Any = input.tracer
            node: Tensor = tracer.create_proxy(
                "call_module", tracer.path_of_module(self), (input,), {}
            )
            return node
        return forward(self, input)

    return wrapper

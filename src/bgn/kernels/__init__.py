"""The implementations of the normalisers, and the choice between them.

The environment variable ``BGN_BACKEND`` forces one by name; ``auto``, the default, takes the best one available. It is
read once, when the package is imported.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from bgn.kernels import cpu, definition, graph  # noqa: F401  (graph: registered for torch.compile)
from bgn.moments import Moments
from bgn.partition import Partition
from bgn.running import Running


class Backend(Protocol):
    """What a backend can do; :mod:`bgn.kernels.definition` says what it means."""

    def train(
        self,
        x: Tensor,
        part: Partition,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        running: Running | None = None,
    ) -> Tensor: ...

    def apply(
        self,
        x: Tensor,
        part: Partition,
        mean: Tensor,
        var: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
    ) -> Tensor: ...

    def statistics(self, x: Tensor, part: Partition) -> Moments: ...

    def fixed(
        self,
        gy: Tensor,
        x: Tensor,
        part: Partition,
        weight: Tensor | None,
        mean: Tensor,
        rstd: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

    def positional(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor: ...

    def serves(self, x: Tensor, weight: Tensor | None, bias: Tensor | None, /) -> bool: ...

    def remember(self, key: Any, x: Tensor, part: Partition, /) -> None: ...

    def quick(
        self,
        key: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        running: Running | None,
        given: tuple[Tensor, Tensor] | None,
        /,
    ) -> Tensor | None: ...


VARIABLE = "BGN_BACKEND"
AVAILABLE: dict[str, Backend] = {"cpu": cpu, "definition": definition}  # best first
if not cpu.available():
    del AVAILABLE["cpu"]


class Choice(NamedTuple):
    """A backend's name, and why it was taken."""

    name: str
    reason: str


def choose(asked: str) -> Choice:
    """The backend to use when the environment asks for ``asked``."""
    if asked == "auto":
        missing = "" if cpu.available() else f"; cpu is {cpu.why_not}"
        return Choice(next(iter(AVAILABLE)), f"the best one available{missing}")
    if asked == "cpu" and not cpu.available():
        raise ValueError(
            f"{VARIABLE}='cpu', but cpu is {cpu.why_not}; accepted: auto, {', '.join(AVAILABLE)}"
        )
    if asked not in AVAILABLE:
        raise ValueError(
            f"{VARIABLE}={asked!r} is not a backend; accepted: auto, {', '.join(AVAILABLE)}"
        )
    return Choice(asked, f"forced by {VARIABLE}={asked}")


choice = choose(os.environ.get(VARIABLE, "auto"))
backend = AVAILABLE[choice.name]
if VARIABLE not in os.environ and not cpu.available():
    warnings.warn(
        f"the cpu backend of bgn is {cpu.why_not}; the definition backend is used, which is several times slower on a"
        f" CPU ({VARIABLE}=definition says that this is wanted)",
        RuntimeWarning,
        stacklevel=2,
    )

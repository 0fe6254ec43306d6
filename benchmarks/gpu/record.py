"""Which Triton kernels a call launches, with which arguments, without a device.

The call runs as on a GPU, on "meta" tensors that have no numbers; launches are written down instead
of carried out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from bgn import kernels
from bgn.activation import Activation, After
from bgn.kernels import triton
from bgn.kernels.plans import Cut
from bgn.kernels.triton import calls
from bgn.kernels.triton.calls import arguments
from bgn.partition import slices
from bgn.running import Running


@dataclass(frozen=True)
class Launched:
    """One launch: the kernel, its arguments, and how many programs."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    programs: int

    @property
    def name(self) -> str:
        """Module and name of the kernel."""
        module = str(self.kernel.fn.__module__).rpartition(".")[2]
        return f"{module}.{self.kernel.fn.__name__}"


@contextlib.contextmanager
def recorded(processors: int) -> Iterator[list[Launched]]:
    """Within the context, launches on a device with so many multiprocessors are listed."""
    found: list[Launched] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert not warmup
        found.append(Launched(self, args, kwargs, grid[0]))

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(arguments, "processors", return_value=processors),
    ):
        yield found


@dataclass(frozen=True)
class Call:
    """One training step of a normalizer on a feature map, as the GPU core would run it."""

    name: str
    shape: tuple[int, ...]
    G: int
    B: int | None = 1
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    positional: bool = False
    cut: Cut = slices
    act: str = ""
    """What follows the normalizer."""
    residual: bool = False

    def plan(self, x: Tensor) -> kernels.Plan:
        """The plan of the feature map."""
        if self.positional:
            return kernels.plan(kernels.positions, x, 1)
        return kernels.plan(self.cut, x, self.G, self.B)

    def tensor(self) -> Tensor:
        """A feature map without numbers."""
        layout = torch.contiguous_format
        if self.channels_last:
            layout = torch.channels_last if len(self.shape) == 4 else torch.channels_last_3d
        return torch.empty(self.shape, dtype=self.dtype, device="meta").contiguous(
            memory_format=layout
        )


def launches(call: Call, processors: int) -> tuple[list[Launched], list[Launched]]:
    """Forward's and backward's launches of a training step, running statistics included."""
    x = call.tensor()
    plan, C = call.plan(x), call.shape[1]
    weight, bias = torch.empty(2, C, device="meta")
    running = None
    if not call.positional and call.B == 1:
        mean, var = torch.empty(2, plan.part.G, device="meta")
        running = Running(mean, var, 0.1, torch.empty((), dtype=torch.int64, device="meta"))
    needs, after, followed = (True, True, True), None, calls.NOTHING
    if call.act:
        after = After(Activation(call.act), torch.empty_like(x) if call.residual else None)
        own = (x, torch.empty_like(x)) if call.residual else ()  # the output, room for a gradient
        followed = calls.Followed(*calls.act_of(after.act), None if own else bias, *own)
    plan.launches.clear()
    with recorded(processors) as found:
        stats: Any = None
        if call.positional:
            calls.positional_forward(x, plan, weight, bias, 1e-5)
        else:
            _, stats = triton.forward(x, weight, bias, plan, 1e-5, running, None, after)
    with recorded(processors) as back:
        if call.positional:
            calls.positional_backward(x, x, weight, plan, 1e-5, needs, torch.float32)
        else:
            triton.backward(x, x, weight, plan, stats, 1e-5, needs, torch.float32, followed)
    plan.launches.clear()
    return found, back


Step = Callable[[], Any]

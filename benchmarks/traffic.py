"""Memory traffic of a training step by the definition, by aten and by nn.BatchNorm2d, counted.

    python -m benchmarks.traffic              # the table
    python -m benchmarks.traffic --time       # and aten's time by the definition's, on the CPU

Counted at torch's dispatcher, on the device "meta", which runs the operators of a GPU and has no
numbers: whatever would wait for one, such as .item(), fails. bfloat16 is counted on the CPU,
because its statistics come from an operator that "meta" lacks.

- A *pass* is one read or one write of a tensor of x's size, in units of x's bytes: a float32 tensor
  beside a bfloat16 x counts twice. A fused operator reads as often as its CUDA kernel does
  (REREADS).
- A *launch* is an operator that computes: views and allocations are none.
- *Kept* is what stays in memory for the backward pass, beyond x itself, in numbers.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.rivals import training_step
from benchmarks.timing import interleaved
from bgn import BatchGroupNorm2d, kernels
from bgn.kernels import aten
from bgn.kernels.plans import Cut
from bgn.partition import channel_groups, slices
from bgn.running import Running


def _of_training(args: tuple[Any, ...]) -> float:
    return 1.0 if args[5] else 0.0  # reads x for the statistics, then for the output


def _of_backward(args: tuple[Any, ...]) -> float:
    train, mask = args[7], args[9]
    if not mask[0]:
        return 0.0  # gy and x are read for the sums
    if train:
        return 2.0  # and both again for the gradient of x
    return 1.0 if mask[1] or mask[2] else -1.0  # gy again; x is read for the sums alone


def _of_affine_gradients(args: tuple[Any, ...]) -> float:
    return 2.0 if args[-1][1] or args[-1][2] else 0.0  # gy and x in a kernel of their own


# name: how often tensors of x's size are read beyond once per argument
REREADS: dict[str, Callable[[tuple[Any, ...]], float]] = {
    "native_batch_norm": _of_training,
    "_native_batch_norm_legit": _of_training,
    "native_batch_norm_backward": _of_backward,
    "native_group_norm": lambda _: 1.0,
    "native_group_norm_backward": lambda _: 2.0,
    "native_layer_norm": lambda _: 1.0,
    "native_layer_norm_backward": _of_affine_gradients,
}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts passes over tensors of x's size, and names the operators that are launched."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.x = x
        self.passes = 0.0
        self.launched: list[str] = []

    def _passes(self, tensors: Any) -> float:
        """Sizes of tensors in those of x; smaller ones than half of it are none."""
        found = 0.0
        for t in tree_leaves(tensors):
            if isinstance(t, Tensor):
                steps = zip(t.shape, t.stride(), strict=True)
                numel = math.prod(size for size, stride in steps if stride)  # read once, as cached
                if 2 * numel >= self.x.numel():
                    found += numel * t.itemsize / (self.x.numel() * self.x.itemsize)
        return found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        is_view = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
        if is_view or name in ("empty", "empty_like", "new_empty", "empty_strided"):
            return result
        self.launched.append(name)
        schema = func._schema.arguments
        given = {a.name: v for a, v in zip(schema, args, strict=False)} | kwargs
        for argument in schema:
            value = given.get(argument.name)
            written = argument.alias_info is not None and argument.alias_info.is_write
            if written:
                self.passes += self._passes(value)
            if not written or not (argument.is_out or name == "copy_"):
                self.passes += self._passes(value)
        if not any(a.alias_info is not None and a.alias_info.is_write for a in schema):
            # "meta" returns a gradient of x that nobody asked for
            unwanted = name == "native_batch_norm_backward" and not args[9][0]
            self.passes += self._passes(result[1:] if unwanted else result)
        if name in REREADS and self._passes(list(args)):
            self.passes += REREADS[name](args)
        return result


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """Let aten run beneath the counter, which as a mode would send it to the definition."""
    with mock.patch.object(aten, "no_transform", return_value=True):
        yield


@dataclass(frozen=True)
class Case:
    """One partition of one feature map."""

    name: str
    G: int
    B: int | None = 1
    cut: Cut = slices
    dtype: torch.dtype = torch.float32
    layout: torch.memory_format = torch.contiguous_format
    shape: tuple[int, ...] = (8, 24, 12, 10)
    running: bool = True


CASES = [
    Case("G = 1", 1),
    Case("G divides C", 6),
    Case("G divides C, channels_last", 6, layout=torch.channels_last),
    Case("G = C (BN)", 24),
    Case("G = C (BN), channels_last", 24, layout=torch.channels_last),
    Case("C divides G", 96),
    Case("neither divides, G divides D", 36),
    Case("G does not divide D", 7),
    Case("2 blocks (GBGN)", 6, 2, channel_groups),
    Case("per sample (GN), merged view", 36, None, running=False),
    Case("G divides C, bfloat16", 6, dtype=torch.bfloat16),
    Case("G = C (BN), bfloat16", 24, dtype=torch.bfloat16),
]


@dataclass(frozen=True)
class Count:
    """What a training step of one backend does."""

    passes: tuple[float, float]  # forward, backward
    launched: tuple[list[str], list[str]]
    kept: int
    node: str

    @property
    def launches(self) -> tuple[int, int]:
        """How many operators were launched, forward and backward."""
        return len(self.launched[0]), len(self.launched[1])


def _kept(x: Tensor, step: Callable[[], Tensor]) -> tuple[Tensor, int]:
    """The output of a step, and how many numbers it keeps beyond x."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        y = step()
    for t in tree_leaves(list(vars(y.grad_fn).values()) if hasattr(y.grad_fn, "__dict__") else []):
        if isinstance(t, Tensor):
            keep(t)
    storages.pop(x.untyped_storage()._cdata, None)
    return y, sum(storages.values())


def count(case: Case, backend: str) -> Count:
    """Count a training step: by a backend, or by nn.BatchNorm2d if the backend is "torch"."""
    device = "meta" if case.dtype is torch.float32 else "cpu"
    options: Any = {"dtype": case.dtype, "device": device}
    x, gy = (
        torch.zeros(case.shape, **options).contiguous(memory_format=case.layout) for _ in range(2)
    )
    x.requires_grad_()
    C = case.shape[1]
    plan = kernels.plan(case.cut, x, case.G, case.B)
    layer = nn.BatchNorm2d(C, device=device)
    running = None
    if case.running:
        mean, var = torch.zeros(2, plan.part.G, device=device)
        running = Running(mean, var, 0.1, torch.zeros((), dtype=torch.int64, device=device))

    def step() -> Tensor:
        if backend == "torch":
            output: Tensor = layer(x)
            return output
        return kernels.normalize(x, plan, layer.weight, layer.bias, 1e-5, running)

    with kernels.use("auto" if backend == "torch" else backend), _unseen():
        forward = Traffic(x)
        with forward:
            y, kept = _kept(x, step)
        backward = Traffic(x)
        with backward:
            torch.autograd.grad(y, [x, layer.weight, layer.bias], gy)
    return Count(
        (forward.passes, backward.passes),
        (forward.launched, backward.launched),
        kept,
        type(y.grad_fn).__name__,
    )


def table() -> str:
    """Definition and aten on every case, and nn.BatchNorm2d, as Markdown."""
    lines = [
        "| forward + backward | passes, definition | passes, aten | launches, definition"
        " | launches, aten | kept beyond x, aten |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        old, new = count(case, "definition"), count(case, "aten")
        cells = [
            f"{c[0]:.3g} + {c[1]:.3g}" for c in (old.passes, new.passes, old.launches, new.launches)
        ]
        lines.append(f"| {case.name} | {' | '.join(cells)} | {new.kept} |")
    for dtype in (torch.float32, torch.bfloat16):
        found = count(Case("", 24, dtype=dtype), "torch")
        cells = [f"{c[0]:.3g} + {c[1]:.3g}" for c in (found.passes, found.launches)]
        name = str(dtype).removeprefix("torch.")
        lines.append(f"| nn.BatchNorm2d, {name} | | {cells[0]} | | {cells[1]} | {found.kept} |")
    return "\n".join(lines)


TIMED = [((8, 256, 28, 28), 16), ((2, 256, 56, 56), 1), ((32, 64, 56, 56), 64)]


def time_ratio(shape: tuple[int, ...], G: int) -> float:
    """Time of aten's training step by that of the definition on the CPU, minima of rounds."""
    x, gy = torch.randn(2, *shape)
    step = training_step(BatchGroupNorm2d(shape[1], G), x, gy)

    def by(backend: str) -> None:
        with kernels.use(backend):
            step()

    names = ("aten", "definition")
    times = interleaved({name: partial(by, name) for name in names}, seconds=2.0)
    return times["aten"]["min"] / times["definition"]["min"]


if __name__ == "__main__":
    print(table())
    if "--time" in sys.argv:
        for shape, G in TIMED:
            size = "x".join(str(n) for n in shape)
            print(f"{size}, G = {G}: {time_ratio(shape, G):.2f}")

"""Run by test_sanitized.py with a library built with sanitizers.

They end the process where memory is misused.

python -m tests.sanitized_child LIBRARY
"""

import ctypes
import math
import os
import random
import sys
import tempfile
from typing import Any

import torch
from torch import Tensor

import bgn.kernels.library
from bgn import functional as F
from bgn.kernels import cpu, definition, plans
from bgn.kernels.library import CAPABILITIES, CorePlan, Library
from bgn.partition import Partition, channel_groups, slices
from bgn.running import Running
from tests import kernel_calls as fast
from tests.test_native import DTYPES, LAST, assert_as_exact
from tests.tolerance import assert_close

CASES = 600
POSITIONS = [
    (),
    (1,),
    (3,),
    (29,),
    (5000,),
    (1, 1),
    (2, 2),
    (7, 7),
    (5, 13),
    (33, 40),
    (1, 1, 1),
    (2, 3, 4),
    (9, 9, 9),
]
CHANNELS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 31, 32, 36, 65]
LAYOUTS = ["contiguous", "last", "odd", "odd last", "gaps", "apart", "strides"]
draw = random.Random(0)


def noise(shape: tuple[int, ...], dtype: torch.dtype, shift: float = 0) -> Tensor:
    return (torch.randn(shape, dtype=torch.float64) + shift).to(dtype)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values in another place; but where there are gaps, the allocation ends with them."""
    if "last" in layout and x.dim() in LAST:
        x = x.to(memory_format=LAST[x.dim()])
    if "odd" in layout:  # an address that is a multiple of the element's size only
        offset = draw.randint(1, 9)
        return torch.cat([x.new_zeros(offset), x.as_strided((x.numel(),), (1,))]).as_strided(
            x.shape, x.stride(), offset
        )
    if layout == "gaps":
        return torch.stack([x, x], dim=-1)[..., 0]
    if layout == "apart":
        return torch.stack([x] * 20, dim=1)[:, 7]
    if layout == "strides":  # where a dimension has one place, its stride says nothing
        return x.as_strided(
            x.shape,
            [10**15 if size == 1 else step for size, step in zip(x.shape, x.stride(), strict=True)],
        )
    if layout == "one":  # as the gradient of a sum is
        return x.as_strided(x.shape, [0] * x.dim())
    return x


def run(
    function: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    gy: Tensor,
    wanted: tuple[bool, ...],
) -> list[Tensor]:
    """Output and gradients, without a copy of anything: copies would lie in some tidy place."""
    leaves = [
        None if t is None else t.detach().requires_grad_(want)
        for t, want in zip((x, weight, bias), wanted, strict=True)
    ]
    y = function(*leaves)
    if y.requires_grad:
        y.backward(gy)
    return [y.detach(), *(t.grad for t in leaves if t is not None and t.requires_grad)]


def shape_and_partition(what: str) -> tuple[tuple[int, ...], Partition]:
    """Any G up to D, any blocks; small more often than large."""
    most = draw.choice([2000, 20000, 200000])
    shape: tuple[int, ...] = (most, most)
    while math.prod(shape) > most:
        shape = (draw.randint(1, 9), draw.choice(CHANNELS), *draw.choice(POSITIONS))
    N, C, P = shape[0], shape[1], math.prod(shape[2:])
    B = 1 if what == "apply" else draw.choice([b for b in range(1, N + 1) if N % b == 0])
    G = draw.choice([1, C, C * P, draw.randint(1, C * P), draw.randint(1, min(C * P, 60))])
    return shape, draw.choice([slices, channel_groups])(N, C, P, G, B)


def case(number: int) -> None:
    """One random call, forward and backward."""
    what, dtype = draw.choice(["train", "apply", "positional"]), draw.choice(DTYPES)
    shape, part = shape_and_partition(what)
    kept = torch.promote_types(dtype, torch.float32)
    layout, other = draw.choice(LAYOUTS), draw.choice([*LAYOUTS, "one"])
    of_parameters, threads, capability = (
        draw.choice([dtype, kept]),
        draw.randint(1, 3),
        draw.choice(CAPABILITIES),
    )
    wanted = draw.choice(
        [
            (True, True, True),
            (True, False, False),
            (False, True, True),
            (True, False, True),
            (False,) * 3,
        ]
    )
    print(
        number,
        what,
        shape,
        part,
        dtype,
        of_parameters,
        layout,
        other,
        wanted,
        f"{threads=} {capability=}",
        flush=True,
    )

    torch.set_num_threads(threads)
    cpu.library.use(capability)
    x, gy = laid_out(noise(shape, dtype, 3), layout), laid_out(noise(shape, dtype), other)
    weight, bias = (
        noise((part.C,), of_parameters, 1) if draw.random() < 0.7 else None for _ in range(2)
    )
    assert fast.is_eligible(x, weight, bias)
    given, momentum = (
        (noise((part.G,), kept), noise((part.G,), kept).abs() + 0.5),
        draw.choice([0.1, None]),
    )
    moved, moved_exactly = (
        Running(
            torch.zeros(part.G, dtype=d), torch.ones(part.G, dtype=d), momentum, torch.tensor(3)
        )
        for d in (kept, torch.float64)
    )
    call: Any = {
        "train": lambda backend, running: (
            lambda x, w, b: backend.normalize(x, part, w, b, 1e-5, running)
        ),
        "apply": lambda backend, _: (
            lambda x, w, b: backend.normalize_with(x, part, *given, w, b, 1e-5)
        ),
        "positional": lambda backend, _: lambda x, w, b: backend.positional(x, w, b, 1e-5),
    }[what]

    ours = run(call(fast, moved), x, weight, bias, gy, wanted)
    if what != "apply" and (part.C if what == "positional" else part.smallest_count) < 4:
        return  # too few elements for digits in their differences: no misuse is enough
    exact = run(
        call(definition, moved_exactly),
        *(None if t is None else t.double() for t in (x, weight, bias, gy)),
        wanted,
    )
    assert_as_exact(ours, exact, dtype)
    assert_close(moved.mean, moved_exactly.mean, kept)
    assert_close(moved.var, moved_exactly.var, kept)


def without_elements() -> None:
    for shape in [(0, 4), (2, 4, 0), (0, 4, 3, 3), (2, 4, 0, 3), (2, 0, 3, 3), (2, 4, 3, 3, 0)]:
        for dtype in DTYPES:
            x = torch.empty(shape, dtype=dtype, requires_grad=True)
            wide = torch.promote_types(dtype, torch.float32)
            mean, var = torch.zeros(1, dtype=wide), torch.ones(1, dtype=wide)
            for y in (
                F.batch_group_norm(x, 1, training=True),
                F.batch_group_norm(x, 1, mean, var),
                F.group_norm(x, 1),
                F.positional_norm(x),
            ):
                y.sum().backward()
                assert y.shape == x.shape == x.grad.shape


def large() -> None:
    """Outputs that go past the caches, those of 16 MB and more."""
    for dtype, last, G in (
        (torch.float32, False, 100),
        (torch.float32, True, 16),
        (torch.bfloat16, False, 16),
        (torch.bfloat16, True, 100),
    ):
        rows = (16 << 20) // (4 * 16 * 150 * dtype.itemsize) + 1
        shape = (4, 16, rows, 150)
        print("large", shape, dtype, f"{last=} {G=}", flush=True)
        x, gy = (laid_out(noise(shape, dtype), "last" if last else "contiguous") for _ in range(2))
        assert x.nbytes >= 16 << 20
        weight, bias = noise((16,), torch.promote_types(dtype, torch.float32)), None
        part = slices(4, 16, rows * 150, G)
        call = lambda backend: lambda x, w, b: backend.normalize(x, part, w, b, 1e-5)  # noqa: B023, E731
        torch.set_num_threads(2)
        exact = run(
            call(definition), x.double(), weight.double(), bias, gy.double(), (True, True, True)
        )
        for capability in CAPABILITIES:
            cpu.library.use(capability)
            torch.set_num_threads(draw.randint(1, 3))
            assert_as_exact(run(call(fast), x, weight, bias, gy, (True, True, True)), exact, dtype)


def misuse(what: str) -> None:
    """Hand something to C that it must not be given."""
    part = slices(1, 1, 1001, 200)
    plan = CorePlan(cpu.library, fast.plan(torch.empty(1, 1, 1001), part))
    x = torch.randn(1000 if what == "short x" else 1001)
    y = torch.empty(1000 if what == "short y" else 1001)
    stats = (
        ctypes.c_char
        * (3 * plan.step + {"short statistics": -1, "crooked statistics": 1}.get(what, 0))
    )()
    to = ctypes.addressof(stats) + (what == "crooked statistics")
    arrays = plan.pointer, x.data_ptr(), y.data_ptr(), None, None, 0
    cpu.library.forward(*arrays, 1e-5, to, None, None, 0, 0.0, None, None, None, 1)


def report(what: str) -> str:
    """What the sanitizers say to a misuse. It ends the process, so another one commits it."""
    with tempfile.TemporaryFile("w+") as file:
        child = os.fork()
        if not child:
            os.dup2(file.fileno(), 2)
            misuse(what)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        file.seek(0)
        assert status != 0, f"nobody minds {what}"
        return file.read()


def sanitizers_watch() -> None:
    """They see what torch and what Python allocates, to the byte, and what C does with it."""
    for what in ("short x", "short y", "short statistics"):
        assert "ERROR: AddressSanitizer" in report(what), what
    assert "misaligned address" in report("crooked statistics")


def main(path: str) -> None:
    torch.manual_seed(0)
    cpu.library = Library(path)
    plans._plans.clear()
    bgn.kernels.library._SERIAL = 0  # small arrays on several threads too
    sanitizers_watch()  # first: where threads are running, no process can be split
    without_elements()
    for number in range(CASES):
        case(number)
    large()


if __name__ == "__main__":
    main(sys.argv[1])

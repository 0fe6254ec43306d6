"""Random calls of the C core, compared with the definition in float64.

    python -m tests.fuzz --seconds 600 --seed 7   # random cases; the seed is printed
    python -m tests.fuzz --case 7:123             # one of them again

A case is a shape, a partition, an element type, a memory layout, values of some scale, which
parameters there are and which gradients are needed. It is run by the fused passes and by the four
sweeps, with one thread and two, on every instruction set: all bits of these are compared where they
must be equal, and all results with the definition.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bgn import kernels
from bgn.kernels import Plan, cpu, definition
from bgn.kernels.library import CAPABILITIES
from bgn.partition import Partition, channel_groups, slices
from bgn.running import Running
from tests import kernel_calls as fast
from tests.tolerance import TOLERANCES

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
CHANNELS = [1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 36, 64, 65, 100, 256]
POSITIONS: list[tuple[int, ...]] = [
    *[(), (1,), (3,), (29,), (4097,), (1, 1), (2, 2), (7, 7), (5, 13), (14, 14), (33, 40)],
    *[(1, 9000), (1, 1, 1), (2, 3, 4), (9, 9, 9)],
]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
Result = dict[str, Tensor]


class Difference(AssertionError):
    """Two results differ that should not."""


@dataclass
class Case:
    """Everything that a case is made of; `draw` makes its values too, so the order matters."""

    draw: random.Random
    kind: str = field(init=False)  # train, apply or positional

    def __post_init__(self) -> None:
        draw = self.draw
        self.kind = draw.choice(["train", "train", "apply", "positional"])
        self.dtype = draw.choice(DTYPES)
        self.wide = torch.promote_types(self.dtype, torch.float32)
        self.shape, self.part = self._shape_and_partition()
        self.of_parameters = draw.choice([self.dtype, self.wide])
        self.layouts = draw.choice(["contiguous", "last", "odd"]), draw.choice(["same", "gaps"])
        self.has_weight, self.has_bias = draw.random() < 0.7, draw.random() < 0.7
        self.needed = draw.choice([(1, 1, 1), (1, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 0)])
        self.values = draw.choice(["noise", "offset", "outliers", "scaled", "scaled", "constant"])
        exponents = [-20, 20] if self.kind == "apply" else [-83, -20, 62, 62, 83]
        self.size = 2.0 ** draw.choice([-6, 6] if self.dtype is torch.float16 else exponents)
        self.momentum = draw.choice([0.1, 0.5, 1.0])
        self.seed = draw.randrange(2**31)

    def _shape_and_partition(self) -> tuple[tuple[int, ...], Partition]:
        """Any G up to D, any blocks, at least 4 elements in a statistic; small more often."""
        draw, positional = self.draw, self.kind == "positional"
        while True:
            most = draw.choice([2000, 2000, 20000, 200000, 2000000])
            shape = draw.randint(1, 9), draw.choice(CHANNELS), *draw.choice(POSITIONS)
            if math.prod(shape) > most:
                continue
            N, C, P = shape[0], shape[1], math.prod(shape[2:])
            blocks = [b for b in range(1, N + 1) if N % b == 0]
            B = 1 if self.kind == "apply" else draw.choice([1, *blocks])
            G = draw.choice([1, C, C * P, draw.randint(1, C * P), draw.randint(1, min(C * P, 60))])
            part = draw.choice([slices, channel_groups])(N, C, P, G, B)
            if self.kind == "apply" or (C if positional else part.smallest_count) >= 4:
                return shape, part

    def __str__(self) -> str:
        hidden = ("draw", "wide")
        return ", ".join(f"{k}={v}" for k, v in vars(self).items() if k not in hidden)

    @property
    def eps(self) -> float:
        """Beside the size of the values, as it is in practice."""
        return 1e-5 * self.size**2 if self.values == "scaled" else 1e-5

    @property
    def fits(self) -> bool:
        """Whether variances fit float32: sums of squares of 2^62 overflow, but their mean fits."""
        return self.values != "scaled" or 2**-62 <= self.size <= 2**62

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Input, gradient of the output, weight and bias."""
        generator = torch.Generator().manual_seed(self.seed)

        def noise(shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        x = noise(self.shape)
        if self.values == "offset":
            x += 10.0
        elif self.values == "outliers":
            x.view(-1)[:: max(x.numel() // 5, 1)] = 30.0
        elif self.values == "scaled":
            x *= self.size
        elif self.values == "constant":
            x = torch.where(noise((1, self.shape[1]) + (1,) * (x.dim() - 2)) > 0, x, 0.5)
        gy, C = noise(self.shape), (self.part.C,)
        weight, bias = noise(C).to(self.of_parameters), noise(C).to(self.of_parameters)
        first, second = self.layouts
        x = laid_out(x.to(self.dtype), first)
        gy = laid_out(laid_out(gy.to(self.dtype), first), second)
        return x, gy, weight if self.has_weight else None, bias if self.has_bias else None

    def given(self) -> tuple[Tensor, Tensor]:
        """Statistics of eval mode."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        mean, var = torch.randn(2, self.part.G, generator=generator, dtype=torch.float64)
        size = self.size if self.values == "scaled" else 1.0
        return (mean * size).to(self.wide), ((var.square() + 0.5) * size**2).to(self.wide)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values contiguous, channels_last, at an odd address, or with gaps."""
    if layout == "last" and x.dim() in LAST:
        return x.to(memory_format=LAST[x.dim()])
    if layout == "odd":
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    if layout == "gaps":
        return torch.stack([x, x], dim=-1)[..., 0]
    return x


class Adapter:
    """The only place that knows what the library's functions are called."""

    @staticmethod
    def set_up(threads: int, capability: str) -> bool:
        """Whether the machine has what is asked for."""
        torch.set_num_threads(threads)
        return cpu.library.use(capability) == capability

    @staticmethod
    def readable(case: Case, x: Tensor) -> Tensor:
        """x as the C core reads it; from here on, small inputs of this shape use all threads."""
        plan = Adapter.plan(case, x)
        x = x.contiguous(memory_format=plan.layout)
        cpu.core_of(Adapter.plan(case, x)).serial = False
        return x

    @staticmethod
    def plan(case: Case, x: Tensor) -> Plan:
        if case.kind == "positional":
            return kernels.plan(kernels.positions, x, 1)
        return fast.plan(x, case.part)

    @staticmethod
    def fused(case: Case, backend: Any, x: Tensor, weight: Any, bias: Any, running: Any) -> Tensor:
        """The output by one call, with a graph."""
        if case.kind == "apply":
            mean, var = (t.to(x.dtype) if backend is definition else t for t in case.given())
            y = backend.normalize_with(x, case.part, mean, var, weight, bias, case.eps)
        elif case.kind == "positional":
            y = backend.positional(x, weight, bias, case.eps)
        else:
            y = backend.normalize(x, case.part, weight, bias, case.eps, running)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def running(case: Case, dtype: torch.dtype) -> Running:
        G = case.part.G
        zeros, ones = torch.zeros(G, dtype=dtype), torch.ones(G, dtype=dtype)
        return Running(zeros, ones, case.momentum, torch.tensor(3))

    @staticmethod
    def sweeps(case: Case, x: Tensor, gy: Tensor, weight: Any, bias: Any) -> Result:
        """Output and gradients by the four sweeps."""
        part, library, plan = case.part, cpu.library, cpu.core_of(Adapter.plan(case, x))
        gy = gy.contiguous(memory_format=Adapter.plan(case, x).layout)
        count = definition.count(part, torch.empty((), dtype=torch.float64)).expand(part.B, part.G)
        mean, var = torch.empty(2, part.B, part.G, dtype=case.wide)
        sums = torch.empty(2, part.B, part.G, dtype=torch.float64)
        y, gx = torch.empty_like(x), torch.empty_like(x)
        kind = next((t.dtype for t in (weight, bias) if t is not None), case.wide)
        gw, gb = torch.empty(2, part.C, dtype=kind)
        w, b = (None if t is None else t.data_ptr() for t in (weight, bias))
        low, threads = kind is not case.wide, plan.threads()
        frozen = case.kind == "apply"

        def call(function: Any, *arguments: Any) -> None:
            pointers = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
            code = function(plan.pointer, *pointers, threads)
            if code:
                raise Difference(f"{function.__name__} returned {code}")

        if frozen:
            mean, var = case.given()
        else:
            call(library.moments, x, mean, var)
        rstd = (var.double() + case.eps).rsqrt().to(case.wide)  # torch.sqrt is not exact
        call(library.write, x, y, w, b, low, mean, rstd)
        call(library.products, gy, x, w, low, mean, rstd, sums, gw, gb)
        sums /= count
        means = None if frozen else sums
        call(library.write_gradient, gy, x, gx, w, low, mean, rstd, means)
        found = {"output": y, "gradient of input": gx}
        found["gradient of weight"], found["gradient of bias"] = gw, gb
        return found


def run(case: Case, backend: Any, tensors: Any, dtype: torch.dtype) -> Result:
    """Output, the gradients that are needed, and running statistics, by the fused passes."""
    x, gy, weight, bias = tensors
    leaves = [
        None if t is None else t.detach().requires_grad_(bool(need))
        for t, need in zip((x, weight, bias), case.needed, strict=True)
    ]
    running = Adapter.running(case, dtype)
    y = Adapter.fused(case, backend, *leaves, running)
    if y.requires_grad:
        y.backward(gy)
    names = ("gradient of input", "gradient of weight", "gradient of bias")
    found = {
        name: t.grad
        for name, t in zip(names, leaves, strict=True)
        if t is not None and t.grad is not None
    }
    statistics = {"running mean": running.mean, "running var": running.var}
    kept = statistics if case.kind == "train" and case.fits else {}
    return {"output": y.detach(), **found, **kept}


def sizes(case: Case) -> dict[str, float]:
    """How large results are where they are not about 1."""
    size = case.size if case.values == "scaled" else 1.0
    return {"gradient of input": 1 / size, "running mean": size, "running var": size**2}


def compare(case: Case, name: str, found: Tensor, exact: Tensor, amplified: float) -> None:
    """Within the tolerance of the dtype, beside the largest value: sums are long."""
    tolerance = TOLERANCES[case.dtype if found.dtype is case.dtype else case.wide]
    scale = max(sizes(case).get(name, 1.0), exact.abs().max().item()) if exact.numel() else 1.0
    most = tolerance["atol"] * scale * amplified + tolerance["rtol"] * exact.abs()
    error = (found.double() - exact).abs()
    if not bool((error <= most).all()):
        worst = int((error - most).nan_to_num(math.inf).argmax())
        values = found.flatten()[worst].item(), exact.flatten()[worst].item()
        raise Difference(f"{name}[{worst}] is {values[0]!r}, expected {values[1]!r}")


def amplification(case: Case, x: Tensor) -> float:
    """How much eps enlarges gradients: a group of equal elements has rstd = 1 / sqrt(eps)."""
    return 1 / math.sqrt(1e-5) if case.values == "constant" and x.numel() else 1.0


def check(case: Case) -> None:
    """Run a case in every way; raises Difference."""
    tensors = case.tensors()
    x, gy, weight, bias = tensors
    exact = run(
        case,
        definition,
        [None if t is None else t.double() for t in tensors],
        torch.float64,
    )
    amplified = amplification(case, x)
    for capability in CAPABILITIES:
        first: Result = {}
        for threads in (1, 2):
            if not Adapter.set_up(threads, capability):
                continue
            where = f"{capability}, {threads} thread(s)"
            try:
                readable = Adapter.readable(case, x)
                found = run(case, fast, tensors, case.wide)
                for name, value in found.items():
                    compare(case, name, value, exact[name], amplified)
                    if first and not torch.equal(value, first[name]):
                        raise Difference(f"{name} depends on the number of threads")
                first = first or found
                if case.kind != "positional" and case.fits:
                    swept = Adapter.sweeps(case, readable, gy, weight, bias)
                    for name in found.keys() & swept.keys():
                        if not torch.equal(swept[name], found[name]):
                            raise Difference(f"{name} of the sweeps differs from the fused one")
            except Difference as difference:
                raise Difference(f"{where}: {difference}") from None


def fuzz(seed: int, seconds: float) -> int:
    """The number of cases that were run; raises Difference at the first that fails."""
    end, index = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        one(seed, index)
        index += 1
    return index


def one(seed: int, index: int) -> None:
    """One case, by its number."""
    case = Case(random.Random(f"{seed}:{index}"))
    try:
        check(case)
    except Difference as difference:
        repeat = f"python -m tests.fuzz --case {seed}:{index}"
        raise Difference(f"{difference}\n{case}\nto repeat: {repeat}") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--case", metavar="SEED:INDEX")
    options = parser.parse_args(arguments)
    if not cpu.available():
        sys.exit(f"the C core is {cpu.why_not}")
    try:
        if options.case:
            seed, index = map(int, options.case.split(":"))
            print(Case(random.Random(f"{seed}:{index}")), flush=True)
            one(seed, index)
            print("passed")
            return 0
        seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
        print(f"seed {seed}", flush=True)
        print(f"{fuzz(seed, options.seconds)} cases passed")
    except Difference as difference:
        print(difference)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Errors against float64 where float32 is hard pressed: at most twice those of torch's own layers.

Every row of INPUTS is run through every walk of the C core, for few and many groups.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as torch_f

from bgn import functional as F

N, C, H, W = 4, 8, 48, 48
P = H * W
LAYOUTS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


def pivot_places(G: int) -> Tensor:
    """Where the C core looks for a value near a group's mean (`pivot` in native/statistics.inc)."""
    marked = torch.zeros(N, C, P, dtype=torch.bool)
    for g in range(G):
        for j in range(32):
            channel = g * C // G + (j * (C // G) >> 5)
            marked[j * N >> 5, channel, (j * 13 % 32) * P >> 5] = True
    return marked.view(N, C, H, W)


def with_outliers(noise: Tensor, G: int, size: float) -> Tensor:
    return torch.where(pivot_places(math.gcd(G, C)), torch.full_like(noise, size), noise)


def with_one_huge_sample(noise: Tensor, size: float) -> Tensor:
    noise = noise.clone()
    noise[1] *= size
    return noise


def constant_but_one(noise: Tensor) -> Tensor:
    x = torch.full_like(noise, 3.0)
    x[0, :, 0, 0] = 4.0
    return x


# name: (input from standard normal noise and the number of groups, eps)
INPUTS: dict[str, tuple[Callable[[Tensor, int], Tensor], float]] = {
    "ordinary": (lambda noise, _: noise, 1e-5),
    "mean of 1e6": (lambda noise, _: noise + 1e6, 1e-5),
    "mean of 1e4": (lambda noise, _: noise + 1e4, 1e-5),
    "around 1e18": (lambda noise, _: noise * 1e18, 1e-5),
    "around 1e25": (lambda noise, _: noise * 1e25, 1e-5),
    "around 1e36": (lambda noise, _: noise * 1e36, 1e-5),
    "around 1e-15, no eps": (lambda noise, _: noise * 1e-15, 1e-60),
    "around 1e-25, no eps": (lambda noise, _: noise * 1e-25, 1e-60),
    "around 1e-25": (lambda noise, _: noise * 1e-25, 1e-5),
    "denormal": (lambda noise, _: noise * 1e-40, 1e-5),
    "outliers of 1e4 at the pivot": (lambda noise, G: with_outliers(noise, G, 1e4), 1e-5),
    "outliers of 1e10 at the pivot": (lambda noise, G: with_outliers(noise, G, 1e10), 1e-5),
    "one sample 1e3 times as large": (lambda noise, _: with_one_huge_sample(noise, 1e3), 1e-5),
    "one sample 1e20 times as large": (lambda noise, _: with_one_huge_sample(noise, 1e20), 1e-5),
    "equal but for one": (lambda noise, _: constant_but_one(noise), 1e-5),
    "equal": (lambda noise, _: torch.full_like(noise, 7.3), 1e-5),
}
DTYPES = {
    torch.float32: list(INPUTS),
    torch.bfloat16: ["ordinary", "mean of 1e4", "around 1e18", "outliers of 1e4 at the pivot"],
    torch.float16: ["ordinary", "outliers of 1e4 at the pivot"],
}
ROWS = [(dtype, name) for dtype, names in DTYPES.items() for name in names]

Result = dict[str, Tensor]


def run(
    function: Callable[..., Tensor], x: Tensor, gy: Tensor, affine: tuple[Tensor, Tensor] | None
) -> Result:
    """Output and gradients of a function of input, weight and bias."""
    leaves = [t.detach().requires_grad_() for t in (x, *(affine or ()))]
    y = function(*leaves)
    y.backward(gy)
    names = ("gradient of input", "gradient of weight", "gradient of bias")
    return {"output": y.detach(), **{n: t.grad for n, t in zip(names, leaves, strict=False)}}


def assert_no_worse(ours: Result, theirs: Result, exact: Result) -> None:
    """The largest error is at most twice theirs, plus one unit in the last place.

    That of a mean is the standard deviation's where the mean is smaller: it came about by
    cancellation. Where torch's result is not finite, ours may be anything.
    """
    for name, expected in exact.items():
        good = theirs[name].isfinite()
        found = ours[name].reshape(expected.shape)
        if not good.any():
            continue
        assert found[good].isfinite().all(), name
        error, other = (
            (t.double() - expected)[good].abs().max().item() for t in (found, theirs[name])
        )
        largest = expected[good].abs().max().item()
        if name == "running mean":
            largest = max(largest, exact["running var"].max().sqrt().item())
        info = torch.finfo(found.dtype)
        unit = info.eps * 2 ** math.floor(math.log2(max(largest, info.tiny)))
        assert error <= 2 * other + unit, f"{name}: {error:.3g}, torch's {other:.3g}, {unit=:.3g}"


def made(name: str, dtype: torch.dtype, G: int) -> tuple[Tensor, Tensor, float]:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(N, C, H, W, generator=generator)
    make, eps = INPUTS[name]
    return make(noise, G).to(dtype), torch.randn(N, C, H, W, generator=generator).to(dtype), eps


def parameters(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(2, C, generator=generator)
    return weight.to(torch.promote_types(dtype, torch.float32)), bias


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("G", [C, 2, 1, 24])
@pytest.mark.parametrize(("dtype", "name"), ROWS, ids=lambda v: str(v).removeprefix("torch."))
def test_batch_group_norm(dtype: torch.dtype, name: str, G: int, layout: str) -> None:
    """Against batch_norm over (N, G, S), which is the same thing."""
    x, gy, eps = made(name, dtype, G)
    affine = parameters(dtype) if G == C else None

    def ours(x: Tensor, *affine: Tensor) -> Tensor:
        return F.batch_group_norm(x, G, *running, *affine, training=True, momentum=1.0, eps=eps)

    def theirs(x: Tensor, *affine: Tensor) -> Tensor:
        args = running[0], running[1], *(affine or (None, None))
        return torch_f.batch_norm(x, *args, training=True, momentum=1.0, eps=eps)

    results = []
    view = (N, G, -1)
    memory_format = LAYOUTS[layout]
    for function, kind, inputs in (
        (ours, dtype, (x.to(memory_format=memory_format), gy.to(memory_format=memory_format))),
        (theirs, dtype, (x.view(view), gy.view(view))),
        (theirs, torch.float64, (x.view(view).double(), gy.view(view).double())),
    ):
        wide = torch.promote_types(kind, torch.float32)
        running = torch.zeros(G, dtype=wide), torch.ones(G, dtype=wide)
        typed = None if affine is None else tuple(t.to(wide) for t in affine)
        result = run(function, *inputs, typed)
        results.append({**result, "running mean": running[0], "running var": running[1]})
    assert_no_worse(*results)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["group norm", "positional norm"])
@pytest.mark.parametrize(("dtype", "name"), ROWS, ids=lambda v: str(v).removeprefix("torch."))
def test_normalizers_of_one_sample(dtype: torch.dtype, name: str, kind: str, layout: str) -> None:
    """Against group_norm, and layer_norm over the channels of every position."""
    x, gy, eps = made(name, dtype, 2)
    if kind == "positional norm":
        ours = lambda x, w, b: F.positional_norm(x, w, b, eps)  # noqa: E731
        theirs = lambda x, w, b: torch_f.layer_norm(  # noqa: E731
            x.movedim(1, -1), (C,), w, b, eps
        ).movedim(-1, 1)
    else:
        ours = lambda x, w, b: F.group_norm(x, 2, w, b, eps)  # noqa: E731
        theirs = lambda x, w, b: torch_f.group_norm(x, 2, w, b, eps)  # noqa: E731
    results = []
    for function, kept in ((ours, dtype), (theirs, dtype), (theirs, torch.float64)):
        weight, bias = (t.to(torch.promote_types(kept, torch.float32)) for t in parameters(dtype))
        fmt = LAYOUTS[layout] if function is ours else torch.contiguous_format
        inputs = (t.to(kept).to(memory_format=fmt) for t in (x, gy))
        results.append(run(function, *inputs, (weight, bias)))
    assert_no_worse(*results)


@pytest.mark.parametrize("exponent", [-120, -83, -60, -40, 40, 60, 62, 66, 83, 120])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["1", "8", "24", "group norm", "positional norm"])
def test_the_scale_of_the_input_does_not_matter(kind: str, layout: str, exponent: int) -> None:
    """Squares of floats beyond 2^64 overflow, those below 2^-75 are zero; BatchNorm fails there."""

    def normalize(x: Tensor, eps: float) -> Tensor:
        if kind == "group norm":
            return F.group_norm(x, 2, eps=eps)
        if kind == "positional norm":
            return F.positional_norm(x, eps=eps)
        return F.batch_group_norm(x, int(kind), training=True, eps=eps)

    x, gy, eps = made("ordinary", torch.float32, 1)
    x, gy = (t.to(memory_format=LAYOUTS[layout]) for t in (x, gy))
    factor = 2.0**exponent
    exact = run(lambda x: normalize(x, eps), x.double(), gy.double(), None)
    found = run(lambda x: normalize(x, eps * factor**2), x * factor, gy, None)
    unit = torch.finfo(torch.float32).eps
    for name, scale in ("output", 1.0), ("gradient of input", factor):
        error = (found[name].double() * scale - exact[name]).abs().max()
        assert error <= 4 * unit * exact[name].abs().max(), name

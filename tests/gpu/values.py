"""Every sweep of the GPU core has the definition's values, by property, in the interpreter."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

import bgn
from bgn import kernels
from bgn.activation import Activation, After
from bgn.kernels import definition, graph, sweeps, triton
from bgn.kernels.triton.launch import COLUMNS, FEATURES, RUNS
from bgn.partition import Partition, channel_groups, slices
from bgn.renorm import Reference
from bgn.running import Running
from tests import kernel_calls
from tests.gpu.interpreter import EPS, LAST, assert_same, step, tiles

EXAMPLES = int(os.environ.get("BGN_GPU_EXAMPLES", "40"))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TILES = [(4096, 8192), (64, 0), (64, 128), (16, 0)]  # the usual ones, and small ones


@st.composite
def feature_maps(draw: Any) -> dict[str, Any]:
    """A partition, a layout, a dtype, tiles, and which tensors there are."""
    N = draw(st.integers(1, 5))
    C = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 17, 20]))
    space = draw(st.sampled_from([(), (1,), (5,), (3, 2), (4, 4), (5, 7), (2, 3, 2), (8, 8)]))
    P = torch.Size(space).numel()
    D = C * P
    G = draw(st.one_of(st.integers(1, D), st.sampled_from([1, C, D])))
    B = draw(st.sampled_from([b for b in range(1, N + 1) if N % b == 0]))
    part: Partition = draw(st.sampled_from([slices, channel_groups]))(N, C, P, G, B)
    return {
        "part": part,
        "shape": (N, C, *space),
        "last": draw(st.booleans()) and len(space) > 1,
        "dtype": draw(st.sampled_from(DTYPES)),
        "tiles": draw(st.sampled_from(TILES)),
        "affine": draw(st.sampled_from(["both", "same", "weight", "bias", "none"])),
        "running": draw(st.sampled_from(["none", "momentum", "cumulative", "uncounted"])),
        "per_channel": draw(st.booleans()),
        "reference": draw(st.sampled_from(["none", "none", "number", "tensor"])),
    }


def numbers(shape: tuple[int, ...], dtype: torch.dtype, last: bool) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64) * 2 + 3
    return x.to(dtype).contiguous(
        memory_format=LAST[len(shape)] if last else torch.contiguous_format
    )


def parameters(kind: str, C: int, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    own = dtype if kind == "same" else torch.float32
    weight, bias = (torch.rand(C) + 0.5).to(own), torch.randn(C).to(own)
    return weight if kind not in ("bias", "none") else None, (
        bias if kind not in ("weight", "none") else None
    )


def double(t: Any) -> Any:
    if isinstance(t, tuple):
        return tuple(double(one) for one in t)
    return t.double() if isinstance(t, Tensor) and t.dtype.is_floating_point else t


def running_of(kind: str, entries: int) -> tuple[Running | None, Running | None]:
    """Running statistics of some kind, and the same in float64."""
    if kind == "none":
        return None, None
    mean, var = torch.randn(entries) + 3, torch.rand(entries) + 3
    momentum = None if kind == "cumulative" else 0.3
    counters = [None if kind == "uncounted" else torch.tensor(4) for _ in range(2)]
    return (
        Running(mean.clone(), var.clone(), momentum, counters[0]),
        Running(mean.double(), var.double(), momentum, counters[1]),
    )


@seed(0)
@settings(max_examples=EXAMPLES)
@given(feature_maps())
def test_training_is_the_definitions(case: dict[str, Any]) -> None:
    part, dtype, last = case["part"], case["dtype"], case["last"]
    if part.smallest_count < 4:
        return  # a difference of large numbers
    x, gy = (numbers(case["shape"], dtype, last) for _ in range(2))
    affine = parameters(case["affine"], part.C, dtype)
    per_channel = case["per_channel"] and part.whole_channels and part.C % part.G == 0
    entries = part.C if per_channel else part.G
    running, moved = running_of(case["running"], entries)
    reference = exact_reference = None
    if case["reference"] != "none" and running is not None and moved is not None:
        share: Any = 0.7 if case["reference"] == "number" else torch.tensor(0.7)
        reference = Reference(running.mean, running.var, 1.5, 0.7, share)
        exact_reference = Reference(moved.mean, moved.var, 1.5, 0.7, 0.7)
    with tiles(*case["tiles"]):
        ours, node = step("triton", x, part, affine, gy, running, None, reference)
    exact, _ = step(
        "definition", double(x), part, double(affine), double(gy), moved, None, exact_reference
    )
    assert node == "triton"
    assert_same(ours, exact, dtype)
    assert ours["y"].is_contiguous(memory_format=LAST[x.dim()] if last else torch.contiguous_format)


# shape, G, B, channels_last, and what makes the plan special
WALKS = [
    ((3, 6, 5, 4), 1, 1, False, {"walk": RUNS, "one_group": True}),
    ((3, 6, 5, 4), 2, 1, False, {"walk": RUNS, "cells_per_channel": 1}),
    ((4, 6, 5, 4), 12, 2, False, {"walk": RUNS, "cells_per_channel": 2}),
    ((4, 6, 5, 4), 4, 2, False, {"walk": RUNS, "cells_per_channel": 2}),
    ((3, 6, 5, 4), 7, 1, False, {"walk": RUNS, "ragged": True}),
    ((4, 6, 5, 4), 50, 2, False, {"walk": RUNS, "ragged": True}),
    ((3, 6, 5, 4), 2, 1, True, {"walk": COLUMNS, "segments": 1}),
    ((4, 5, 8, 4), 10, 2, True, {"walk": COLUMNS, "segments": 2}),
    ((2, 4, 8, 8), 16, 1, True, {"walk": COLUMNS, "segments": 4}),
    ((2, 4, 8, 6), 6, 1, True, {"walk": COLUMNS, "segments": 3}),
    ((3, 6, 5, 4), 12, 1, True, {"walk": FEATURES, "swapped": True}),
    ((4, 6, 5, 4), 7, 2, True, {"walk": FEATURES, "swapped": True}),
    ((6, 6, 5, 4), 120, 1, False, {"walk": FEATURES, "swapped": False}),
    ((12, 20), 7, 2, False, {"walk": FEATURES, "swapped": False}),
]


@pytest.mark.parametrize(("shape", "G", "B", "last", "special"), WALKS, ids=str)
@pytest.mark.parametrize(
    "elements", [64, *(pytest.param(n, marks=pytest.mark.slow) for n in (16, 2048))]
)
def test_every_walk_is_the_definitions(
    shape: tuple[int, ...], G: int, B: int, last: bool, special: dict[str, Any], elements: int
) -> None:
    N, C, *space = shape
    part = slices(N, C, torch.Size(space).numel(), G, B)
    x, gy = (numbers(shape, torch.float32, last) for _ in range(2))
    affine = parameters("both", C, torch.float32)
    running, moved = running_of("momentum", G)
    assert running is not None
    assert moved is not None
    references = [Reference(r.mean, r.var, 1.5, 0.7, 0.5) for r in (running, moved)]
    with tiles(elements, 0):
        way = triton.launch_of(kernel_calls.plan(x, part), 4)
        assert {name: getattr(way, name) for name in special} == special
        assert way.fused is None
        ours, node = step("triton", x, part, affine, gy, running, None, references[0])
    exact, _ = step(
        "definition", double(x), part, double(affine), double(gy), moved, None, references[1]
    )
    assert node == "triton"
    assert_same(ours, exact, torch.float32)


@seed(0)
@settings(max_examples=EXAMPLES)
@given(
    feature_maps(),
    st.sampled_from(["relu", "leaky_relu", "silu", "hardswish", "identity"]),
    st.booleans(),
    st.booleans(),
)
def test_what_follows_is_torchs(
    case: dict[str, Any], name: str, with_residual: bool, training: bool
) -> None:
    """A residual and an activation in the same kernels, forward and backward."""
    part, dtype = case["part"], case["dtype"]
    if part.smallest_count < 4:
        return  # a difference of large numbers
    act, given_ = Activation(name, 0.2), None
    if not training:
        part = Partition(part.N, part.C, part.P, 1, part.G, part.whole_channels)
        given_ = torch.randn(part.G) + 3, torch.rand(part.G) + 0.5
    x, r, gy = (numbers(case["shape"], dtype, case["last"]) for _ in range(3))
    residual = r - 3 if with_residual and act.is_piecewise else None
    affine = parameters(case["affine"], part.C, dtype)
    per_channel = case["per_channel"] and part.whole_channels and part.C % part.G == 0
    entries = part.C if per_channel else part.G
    running, moved = running_of(case["running"] if training else "none", entries)
    references: list[Any] = [None, None]
    if case["reference"] != "none" and running is not None and moved is not None:
        references = [Reference(one.mean, one.var, 1.5, 0.7, 0.7) for one in (running, moved)]
    with tiles(*case["tiles"]):
        ours, node = step(
            "triton", x, part, affine, gy, running, given_, references[0], After(act, residual)
        )
    exact, _ = step(
        "definition", double(x), part, double(affine), double(gy), moved, double(given_),
        references[1], After(act, double(residual)),
    )  # fmt: skip
    assert node == "triton"
    assert_same(ours, exact, dtype)


@seed(0)
@settings(max_examples=EXAMPLES // 2)
@given(feature_maps())
def test_eval_mode_is_the_definitions(case: dict[str, Any]) -> None:
    part, dtype = case["part"], case["dtype"]
    if part.B > 1:
        part = Partition(part.N, part.C, part.P, 1, part.G, part.whole_channels)
    x, gy = (numbers(case["shape"], dtype, case["last"]) for _ in range(2))
    affine = parameters(case["affine"], part.C, dtype)
    given_ = torch.randn(part.G) + 3, torch.rand(part.G) + 0.5
    with tiles(*case["tiles"]):
        ours, node = step("triton", x, part, affine, gy, given=given_)
    exact, _ = step("definition", double(x), part, double(affine), double(gy), given=double(given_))
    assert node == "triton"
    assert_same(ours, exact, dtype)


@seed(0)
@settings(max_examples=EXAMPLES // 2)
@given(feature_maps())
def test_single_sweeps_are_the_definitions(case: dict[str, Any]) -> None:
    part = case["part"]
    x, gy = (numbers(case["shape"], torch.float32, case["last"]) for _ in range(2))
    weight, bias = parameters(case["affine"], part.C, torch.float32)
    with tiles(*case["tiles"]), kernels.use("triton"):
        plan = kernel_calls.plan(x, part)
        assert sweeps.kernel_for(x, plan, weight, bias) is triton
        ours = kernels.moments(x, plan)
        meaning = definition.moments(x.double(), part)
        assert_same(vars(ours), {"mean": meaning.mean, "M2": meaning.M2}, torch.float32)
        mean, rstd = ours.mean, torch.rsqrt(ours.var + 0.1)
        y = kernels.write(x, plan, mean, rstd, weight, bias)
        sums = kernels.products(gy, x, plan, weight, mean, rstd)
        means = torch.randn(2, part.B, part.G)
        gx = kernels.write_gradient(gy, x, plan, weight, mean, rstd, means)
    stats = double((mean, rstd))
    pairs = [
        (y, definition.write(double(x), part, *stats, double(weight), double(bias))),
        *zip(
            sums, definition.products(double(gy), double(x), part, double(weight), *stats),
            strict=True,
        ),
        (
            gx,
            definition.write_gradient(
                double(gy), double(x), part, double(weight), *stats, double(means)
            ),
        ),
    ]  # fmt: skip
    for found, expected in pairs:
        assert_same({"": found}, {"": expected}, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 4, 3), (2, 20, 1, 7), (9, 6)], ids=str)
def test_positional_norm(shape: tuple[int, ...], last: bool, dtype: torch.dtype) -> None:
    if last and len(shape) == 2:
        pytest.skip("no such layout")
    x, gy = (numbers(shape, dtype, last) for _ in range(2))
    found = []
    for backend, cast in ("triton", lambda t: t), ("definition", double):
        torch.manual_seed(1)
        own = (x, *parameters("both", shape[1], dtype))
        leaves = [cast(t).detach().clone().requires_grad_() for t in own]
        with kernels.use(backend), tiles(32, 8192):
            y = kernel_calls.positional(*leaves, EPS)
            y.backward(cast(gy))
        found.append({"y": y.detach(), **{str(i): t.grad for i, t in enumerate(leaves)}})
    assert_same(*found, dtype)


@pytest.mark.parametrize("fused", [0, 8192])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_large_means_keep_their_digits(mean: float, fused: int) -> None:
    """As torch's batch_norm does: never E[x^2] - E[x]^2."""
    x = torch.randn(4, 8, 10, 10) + mean
    part = slices(4, 8, 100, 2)
    with tiles(64, fused), kernels.use("triton"):
        stats = kernels.moments(x, kernel_calls.plan(x, part))
        y, _ = step("triton", x, part, (None, None), x)
    exact = definition.moments(x.double(), part)
    torch.testing.assert_close(stats.var.double(), exact.var, rtol=1e-4, atol=0)
    right, _ = step("definition", x.double(), part, (None, None), x.double())
    torch.testing.assert_close(y["y"].double(), right["y"], rtol=0, atol=2e-6 + 4e-7 * mean)


@pytest.mark.parametrize("fused", [0, 8192])
def test_the_same_bits_every_time(fused: int) -> None:
    x, gy = torch.randn(2, 4, 8, 6, 6)
    affine = torch.rand(8), torch.rand(8)
    with tiles(64, fused):
        first, second = (step("triton", x, slices(4, 8, 36, 2), affine, gy)[0] for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_write_adds_a_residual_and_applies_relu(relu: bool, last: bool) -> None:
    x, residual = (numbers((2, 6, 5, 4), torch.float32, last) for _ in range(2))
    weight, bias = parameters("both", 6, torch.float32)
    part = slices(2, 6, 20, 3)
    mean, rstd = torch.randn(1, 3), torch.rand(1, 3)
    with tiles(64, 0), kernels.use("triton"):
        plan = kernel_calls.plan(x, part)
        after = After(Activation("relu" if relu else "identity"), residual)
        y = kernels.write(x, plan, mean, rstd, weight, bias, after)
    right = definition.write(x, part, mean, rstd, weight, bias) + residual
    torch.testing.assert_close(y, right.relu() if relu else right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fused", [0, 8192])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("G", [1, 8, 7])
def test_a_whole_forward_adds_a_residual_and_applies_relu(G: int, last: bool, fused: int) -> None:
    """By whichever kernel writes; NaN passes the ReLU."""
    x, residual = (numbers((2, 8, 5, 4), torch.bfloat16, last) for _ in range(2))
    residual[0, 0, 0, 0] = float("nan")
    part = slices(2, 8, 20, G)
    affine = parameters("both", 8, torch.float32)
    with tiles(64, fused):
        plan = kernel_calls.plan(x, part)
        assert (triton.launch_of(plan, 4).fused is not None) == (fused > 0 and G != 7)
        after = After(Activation("relu"), residual)
        y, _ = triton.forward(x, *affine, plan, EPS, None, None, after)
    exact = definition.normalize(double(x), part, *double(affine), EPS) + double(residual)
    assert y[0, 0, 0, 0].isnan()
    torch.testing.assert_close(
        y.double().nan_to_num(0), exact.relu().nan_to_num(0), rtol=1e-2, atol=1e-2
    )


def test_means_per_channel_use_the_sweeps() -> None:
    """What runs sweep by sweep (``between``) gets them from the GPU core."""
    layers = [bgn.BatchGroupNorm2d(6, 3, center="channel", renorm=True) for _ in range(2)]
    x, gy = torch.randn(2, 4, 6, 5, 4)
    found = []
    for backend, layer in zip(("triton", "definition"), layers, strict=True):
        leaf = x.clone().requires_grad_()
        with kernels.use(backend), tiles(64, 0):
            y = layer(leaf)
            y.backward(gy)
        buffers = dict(layer.named_buffers())
        found.append({"y": y.detach(), "gx": leaf.grad, "gw": layer.weight.grad, **buffers})
    assert_same(*found, torch.float32)


def test_an_inference_without_gradients() -> None:
    norm = bgn.BatchGroupNorm2d(6, 2).eval()
    x = torch.randn(4, 6, 5, 4)
    with kernels.use("triton"), torch.inference_mode():
        y = norm(x)
    torch.testing.assert_close(y, norm(x))


def test_non_finite_numbers_stay_in_their_group() -> None:
    x = torch.randn(2, 4, 5, 5)
    x[0, 0, 0, 0] = float("nan")
    with kernels.use("triton"), tiles(64, 0):
        y = bgn.functional.batch_group_norm(x, 2, training=True)
    assert y[:, :2].isnan().all()
    assert y[:, 2:].isfinite().all()


def test_non_finite_corrections_stay_in_their_group() -> None:
    """Uneven groups: slots of a channel are padded with empty ones that belong to other groups."""
    x, gy = torch.randn(2, 2, 4, 5, 5)
    x[0, 1, 1, 1] = float("nan")  # in group 2, which begins behind channel 0
    running, _ = running_of("momentum", 7)
    assert running is not None
    reference = Reference(running.mean, running.var, 1.5, 0.7, 1.0)
    with tiles(64, 0):
        ours, _ = step(
            "triton", x, slices(2, 4, 25, 7), parameters("both", 4, x.dtype), gy, None, None,
            reference,
        )  # fmt: skip
    assert ours["gw"].isnan().tolist() == [False, True, False, False]


@pytest.mark.parametrize("fused", [0, 8192])
def test_means_beyond_the_root_of_the_largest_number(fused: int) -> None:
    x, gy = torch.randn(2, 2, 4, 5, 5)
    x, part = x * 1e17 + 1e20, slices(2, 4, 25, 2)
    with tiles(16, fused):
        ours, _ = step("triton", x, part, (None, None), gy)
    exact, _ = step("definition", x.double(), part, (None, None), gy.double())
    assert_same(ours, exact, torch.bfloat16)


@pytest.mark.parametrize("G", [1, 6, 7])
def test_a_compiled_graph_gets_the_operator_on_request(
    G: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "compiled", "operator")
    torch.compiler.reset()
    graphs: list[str] = []

    def keep(module: Any, _: Any) -> Any:
        graphs.append(module.code)
        return module

    norms = [bgn.BatchGroupNorm2d(6, G) for _ in range(2)]
    x, gy = torch.randn(2, 4, 6, 5, 4)
    found = []
    with kernels.use("triton"):
        for norm, call in (norms[0], torch.compile(norms[0], backend=keep)), (norms[1], norms[1]):
            leaf = x.clone().requires_grad_()
            call(leaf).backward(gy)
            found.append({"gx": leaf.grad, "gw": norm.weight.grad, **dict(norm.named_buffers())})
    assert "torch.ops.bgn.normalize(" in graphs[0]
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_a_compiled_graph_is_inductors_by_default() -> None:
    torch.compiler.reset()
    graphs: list[str] = []

    def keep(module: Any, _: Any) -> Any:
        graphs.append(module.code)
        return module

    with kernels.use("triton"):
        torch.compile(bgn.BatchGroupNorm2d(6, 2), backend=keep)(torch.randn(4, 6, 5, 4))
    assert "bgn.normalize" not in graphs[0]

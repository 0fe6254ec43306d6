"""Torch's own kernels as a backend: the definition's values, in few passes, never waiting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.traffic import CASES, Case, count
from torch import Tensor, nn

import bgn
from bgn import functional as F
from bgn import kernels
from bgn.kernels import aten, definition
from bgn.kernels.eligible import plain_keys
from bgn.partition import Partition, channel_groups, slices
from bgn.running import Running
from tests import kernel_calls
from tests.tolerance import assert_close

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
SHAPES = [(4, 6), (4, 6, 7), (4, 6, 5, 4), (2, 6, 2, 3, 2), (2, 4, 6, 6)]
EPS = 1e-5


@pytest.fixture(autouse=True)
def _aten() -> Any:
    with kernels.use("aten"):
        yield


def partitions(N: int, C: int, P: int) -> list[Partition]:
    """Every kind of G and B, slices of features and groups of channels."""
    D = C * P
    found = {
        cut(N, C, P, G, B)
        for cut in (slices, channel_groups)
        for G in (1, 2, 3, 4, 5, 8, 9, C, 2 * C, D - 1, D)
        for B in (1, 2, N)
        if G <= D
    }
    return sorted((p for p in found if p.smallest_count > 1), key=str)


def step(
    x: Tensor,
    part: Partition,
    affine: tuple[Tensor | None, Tensor | None],
    gy: Tensor,
    running: Running | None = None,
    given: tuple[Tensor, Tensor] | None = None,
) -> tuple[dict[str, Tensor], str]:
    """Output, gradients and running statistics of one step, and the name of its node."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, *affine)]
    if given is None:
        y = kernel_calls.normalize(leaves[0], part, leaves[1], leaves[2], EPS, running)
    else:
        y = kernel_calls.normalize_with(leaves[0], part, *given, leaves[1], leaves[2], EPS)
    y.backward(gy)
    found = {"y": y.detach()}
    for name, leaf in zip(("gx", "gw", "gb"), leaves, strict=True):
        if leaf is not None:
            found[name] = leaf.grad
    if running is not None:
        found |= {"mean": running.mean, "var": running.var}
    return found, type(y.grad_fn).__name__


def assert_same(ours: dict[str, Tensor], meaning: dict[str, Tensor], tolerance: float) -> None:
    for name, expected in meaning.items():
        found = ours[name]
        assert found.dtype is expected.dtype, name
        assert found.shape == expected.shape, name
        error = (found.double() - expected.double()).abs().max()
        assert error <= tolerance * expected.double().abs().max().clamp(min=1), (name, error)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_the_definitions(shape: tuple[int, ...], layout: str) -> None:
    if layout == "channels_last" and len(shape) not in LAST:
        pytest.skip("no such layout")
    memory = LAST[len(shape)] if layout == "channels_last" else torch.contiguous_format
    x, gy = (
        (torch.randn(shape, dtype=torch.float64) * 2 + 3).contiguous(memory_format=memory)
        for _ in range(2)
    )
    N, C, P = shape[0], shape[1], x[0, 0].numel()
    weight, bias = torch.randn(2, C, dtype=torch.float64)
    fused = 0
    for i, part in enumerate(partitions(N, C, P)):
        affine = [(weight, bias), (None, None), (weight, None), (None, bias)][i % 4]
        statistics = torch.rand(2, part.G, dtype=torch.float64) + 0.5
        if i % 3 and C % part.G == 0:  # running statistics with an entry per channel
            statistics = statistics.repeat_interleave(C // part.G, dim=1)
        for mode in ("untracked", "tracked", "cumulative", "eval"):
            if mode == "eval" and (part.B > 1 or statistics.shape[1] != part.G):
                continue
            results = []
            for backend in ("aten", "definition"):
                mean, var = statistics.clone()
                options: dict[str, Any] = {"given": (mean, var)} if mode == "eval" else {}
                if mode in ("tracked", "cumulative"):
                    momentum = 0.3 if mode == "tracked" else None
                    options["running"] = Running(mean, var, momentum, torch.tensor(3))
                with kernels.use(backend):
                    results.append(step(x, part, affine, gy, **options))
            (ours, node), (meaning, _) = results
            # the gradient of a statistic of two or three elements is a difference of large numbers
            assert_same(ours, meaning, 1e-12 if part.smallest_count > 3 else 1e-9)
            assert ours["y"].stride() == meaning["y"].stride()
            fused += "_Normalize" in node
    assert fused > 10


@pytest.mark.parametrize("affine", ["same", "float32", "none"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_half_precision(dtype: torch.dtype, affine: str, layout: str) -> None:
    memory = LAST[4] if layout == "channels_last" else torch.contiguous_format
    x, gy = (
        (torch.randn(4, 6, 5, 4) + 1).to(dtype).contiguous(memory_format=memory) for _ in range(2)
    )
    pair: Any = (None, None)
    if affine != "none":
        pair = torch.rand(6) + 0.5, torch.randn(6)
        pair = tuple(t.to(dtype if affine == "same" else torch.float32) for t in pair)
    double: Any = tuple(None if t is None else t.double() for t in pair)
    for G in (1, 2, 6, 12, 4, 7):
        for B in (1, 2, 4):
            part = slices(4, 6, 20, G, B)
            ours, _ = step(x, part, pair, gy, Running(torch.zeros(G), torch.ones(G), 0.1))
            moved = Running(*torch.zeros(2, G).double(), 0.1)
            moved.var += 1
            exact, _ = step(x.double(), part, double, gy.double(), moved)
            assert ours["gx"].dtype is ours["y"].dtype is dtype
            assert ours["mean"].dtype is torch.float32
            if affine != "none":
                assert ours["gw"].dtype is ours["gb"].dtype is pair[0].dtype
            for name, expected in exact.items():
                assert_close(ours[name], expected)


def test_a_gradient_in_half_precision_is_rounded_once() -> None:
    """Also where its terms nearly cancel, because the gradient of the output is x itself."""
    x = torch.randn(4, 6, 8, 8).bfloat16()
    found, exact = (
        step(x.to(dtype), slices(4, 6, 64, 2), (None, None), x.to(dtype))[0]["gx"].double()
        for dtype in (torch.bfloat16, torch.float64)
    )
    assert 0 < exact.abs().max() < 1e-3
    # float32 leaves errors of about 1 % here, a rounded term some hundred times the gradient
    assert (found - exact).norm() < 0.2 * exact.norm()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_few_passes_and_launches(case: Case) -> None:
    found, meaning = count(case, "aten"), count(case, "definition")
    assert found.node == "_NormalizeBackward"
    half = case.dtype is torch.bfloat16
    assert found.passes[0] <= 3
    assert found.passes[1] <= (9 if half else 7)
    C, G = case.shape[1], case.G
    blocks = case.shape[0] if case.B is None else case.B
    assert found.kept <= C + 2 * blocks * G
    assert found.launches[0] < meaning.launches[0]
    assert found.launches[1] < meaning.launches[1]
    if not half and case.B == 1 and (C % G == 0 or G % C == 0):
        assert found.launches[0] <= 6
        assert found.launches[1] <= 10


def test_what_batch_norm_does_for_one_group_per_channel() -> None:
    ours, theirs = (count(Case("", 24), backend) for backend in ("aten", "torch"))
    assert ours.passes == theirs.passes == (3, 5)
    assert ours.launches == theirs.launches == (2, 1)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_waits_for_the_device(dtype: torch.dtype, momentum: float | None) -> None:
    """On "meta" there are no numbers: reading one is an error."""
    for G in (1, 2, 6, 12, 4, 7):
        for B in (1, 2, 4):
            x = torch.empty(4, 6, 5, 4, device="meta", dtype=dtype, requires_grad=True)
            weight, bias = (torch.empty(6, device="meta", requires_grad=True) for _ in range(2))
            mean, var = torch.empty(2, G, device="meta")
            counter = torch.empty((), dtype=torch.int64, device="meta")
            part = slices(4, 6, 20, G, B)
            running = Running(mean, var, momentum, counter)
            y = kernel_calls.normalize(x, part, weight, bias, EPS, running)
            assert "_Normalize" in type(y.grad_fn).__name__ or (G == 7 and B > 1)
            y.backward(torch.empty_like(y))
            assert x.grad is not None
            assert x.grad.shape == x.shape
            if B == 1:
                kernel_calls.normalize_with(x, part, mean, var, weight, bias, EPS).sum().backward()


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("mean", [0.0, 1e4, 1e6])
def test_errors_are_those_of_batch_norm(mean: float, layout: str) -> None:
    """At most twice those of batch_norm on the same statistics, in the layout at hand."""
    memory = LAST[4] if layout == "channels_last" else torch.contiguous_format
    draw = torch.Generator().manual_seed(0)
    x, gy = (torch.randn(4, 8, 32, 32, generator=draw) for _ in range(2))
    x = x + mean

    def errors(function: Any, shape: tuple[int, ...], memory: torch.memory_format) -> list[float]:
        found = []
        for dtype in (torch.float32, torch.float64):
            leaf = x.to(dtype).view(shape).contiguous(memory_format=memory).detach()
            y = function(leaf.requires_grad_())
            y.backward(gy.to(dtype).view(shape).contiguous(memory_format=memory))
            found.append((y.detach().double(), leaf.grad.double()))
        return [(a - b).abs().max().item() for a, b in zip(*found, strict=True)]

    def batch_norm(x: Tensor) -> Tensor:
        return nn.functional.batch_norm(x, None, None, training=True)

    own = errors(batch_norm, x.shape, memory)
    for G in (8, 2, 1, 32, 7):
        ours = errors(lambda t, G=G: F.batch_group_norm(t, G, training=True), x.shape, memory)
        view = (4, G if 8192 % G == 0 else 8, -1, 4)
        same = errors(batch_norm, view, torch.contiguous_format)
        for found, *limits in zip(ours, own, same, strict=True):
            assert found <= 2 * max(limits) + 2e-6, (G, found, limits)


@pytest.mark.parametrize("part", [slices(4, 6, 20, 2), slices(4, 6, 20, 12), slices(4, 6, 20, 7)])
def test_the_four_sweeps(part: Partition) -> None:
    x, gy = torch.randn(2, 4, 6, 5, 4, dtype=torch.float64)
    weight, bias = torch.randn(2, 6, dtype=torch.float64)
    plan = kernel_calls.plan(x, part)
    assert aten.is_eligible(x, plan, weight, bias)
    ours, meaning = kernels.moments(x, plan), definition.moments(x, part)
    torch.testing.assert_close(ours.mean, meaning.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours.var, meaning.var, rtol=1e-12, atol=1e-12)
    mean, rstd = meaning.mean, torch.rsqrt(meaning.var + EPS)
    means = torch.randn(2, part.B, part.G, dtype=torch.float64)
    pairs = [
        (
            kernels.write(x, plan, mean, rstd, weight, bias),
            definition.write(x, part, mean, rstd, weight, bias),
        ),
        *zip(
            kernels.products(gy, x, plan, weight, mean, rstd),
            definition.products(gy, x, part, weight, mean, rstd),
            strict=True,
        ),
        (
            kernels.write_gradient(gy, x, plan, weight, mean, rstd, means),
            definition.write_gradient(gy, x, part, weight, mean, rstd, means),
        ),
    ]
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def reference(x: Tensor, norm: nn.Module, gy: Tensor) -> Tensor:
    with kernels.use("definition"):
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(norm(leaf), leaf, gy)[0]


@pytest.mark.parametrize("G", [2, 6, 7])
def test_hooks_that_hand_back_another_layout(G: int) -> None:
    norm = bgn.BatchGroupNorm2d(6, G, track_running_stats=False).double()
    x, gy = torch.randn(2, 4, 6, 5, 4, dtype=torch.float64)

    def unpack(t: Tensor) -> Tensor:
        return t if t.dim() < 4 else t.contiguous(memory_format=torch.channels_last)

    leaf = x.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, unpack):
        y = norm(leaf)
    assert_close(torch.autograd.grad(y, leaf, gy)[0], reference(x, norm, gy))


def test_hooks_that_hand_back_another_dtype_are_an_error() -> None:
    norm = bgn.BatchGroupNorm2d(6, 2)
    leaf = torch.randn(4, 6, 5, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.double()):
        y = norm(leaf)
    with pytest.raises(RuntimeError, match="saved-tensor hook returned a torch.float64 tensor"):
        y.sum().backward()


def test_batched_and_dual_calls_get_the_definition() -> None:
    norm = bgn.BatchGroupNorm2d(6, 2, track_running_stats=False).double()
    x, gy = torch.randn(2, 4, 6, 5, 4, dtype=torch.float64)
    leaf = x.detach().requires_grad_()
    y = norm(leaf)
    assert "_Normalize" in type(y.grad_fn).__name__
    many = torch.stack([gy, 2 * gy])
    batched = torch.autograd.grad(y, leaf, many, is_grads_batched=True)[0]
    expected = reference(x, norm, gy)
    assert_close(batched, torch.stack([expected, 2 * expected]))
    assert_close(torch.vmap(norm)(torch.stack([x, gy])), torch.stack([norm(x), norm(gy)]))
    _, tangent = torch.func.jvp(norm, (x,), (gy,))
    numeric = (norm(x + 1e-6 * gy) - norm(x - 1e-6 * gy)) / 2e-6
    torch.testing.assert_close(tangent, numeric, rtol=1e-6, atol=1e-6)


def test_second_derivatives() -> None:
    norm = bgn.BatchGroupNorm2d(6, 3, track_running_stats=False).double()
    x = torch.randn(2, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(norm, (x,), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(norm, (x,))


def test_a_compiler_gets_the_definition() -> None:
    norm = bgn.BatchGroupNorm2d(6, 2)
    graphs = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph

    torch.compiler.reset()
    torch.compile(norm, fullgraph=True, backend=keep)(torch.randn(4, 6, 5, 4))
    assert "native_batch_norm" not in graphs[0].code


def test_subclasses_and_other_devices_of_parameters_are_not_eligible() -> None:
    class Own(Tensor):
        pass

    x = torch.randn(4, 6, 5, 4)
    plan = kernel_calls.plan(x, slices(4, 6, 20, 2))
    assert aten.is_eligible(x, plan, torch.ones(6), None)
    assert not aten.is_eligible(x.as_subclass(Own), plan, None, None)
    assert not aten.is_eligible(x, plan, torch.ones(6, device="meta"), None)
    assert not aten.is_eligible(x, plan, torch.ones(6, dtype=torch.float64), None)
    assert not aten.is_eligible(torch._neg_view(x), plan, None, None)
    assert plain_keys("meta") != plain_keys("cpu")


def test_the_choice_of_a_device() -> None:
    assert kernels.devices() == "cpu, cuda, xpu, mps, meta: aten; others: definition"
    with kernels.use("auto"):
        if "cpu" in kernels.BACKENDS:
            assert kernels.devices() == "cpu: cpu; cuda, xpu, mps, meta: aten; others: definition"
        x = torch.empty(4, 6, 5, 4, device="meta", requires_grad=True)
        y = F.batch_group_norm(x, 2, training=True)
        assert type(y.grad_fn).__module__ == aten.__name__ or "_Normalize" in str(y.grad_fn)
    assert "aten" in bgn.info().backends


@pytest.mark.parametrize("backend", ["aten", "definition"])
def test_parameters_of_a_channels_last_input_without_gradient(backend: str) -> None:
    """torch's group_norm ends the process in this backward pass."""
    x = torch.randn(1, 6, 5, 5).contiguous(memory_format=torch.channels_last)
    weight, bias = nn.Parameter(torch.rand(6)), nn.Parameter(torch.rand(6))
    with kernels.use(backend):
        y = F.batch_group_norm(x, 3, training=True, weight=weight, bias=bias)
        found = torch.autograd.grad(y.square().sum(), [weight, bias])
    exact = x.double(), *(t.detach().double().requires_grad_() for t in (weight, bias))
    y = definition.normalize(exact[0], slices(1, 6, 25, 3), *exact[1:], 1e-5)
    for ours, right in zip(found, torch.autograd.grad(y.square().sum(), exact[1:]), strict=True):
        assert_close(ours, right, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positional_norm_sums_gradients_of_parameters_in_float32(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, gy = (torch.randn(8, 16, 28, 28, generator=generator).to(dtype) for _ in range(2))
    gy = gy + 0.5
    norm = bgn.PositionalNorm2d(16, dtype=dtype)
    with kernels.use("aten"):
        norm(x).backward(gy)
    right = definition.positional_gradients(gy.double(), x.double(), norm.weight.double(), 1e-5)
    for parameter, exact in zip((norm.weight, norm.bias), right[1:], strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - exact).abs().max() <= 0.01 * exact.abs().max()

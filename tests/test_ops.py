"""The operators that a compiled graph sees: as torch.library wants them, equal to eager mode."""

from typing import Any

import pytest
import torch
from torch import Tensor

import bgn
from bgn.kernels import cpu, definition
from bgn.partition import channel_groups, slices
from bgn.running import Running
from tests import kernel_calls as fast
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")


PLAIN = (True, 0.0, 0.0, None)  # running statistics move; no renormalization
UNTRACKED = *(None,) * 4, *PLAIN  # running mean and variance, counter, momentum


def arguments(dtype: torch.dtype, layout: str, G: int, B: int, affine: bool) -> tuple[Any, ...]:
    """The operator's arguments, from x to bias and from B to eps."""
    torch.manual_seed(0)
    x = torch.randn(4, 6, 5, 7).to(dtype)
    if layout == "last":
        x = x.to(memory_format=torch.channels_last)
    elif layout == "gaps":
        x = torch.randn(4, 6, 5, 14).to(dtype)[..., ::2]
    weight, bias = (torch.randn(6, requires_grad=True) if affine else None for _ in range(2))
    return x.requires_grad_(), weight, bias, B, G, 6 % G == 0, 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", ["contiguous", "last", "gaps"])
@pytest.mark.parametrize(("G", "B", "affine"), [(2, 1, True), (5, 1, False), (12, 4, True)])
def test_opcheck(dtype: torch.dtype, layout: str, G: int, B: int, affine: bool) -> None:
    given = arguments(dtype, layout, G, B, affine)
    tracked = (torch.zeros(G), torch.ones(G), torch.tensor(3), 0.1 if affine else None)
    share = torch.tensor(0.5) if affine else None
    for moved in (UNTRACKED, (*tracked, *PLAIN), (*tracked, affine, 3.0, 5.0, share)):
        told = (*given[:3], *moved, *given[3:])
        torch.library.opcheck(torch.ops.bgn.normalize.default, told, rtol=2e-2, atol=2e-2)
        y, *saved = torch.ops.bgn.normalize(*told)
        plain = [
            t.detach() if isinstance(t, Tensor) else t
            for t in (torch.randn_like(y), *given[:2], *saved)
        ]
        torch.library.opcheck(torch.ops.bgn.normalize_backward.default, (*plain, *given[3:]))


@pytest.mark.parametrize("layout", ["contiguous", "last", "gaps"])
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_the_same_as_the_eager_path_to_the_bit(dtype: torch.dtype, layout: str) -> None:
    results = []
    for op in (True, False):
        x, weight, bias, B, G, _, eps = arguments(dtype, layout, 5, 2, affine=True)
        if dtype == torch.float64:
            weight, bias = (t.detach().double().requires_grad_() for t in (weight, bias))
        part = slices(4, 6, 35, G, B)
        y = (
            torch.ops.bgn.normalize(x, weight, bias, *UNTRACKED, B, G, False, eps)[0]
            if op
            else fast.normalize(x, part, weight, bias, eps)
        )
        y.backward(torch.ones_like(y).cumsum(0))
        results.append((y, x.grad, weight.grad, bias.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    exact = definition.normalize(
        x.detach().double(), part, weight.detach().double(), bias.detach().double(), eps
    )
    assert_close(results[0][0], exact, dtype)


def test_a_compiled_layer_runs_it_and_an_exported_one_does_not() -> None:
    seen: list[str] = []

    def spy(graph: Any, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    norm, x = bgn.BatchGroupNorm2d(6, 4), torch.randn(2, 6, 5, 5)
    torch.compile(norm, backend=spy, fullgraph=True)(x)
    if not hasattr(torch.compiler, "is_exporting"):
        pytest.skip("this torch does not tell compiling from exporting: the definition is compiled")
    assert any("bgn.normalize" in target for target in seen)
    for training in (True, False):
        exported = torch.export.export(norm.train(training), (x,))
        assert not any("bgn" in str(node.target) for node in exported.graph.nodes)


def test_operators_refuse_what_does_not_fit() -> None:
    x, weight = torch.randn(4, 6, 5, 7), torch.ones(6)
    normalize = torch.ops.bgn.normalize
    for wrong, words in [
        ((x, torch.ones(5), None, 1, 2, True, 1e-5), r"weight has shape \(5,\); expected \(6,\)"),
        ((x, weight, torch.ones(7), 1, 2, True, 1e-5), r"bias has shape \(7,\)"),
        ((x, weight, None, 3, 2, True, 1e-5), "batch_blocks=3 does not divide"),
        ((x, weight, None, 0, 2, True, 1e-5), "B=0 is not positive"),
        ((x, weight, None, 1, 7, True, 1e-5), "G=7 exceeds"),
        ((x, weight, None, 1, 211, False, 1e-5), "G=211 exceeds"),
        ((x, weight, None, 1, 2, True, -1.0), "eps=-1.0 is out of range"),
        ((x, weight.double(), None, 1, 2, True, 1e-5), "weight has dtype torch.float64"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            normalize(*wrong[:3], *UNTRACKED, *wrong[3:])


def statistics(size: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(size, dtype=dtype), torch.ones(size, dtype=dtype), torch.tensor(2)


@pytest.mark.parametrize("momentum", [0.1, 0.0, 1.0, None])
@pytest.mark.parametrize(("G", "B", "entries"), [(2, 1, 2), (2, 2, 6), (5, 2, 5)])
def test_running_statistics_move_as_in_eager_mode(
    momentum: float | None, G: int, B: int, entries: int
) -> None:
    x, weight, bias, *_, whole, eps = arguments(torch.float32, "contiguous", G, B, affine=True)
    part = channel_groups(4, 6, 35, G, B) if whole else slices(4, 6, 35, G, B)
    moved, expected = statistics(entries), statistics(entries)
    before = [t._version for t in moved]
    torch.ops.bgn.normalize(x, weight, bias, *moved, momentum, *PLAIN, B, G, whole, eps)
    mean, var, counter = expected
    fast.normalize(x, part, weight, bias, eps, Running(mean, var, momentum, counter))
    assert all(torch.equal(a, b) for a, b in zip(moved, expected, strict=True))
    assert [t._version for t in moved] == [v + 1 for v in before]  # autograd was told


def test_running_statistics_that_c_cannot_write_to_move_too() -> None:
    x = torch.randn(4, 6, 5, 7).bfloat16()
    mean, var, counter = statistics(4, torch.bfloat16)
    small = torch.tensor(2, dtype=torch.int32)
    moved = mean[::2], var[::2], small, None
    torch.ops.bgn.normalize(x, None, None, *moved, *PLAIN, 1, 2, True, 1e-5)
    exact = statistics(2)
    running = Running(exact[0], exact[1], None, counter)
    definition.normalize(x.float(), slices(4, 6, 35, 2), None, None, 1e-5, running)
    assert_close(mean[::2], exact[0], torch.bfloat16)
    assert_close(var[::2], exact[1], torch.bfloat16)
    assert small == 3


def test_an_empty_batch_is_counted_and_moves_nothing() -> None:
    mean, var, counter = statistics(2)
    x = torch.empty(0, 6, 5, 7, requires_grad=True)
    moved = mean, var, counter, 0.1
    y, *_ = torch.ops.bgn.normalize(x, None, None, *moved, *PLAIN, 1, 2, True, 1e-5)
    y.sum().backward()
    assert y.shape == x.shape
    assert (mean.tolist(), var.tolist(), counter.item()) == ([0, 0], [1, 1], 3)


def test_operators_refuse_running_statistics_that_do_not_fit() -> None:
    mean, var, counter = statistics(2)
    big, one = torch.randn(4, 6, 5, 7), torch.randn(1, 6, 1, 1)
    per_channel = statistics(6)[:2]
    grad = mean.clone().requires_grad_()
    for x, moved, momentum, options, words in [
        (big, (mean, None, counter), 0.1, (2, True), "expected both, or neither"),
        (big, (None, None, counter), 0.1, (2, True), "expected both, or neither"),
        (big, (mean, var[:1], counter), 0.1, (2, True), r"running_var has shape \(1,\)"),
        (big, (*per_channel, None), 0.1, (5, False), r"shape \(6,\); expected \(5,\)"),
        (
            big,
            (mean.double(), var, counter),
            0.1,
            (2, True),
            "running_mean has dtype torch.float64",
        ),
        (big, (mean, grad, counter), 0.1, (2, True), "running_var.requires_grad=True"),
        (big, (mean, var, torch.zeros(2).long()), 0.1, (2, True), "expected one integer"),
        (big, (mean, var, torch.tensor(0.5)), 0.1, (2, True), "expected one integer"),
        (big, (mean, var, counter), 1.5, (2, True), "momentum=1.5 is out of range"),
        (big, (mean, var, torch.tensor(-3)), None, (2, True), "counter of batches below 0"),
        (one, (*per_channel, counter), 0.1, (6, True), "leaves 1 value per statistic"),
        (one[:0], (mean[:1], var[:1], counter), 0.1, (2, True), r"running_mean has shape \(1,\)"),
    ]:
        with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
            torch.ops.bgn.normalize(x, None, None, *moved, momentum, *PLAIN, 1, *options, 1e-5)
    assert (mean.tolist(), var.tolist(), counter.item()) == ([0, 0], [1, 1], 2)


def test_saved_tensor_hooks_see_what_a_call_of_the_operator_saves() -> None:
    x, weight, bias, *rest = arguments(torch.float64, "contiguous", 2, 1, affine=True)
    weight, bias = weight.double(), bias.double()
    expected = torch.autograd.grad(
        torch.ops.bgn.normalize(x, weight, bias, *UNTRACKED, *rest)[0].pow(3).sum(), x
    )[0]
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = torch.ops.bgn.normalize(x, weight, bias, *UNTRACKED, *rest)[0]
    assert [tuple(t.shape) for t in packed] == [(4, 6, 5, 7), (6,), (1, 2), (1, 2), (0,)]
    assert_close(torch.autograd.grad(y.pow(3).sum(), x)[0], expected)


def test_operators_refuse_freed_memory() -> None:
    x = torch.randn(4, 6, 5, 7)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="dense tensors"):
        torch.ops.bgn.normalize(x, None, None, *UNTRACKED, 1, 2, True, 1e-5)


@pytest.mark.parametrize(("G", "whole"), [(2, True), (5, False)])
def test_operators_can_be_differentiated_twice(G: int, whole: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.bgn.normalize(x, weight, bias, *UNTRACKED, 1, G, whole, 1e-5)[0]  # type: ignore

    assert torch.autograd.gradcheck(call, (x, weight, bias))
    assert torch.autograd.gradgradcheck(call, (x, weight, bias))


ACTS = [("relu", False), ("relu", True), ("leaky_relu", True), ("silu", False), ("identity", True)]


@pytest.mark.parametrize(("act", "residual"), ACTS)
@pytest.mark.parametrize("layout", ["contiguous", "last"])
def test_opcheck_with_an_activation(act: str, residual: bool, layout: str) -> None:
    x, weight, bias, *options = arguments(torch.float32, layout, 2, 1, affine=True)
    r = torch.randn_like(x).requires_grad_() if residual else None
    told = x, weight, bias, *UNTRACKED, *options, r, act, 0.2
    torch.library.opcheck(torch.ops.bgn.normalize.default, told)
    y, *saved = (t.detach() for t in torch.ops.bgn.normalize(*told))
    plain = (t.detach() for t in (torch.randn_like(y), x, weight))
    kept = bias.detach(), y if residual else None, residual
    told = *plain, *saved, *options, *kept, act, 0.2
    torch.library.opcheck(torch.ops.bgn.normalize_backward.default, told)


@pytest.mark.parametrize(("act", "residual"), ACTS)
def test_operators_with_an_activation_can_be_differentiated_twice(act: str, residual: bool) -> None:
    torch.manual_seed(0)
    shape = 4, 6, 2, 3
    tensors = [torch.randn(size, dtype=torch.float64) for size in (shape, 6, 6, shape)]
    inputs = [t.requires_grad_() for t in tensors[: 3 + residual]]

    def call(x: Tensor, weight: Tensor, bias: Tensor, r: Tensor | None = None) -> Tensor:
        options = 1, 2, True, 1e-5
        return torch.ops.bgn.normalize(x, weight, bias, *UNTRACKED, *options, r, act, 0.2)[0]  # type: ignore

    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_operators_refuse_activations_that_do_not_fit() -> None:
    x, options = torch.randn(4, 6, 5, 7), (1, 2, True, 1e-5)
    for follows, words in [
        ((None, "tanh", 0.0), "act='tanh'"),
        ((x, "silu", 0.0), "residual with act='silu'; expected relu"),
        ((x[:2], "relu", 0.0), r"residual is torch.float32 \(2, 6, 5, 7\); expected .* as x"),
        ((x.double(), "relu", 0.0), "residual is torch.float64"),
        ((x, "", 0.0), "residual without act"),
        ((None, "leaky_relu", -0.5), "slope=-0.5 with act='leaky_relu'; expected at least 0"),
    ]:
        with pytest.raises(ValueError, match=words):
            torch.ops.bgn.normalize(x, None, None, *UNTRACKED, *options, *follows)
    freed = torch.randn_like(x)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="dense tensors"):
        torch.ops.bgn.normalize(x, None, None, *UNTRACKED, *options, freed, "relu", 0.0)
    _, *saved = torch.ops.bgn.normalize(x, None, None, *UNTRACKED, *options, x, "relu", 0.0)
    with pytest.raises(ValueError, match="residual without act"):
        torch.ops.bgn.normalize_backward(x, x, None, *saved, *options, None, None, True, "", 0.0)
    with pytest.raises(ValueError, match="y is None; expected the output"):
        torch.ops.bgn.normalize_backward(
            x, x, None, *saved, *options, None, None, True, "relu", 0.0
        )

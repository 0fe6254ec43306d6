"""The operators that a compiled graph sees: as torch.library wants them, equal to eager mode."""

from typing import Any

import pytest
import torch
from torch import Tensor

import bgn
from bgn.kernels import cpu, definition
from bgn.partition import slices
from tests import kernel_calls as fast
from tests.tolerance import assert_close

pytestmark = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")


def arguments(dtype: torch.dtype, layout: str, G: int, B: int, affine: bool) -> tuple[Any, ...]:
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
    torch.library.opcheck(torch.ops.bgn.normalize.default, given, rtol=2e-2, atol=2e-2)
    y, mean, _, rstd = torch.ops.bgn.normalize(*given)
    plain = [
        t.detach() if isinstance(t, Tensor) else t
        for t in (torch.randn_like(y), *given[:2], mean, rstd)
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
            torch.ops.bgn.normalize(x, weight, bias, B, G, False, eps)[0]
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
        ((x, weight.double(), None, 1, 2, True, 1e-5), "weight has dtype torch.float64"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            normalize(*wrong)


def test_operators_refuse_freed_memory() -> None:
    x = torch.randn(4, 6, 5, 7)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="dense tensors"):
        torch.ops.bgn.normalize(x, None, None, 1, 2, True, 1e-5)


@pytest.mark.parametrize(("G", "whole"), [(2, True), (5, False)])
def test_operators_can_be_differentiated_twice(G: int, whole: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 2, 3, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.randn(6, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return torch.ops.bgn.normalize(x, weight, bias, 1, G, whole, 1e-5)[0]  # type: ignore

    assert torch.autograd.gradcheck(call, (x, weight, bias))
    assert torch.autograd.gradgradcheck(call, (x, weight, bias))

"""The operators that a compiled graph sees: as torch.library wants them, and equal to the eager path."""

from typing import Any

import pytest
import torch
from torch import Tensor

import bgn
from bgn.kernels import cpu, definition
from bgn.partition import slices
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
    torch.library.opcheck(torch.ops.bgn.normalise.default, given, rtol=2e-2, atol=2e-2)
    y, mean, _, rstd = torch.ops.bgn.normalise(*given)
    plain = [
        t.detach() if isinstance(t, Tensor) else t
        for t in (torch.randn_like(y), *given[:2], mean, rstd)
    ]
    torch.library.opcheck(torch.ops.bgn.normalise_backward.default, (*plain, G, given[5]))


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
            torch.ops.bgn.normalise(x, weight, bias, B, G, False, eps)[0]
            if op
            else cpu.train(x, part, weight, bias, eps)
        )
        y.backward(torch.ones_like(y).cumsum(0))
        results.append((y, x.grad, weight.grad, bias.grad))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    exact = definition.train(
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
    assert any("bgn.normalise" in target for target in seen)
    for training in (True, False):
        exported = torch.export.export(norm.train(training), (x,))
        assert not any("bgn" in str(node.target) for node in exported.graph.nodes)

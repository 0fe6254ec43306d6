"""NaN and infinity: the same elements are spoiled as with torch's batch_norm, and no others."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as torch_f

from bgn import functional as F
from tests.test_precision import DTYPES, LAYOUTS, C, N, made, parameters, run


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("G", [C, 2, 1, 24])
def test_the_same_elements_are_nan_as_with_batch_norm(G: int, bad: float, layout: str) -> None:
    x, gy, eps = made("ordinary", torch.float32, 1)
    x[2, 3, 4, 5] = bad
    view = (N, G, -1)
    running, theirs = (torch.zeros(2, G) for _ in range(2))

    def ours(x: Tensor) -> Tensor:
        return F.batch_group_norm(x, G, *running, training=True, momentum=1.0, eps=eps)

    found = run(ours, x.to(memory_format=LAYOUTS[layout]), gy, None)
    exact = run(
        lambda x: torch_f.batch_norm(x, *theirs, training=True, momentum=1.0, eps=eps),
        x.view(view),
        gy.view(view),
        None,
    )
    for name, expected in exact.items():
        assert torch.equal(found[name].isnan(), expected.view(x.shape).isnan()), name
    assert torch.equal(running.nan_to_num(7).isfinite(), theirs.nan_to_num(7).isfinite())
    assert torch.equal(running.isnan(), theirs.isnan())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("needed", ["all", "input"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_frozen_statistics_keep_x_out_of_its_gradient(
    dtype: torch.dtype, needed: str, bad: float, layout: str
) -> None:
    """Eval mode: gx = gy * rstd * w, also where x is not finite, and -0 stays -0."""
    x, gy, eps = made("ordinary", dtype, 1)
    x[2, 3, 4, 5] = bad
    gy[0, 1, 2, :2] = torch.tensor([-0.0, 0.0])
    gy[0, 0] = bad
    mean, var = torch.linspace(-1, 1, C), torch.linspace(0.5, 2, C)
    weight, bias = parameters(dtype)
    for t in weight, bias:
        t.requires_grad_(needed == "all")
    grads = []
    for function, fmt in (
        (lambda x: F.batch_group_norm(x, C, mean, var, weight, bias, eps=eps), LAYOUTS[layout]),
        (
            lambda x: torch_f.batch_norm(x.float(), mean, var, weight, bias, eps=eps).to(dtype),
            torch.contiguous_format,
        ),
    ):
        leaf = x.to(memory_format=fmt).requires_grad_()
        (gx,) = torch.autograd.grad(function(leaf), leaf, gy.to(memory_format=fmt))
        grads.append(gx)
    found, expected = grads
    assert torch.equal(found.isnan(), expected.isnan())
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    assert torch.equal(found.signbit()[finite], expected.signbit()[finite])
    torch.testing.assert_close(
        found[finite], expected[finite], rtol=2 * torch.finfo(dtype).eps, atol=0
    )

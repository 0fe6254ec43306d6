"""Every normalizer and its derivatives against its definition, on drawn shapes and layouts."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bgn import functional as F
from bgn import kernels
from tests import oracle
from tests.normalizers import NORMALIZERS, C
from tests.tolerance import TOLERANCES, assert_close


@pytest.fixture(params=kernels.BACKENDS, autouse=True, scope="module")
def backend(request: Any) -> Iterator[None]:
    """Every test of this file holds for every backend."""
    with kernels.use(request.param):
        yield


FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@st.composite
def feature_maps(draw: st.DrawFn, min_N: int = 1, dims: tuple[int, int] = (2, 5)) -> Tensor:
    """Tensors of 2 to 5 dimensions, in any dtype, contiguous, channels_last or with gaps."""
    dim = draw(st.integers(*dims))
    shape = [
        draw(st.integers(min_N, 5)),
        draw(st.integers(1, 9)),
        *(draw(st.integers(1, 5)) for _ in range(dim - 2)),
    ]
    dtype = draw(st.sampled_from(list(TOLERANCES)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    layout = draw(st.sampled_from(["contiguous", "channels_last", "gaps", "expanded"]))
    if layout == "gaps":
        shape[-1] *= 2
    x = torch.randn(shape, dtype=torch.float64, generator=generator) * 2 + 1
    x = x.to(dtype)
    if layout == "gaps":
        return x[..., ::2]
    if layout == "expanded":
        return torch.cat([x, x * 2])[:1].expand(shape[0] + 1, *shape[1:])
    return x.to(memory_format=FORMATS[dim]) if layout == "channels_last" and dim in FORMATS else x


def affine(x: Tensor, data: st.DataObject) -> tuple[Tensor | None, Tensor | None]:
    generator = torch.Generator().manual_seed(7)
    options: Any = {"generator": generator, "dtype": torch.promote_types(x.dtype, torch.float32)}
    weight = torch.randn(x.shape[1], **options) if data.draw(st.booleans()) else None
    bias = torch.randn(x.shape[1], **options) if data.draw(st.booleans()) else None
    return weight, bias


def assert_like(y: Tensor, x: Tensor, expected: Tensor) -> None:
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    if x.dim() in FORMATS and x.is_contiguous(memory_format=FORMATS[x.dim()]):
        assert y.is_contiguous(memory_format=FORMATS[x.dim()])
    elif x.is_contiguous():
        assert y.is_contiguous()
    atol = TOLERANCES[x.dtype]["atol"]
    # aten alone: a group may be constant, and torch computes x / sqrt(eps) - mean / sqrt(eps)
    if x.stride(0) == 0 and "cpu" in kernels.backends.active.aten:
        wide = torch.promote_types(x.dtype, torch.float32)
        atol = max(atol, 4 * torch.finfo(wide).eps * x.abs().max().item() * 1e-5**-0.5)
    assert_close(y, expected, x.dtype, atol=atol)


def draw_groups(x: Tensor, data: st.DataObject) -> int:
    """Any G up to D, the special ones more often."""
    D = x[0].numel()
    return data.draw(
        st.one_of(st.sampled_from(sorted({1, min(x.shape[1], D), D})), st.integers(1, D))
    )


@settings(max_examples=300)
@given(x=feature_maps(min_N=2), data=st.data())
def test_bgn_is_the_papers_definition(x: Tensor, data: st.DataObject) -> None:
    G = draw_groups(x, data)
    weight, bias = affine(x, data)
    y = F.batch_group_norm(x, G, weight=weight, bias=bias, training=True)
    assert_like(y, x, oracle.slices_of_features(x, G, 1, weight, bias))


@settings(max_examples=100)
@given(x=feature_maps(), data=st.data())
def test_group_norm_is_its_definition(x: Tensor, data: st.DataObject) -> None:
    G = data.draw(st.integers(1, max(x[0].numel() // 2, 1)))
    if x[0].numel() == G:
        return
    weight, bias = affine(x, data)
    y = F.group_norm(x, G, weight, bias)
    assert_like(y, x, oracle.slices_of_features(x, G, x.shape[0], weight, bias))


@settings(max_examples=100)
@given(x=feature_maps(min_N=2, dims=(4, 4)), data=st.data())
def test_gbgn_is_its_definition(x: Tensor, data: st.DataObject) -> None:
    N, channels = x.shape[:2]
    blocks = data.draw(st.sampled_from([b for b in range(1, N + 1) if N % b == 0 and N // b > 1]))
    G = data.draw(st.integers(1, 12))
    count = channels // max(channels // G, 1)
    groups = [list(range(g * channels // count, (g + 1) * channels // count)) for g in range(count)]
    weight, bias = affine(x, data)
    y = F.general_batch_group_norm(x, G, blocks, weight=weight, bias=bias, training=True)
    assert_like(y, x, oracle.groups_of_channels(x, groups, blocks, weight, bias))


@settings(max_examples=60)
@given(x=feature_maps(dims=(4, 4)).filter(lambda x: x.shape[1] > 1), data=st.data())
def test_pn_is_its_definition(x: Tensor, data: st.DataObject) -> None:
    weight, bias = affine(x, data)
    assert_like(F.positional_norm(x, weight, bias), x, oracle.positions(x, weight, bias))


@settings(max_examples=100)
@given(x=feature_maps(), data=st.data())
def test_eval_uses_the_running_statistics_of_each_slice(x: Tensor, data: st.DataObject) -> None:
    G = draw_groups(x, data)
    D = x[0].numel()
    wide = torch.promote_types(x.dtype, torch.float32)
    mean, var = (torch.linspace(a, b, G, dtype=wide) for a, b in ((-1, 1), (0.5, 2)))
    y = F.batch_group_norm(x, G, mean, var)
    flat = x.detach().double().contiguous().reshape(x.shape[0], D)
    for g in range(G):
        columns = slice(g * D // G, (g + 1) * D // G)
        flat[:, columns] = (flat[:, columns] - mean[g].double()) / (var[g].double() + 1e-5).sqrt()
    assert_like(y, x, flat.reshape(x.shape))


@pytest.mark.parametrize("affine", ["affine", "plain"])
@pytest.mark.parametrize("name", NORMALIZERS)
def test_derivatives(name: str, affine: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, C, 2, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(C, dtype=torch.float64, requires_grad=True) if affine == "affine" else None
    bias = torch.randn(C, dtype=torch.float64, requires_grad=True) if affine == "affine" else None
    assert torch.autograd.gradcheck(NORMALIZERS[name], (x, weight, bias), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(NORMALIZERS[name], (x, weight, bias))


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("shape", [(0, C, 4, 4), (4, C, 0, 4)])
def test_empty_passes_through_with_gradients(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(C, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(C, dtype=torch.float64, requires_grad=True)
    y = NORMALIZERS[name](x, weight, bias)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert weight.grad is not None
    assert bias.grad is not None
    assert torch.equal(weight.grad, torch.zeros(C, dtype=torch.float64))
    assert torch.equal(bias.grad, torch.zeros(C, dtype=torch.float64))

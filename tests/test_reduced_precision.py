"""Statistics of very many elements, and reduced precision at the edges only."""

import pytest
import torch
from torch import Tensor, nn

import bgn
from tests.tolerance import assert_close


def errors(layer: nn.Module, x: Tensor, exact: Tensor) -> tuple[float, float]:
    """The worst error of a mean in standard deviations, and relative error of a variance."""
    layer(x)
    mean, var = exact.mean(0), exact.var(0)
    buffers = dict(layer.named_buffers())
    of_mean = ((buffers["running_mean"].double() - mean).abs() / var.sqrt()).max()
    of_var = ((buffers["running_var"].double() - var).abs() / var).max()
    return of_mean.item(), of_var.item()


def two_ulp(exact: Tensor) -> tuple[float, float]:
    """What two units in the last place of a float32 mean and variance are in those errors."""
    mean, var = exact.mean(0), exact.var(0)
    spacing = torch.finfo(torch.float32).eps * 2 ** mean.abs().log2().floor()
    return (2 * spacing / var.sqrt()).max().item(), 2 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_forty_million_elements_in_one_group(offset: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 10, 1000, 1000) + offset
    rows = x.double().reshape(-1, 1)
    ours = errors(bgn.BatchGroupNorm2d(10, 1, momentum=1.0), x, rows)
    theirs = errors(nn.BatchNorm1d(1, momentum=1.0), x.reshape(4, 1, -1), rows)
    assert all(a <= max(2 * b, ulp) for a, b, ulp in zip(ours, theirs, two_ulp(rows), strict=True))


@pytest.mark.parametrize("G", [1, 5, 8, 24])
def test_output_at_a_large_mean(G: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8, 12, 12) + 1e4
    exact = bgn.functional.batch_group_norm(x.double(), G, training=True)
    error = (bgn.functional.batch_group_norm(x, G, training=True).double() - exact).abs().max()
    # the mean itself can be off by half a unit in the last place of 1e4
    assert error < 2 * 0.5 * torch.finfo(torch.float32).eps * 2**13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", bgn.factory.NAMES)
def test_half_precision_input_has_float32_statistics(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(4, 32, 8, 8) * 3 + 10).to(dtype)
    norm = bgn.norm_layer(name, num_groups=2 if name == "bgn" else None)(32)
    exact = bgn.norm_layer(name, num_groups=2 if name == "bgn" else None)(32).double()
    y = norm(x)
    assert y.dtype == dtype
    assert_close(y, exact(x.double()), dtype)
    for key, value in norm.named_buffers():
        assert_close(value, dict(exact.named_buffers())[key], torch.float32)


def test_a_layer_in_bfloat16_stays_in_bfloat16() -> None:
    norm = bgn.BatchGroupNorm2d(8, 3).bfloat16()
    x = torch.randn(4, 8, 6, 6, dtype=torch.bfloat16)
    assert norm(x).dtype == norm.running_mean.dtype == torch.bfloat16
    wide = copy_in_float32(norm)
    assert_close(norm.eval()(x), wide(x.float()), torch.bfloat16)


def copy_in_float32(norm: bgn.BatchGroupNorm2d) -> nn.Module:
    twin = bgn.BatchGroupNorm2d(norm.num_features, norm.num_groups).eval()
    twin.load_state_dict(norm.state_dict())
    return twin


@pytest.mark.parametrize("training", [True, False])
def test_autocast(training: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 2)).train(training)
    x = torch.randn(2, 3, 8, 8)
    exact = model(x)
    for norm in [m for m in model if isinstance(m, bgn.BatchGroupNorm2d)]:
        norm.reset_running_stats()
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    assert y.dtype == torch.bfloat16
    assert_close(y, exact, torch.bfloat16, atol=5e-2)
    y.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())

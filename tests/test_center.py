"""A mean per channel and a variance per group of channels."""

import copy

import pytest
import torch
from torch import Tensor, nn

import bgn
from bgn import kernels
from tests.tolerance import assert_close

C = 6


def expected(x: Tensor, G: int, weight: Tensor, bias: Tensor) -> Tensor:
    others = [i for i in range(x.dim()) if i != 1]
    centered = x - x.mean(others, keepdim=True)
    var = centered.square().mean(others).view(G, -1).mean(1).repeat_interleave(C // G)
    shape = 1, C, *[1] * (x.dim() - 2)
    scale, shift = weight / (var + 1e-5).sqrt(), bias
    return centered * scale.view(shape) + shift.view(shape)


def layer_of(G: int) -> bgn.BatchGroupNorm2d:
    layer = bgn.BatchGroupNorm2d(C, G, center="channel", dtype=torch.float64)
    assert layer.weight is not None
    assert layer.bias is not None
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("backend", kernels.BACKENDS)
@pytest.mark.parametrize("G", [1, 2, 3, C])
def test_output_and_gradients_by_the_formula(G: int, backend: str, last: bool) -> None:
    layer, x = layer_of(G), 3 * torch.randn(4, C, 5, 3).double() + 7
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    of, gy = (x, layer.weight, layer.bias), torch.randn(4, C, 5, 3).double()
    with kernels.use(backend):
        y = layer(x)
        ours = torch.autograd.grad(y, of, gy)
    theirs = expected(x, G, layer.weight, layer.bias)
    assert_close(y, theirs)
    for a, b in zip(ours, torch.autograd.grad(theirs, of, gy), strict=True):
        assert_close(a, b)


@pytest.mark.parametrize("G", [1, 2])
def test_derivatives_of_two_orders(G: int) -> None:
    layer, x = layer_of(G), torch.randn(3, C, 3, 2).double().requires_grad_()

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        own = {"weight": weight, "bias": bias}
        found: Tensor = torch.func.functional_call(layer, own, (x,))
        return found

    given = (x, layer.weight, layer.bias)
    assert torch.autograd.gradcheck(call, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, given, fast_mode=True)


def test_with_a_group_per_channel_it_is_batch_norm() -> None:
    layer, theirs = layer_of(C), nn.BatchNorm2d(C, dtype=torch.float64)
    theirs.load_state_dict(layer.state_dict())
    for _ in range(3):
        x = torch.randn(4, C, 5, 3).double()
        assert_close(layer(x), theirs(x))
    assert theirs.running_mean is not None
    assert theirs.running_var is not None
    assert_close(layer.running_mean, theirs.running_mean)
    assert_close(layer.running_var, theirs.running_var)
    assert_close(layer.eval()(x), theirs.eval()(x))


def test_running_statistics_are_means_of_channels_and_variances_of_groups() -> None:
    layer, x = layer_of(2), torch.randn(4, C, 5, 3).double()
    layer.momentum = 1.0
    layer(x)
    assert_close(layer.running_mean, x.mean((0, 2, 3)))
    assert_close(layer.running_var, x.var((0, 2, 3)).view(2, 3).mean(1))
    y = layer.eval()(x)
    others = (0, 2, 3)
    assert_close(y.mean(others), layer.bias)


@pytest.mark.parametrize("N", [6, 7])
def test_blocks(N: int) -> None:
    layer = layer_of(2)
    blocks = bgn.BatchGroupNorm2d(C, 2, center="channel", batch_blocks=3, dtype=torch.float64)
    blocks.load_state_dict(layer.state_dict())
    x = torch.randn(N, C, 5, 3).double()
    parts = x.split(-(-N // 3))
    assert_close(blocks(x), torch.cat([copy.deepcopy(layer)(part) for part in parts]))


@pytest.mark.parametrize("G", [1, 2, 4])
def test_conversion_is_exact_and_folds(G: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).double().eval()
    for tensor in (model[1].running_mean, model[1].weight, model[1].bias):
        nn.init.normal_(tensor)
    nn.init.uniform_(model[1].running_var, 0.5, 2.0)
    x = torch.randn(4, 3, 9, 9).double()
    before, mean = model(x), model[1].running_mean.clone()
    bgn.convert(model, num_groups=G, center="channel")
    assert_close(model(x), before)
    assert torch.equal(model[1].running_mean, mean)  # a mean per channel stays
    assert model[1].running_var.shape == (G,)
    assert_close(bgn.fold(model)(x), before)
    plain = bgn.convert(copy.deepcopy(model), num_groups=G, center="group")
    assert_close(plain(x), before)
    assert plain[1].running_mean.shape == (G,)
    assert isinstance(bgn.convert(model, "bn")[1], nn.BatchNorm2d)
    assert_close(model(x), before)


def test_recalibration() -> None:
    layer, batches = layer_of(2), [torch.randn(n, C, 5, 3).double() + n for n in (4, 2)]
    bgn.recalibrate(layer, batches)
    x = torch.cat(batches)
    assert_close(layer.running_mean, x.mean((0, 2, 3)))
    assert_close(layer.running_var, x.var((0, 2, 3)).view(2, 3).mean(1))


def test_groups_that_a_batch_decides() -> None:
    layer = bgn.BatchGroupNorm2d(8, "auto", center="channel")
    x = torch.randn(2, 8, 2, 2)
    layer(x)
    assert layer.num_groups == 4
    assert layer.running_mean.shape == layer.running_var.shape == (8,)  # type: ignore[union-attr]
    fresh = bgn.BatchGroupNorm2d(8, "auto", center="channel")
    fresh.load_state_dict(layer.state_dict())
    assert_close(fresh.eval()(x), layer.eval()(x))


def test_one_value_per_mean_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves 1 value per statistic"):
        bgn.BatchGroupNorm1d(C, 1, center="channel")(torch.randn(1, C))


def test_compiled_and_exported() -> None:
    torch._dynamo.reset()
    layer = layer_of(2)
    twin = copy.deepcopy(layer)
    x = torch.randn(4, C, 5, 3).double()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), twin(x))
    assert_close(layer.running_var, twin.running_var)
    exported = torch.export.export(twin.eval(), (x,))
    assert_close(exported.module()(x), twin(x))


def test_losing_the_means_per_channel_gets_a_warning() -> None:
    model = nn.Sequential(bgn.BatchGroupNorm2d(8, 4, center="channel"))
    with pytest.warns(UserWarning, match=r"channels share a mean in training.*: 0$"):
        bgn.convert(model, "gbgn", num_groups=4)


def test_one_value_a_channel_is_refused_by_what_helps() -> None:
    layer = bgn.BatchGroupNorm2d(8, 2, center="channel")
    with pytest.raises(ValueError, match=r"a mean per channel leaves 1 .*: a larger batch, or"):
        layer(torch.randn(1, 8, 1, 1))

"""Layers of other people's making: converted, or refused by name before anything is changed."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import bgn
from tests.test_convert import Residual, trained, x
from tests.tolerance import assert_close


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight

    def right_inverse(self, value: Tensor) -> Tensor:
        return value / 2


class OneWay(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


def test_parametrizations_survive_or_are_refused() -> None:
    model = trained(Residual().stem)
    parametrize.register_parametrization(model[1], "weight", Doubled())
    original = model[1].parametrizations.weight.original
    before = model(x)
    bgn.convert(model, num_groups=4)
    assert model[1].parametrizations.weight.original is original
    assert_close(model(x), before)
    model = trained(Residual().stem)
    parametrize.register_parametrization(model[1], "weight", OneWay())
    with pytest.raises(
        ValueError,
        match="the parametrization of its weight cannot take the new values: .*right_inverse",
    ):
        bgn.convert(model, num_groups=4)


class Custom(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class Renamed(nn.BatchNorm2d):
    """Only other defaults."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=0.01)


def test_subclasses_are_handled_or_refused_by_name() -> None:
    with pytest.raises(
        ValueError,
        match=r"1 \(Custom\): its class tests.test_support.Custom has a forward of its own",
    ):
        bgn.convert(nn.Sequential(nn.Conv2d(3, 4, 3), Custom(4)), num_groups=2)
    renamed = bgn.convert(nn.Sequential(Renamed(4)), num_groups=2)
    assert renamed[0].momentum == 0.01
    with pytest.raises(ValueError, match="it is lazy; run a batch"):
        bgn.convert(nn.Sequential(nn.LazyBatchNorm2d()), num_groups=2)
    with pytest.raises(ValueError, match="it is lazy; run a batch"):
        bgn.convert(nn.Sequential(nn.LazyBatchNorm2d()), batch_size=2)
    scripted = nn.Sequential(torch.jit.script(nn.BatchNorm2d(4)))
    with pytest.raises(ValueError, match="has no normalizer|ScriptModule"):
        bgn.convert(scripted, num_groups=2)


def test_quantized_modules_are_refused() -> None:
    qat = pytest.importorskip("torch.ao.nn.intrinsic.qat")
    import torch.ao.quantization as quantization

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fused = qat.ConvBn2d(3, 4, 3, qconfig=quantization.get_default_qat_qconfig("x86"))
    with pytest.raises(ValueError, match=r"0.bn .*: it is part of the quantized or fused ConvBn2d"):
        bgn.convert(nn.Sequential(fused), num_groups=2)


def test_sync_batch_norm_is_converted_with_a_word() -> None:
    model: Any = nn.Sequential(nn.Conv3d(3, 4, 1), nn.SyncBatchNorm(4)).eval()
    batch = torch.randn(2, 3, 4, 4, 4)
    before = model(batch)
    with pytest.warns(UserWarning, match="no longer synchronized between processes: 1"):
        bgn.convert(model, num_groups=2)
    assert type(model[1]) is bgn.BatchGroupNorm3d
    assert_close(model(batch), before)


class FrozenBatchNorm2d(nn.Module):
    """As in torchvision: everything is a buffer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.eps = 1e-5
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels, dtype=torch.float64) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        buffers: Any = self
        scale = buffers.weight * (buffers.running_var + self.eps).rsqrt()
        shift = buffers.bias - buffers.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)


def test_a_detectors_frozen_batch_norm_becomes_trainable() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), FrozenBatchNorm2d(4)).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    before = model(x)
    bgn.convert(model, num_groups=2, optimizer=optimizer)
    assert_close(model.eval()(x), before)
    assert model[1].weight.requires_grad
    trained_now = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in model.parameters()} == trained_now


def test_tied_parameters_with_other_statistics_are_refused() -> None:
    a, b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    b.weight = a.weight
    with pytest.raises(ValueError, match="1: it shares a parameter with 0, but not its statistics"):
        bgn.convert(nn.Sequential(a, b), num_groups=2)


def test_tied_parameters_of_frozen_and_skipped_layers_are_refused() -> None:
    a, b = nn.BatchNorm2d(4), nn.BatchNorm2d(4)
    b.weight = a.weight
    model = nn.Sequential(a, b)
    with pytest.raises(ValueError, match="0: it shares a parameter with 1"):
        bgn.convert(model, num_groups=lambda layer: 2 if layer is a else None)
    with pytest.raises(ValueError, match="0: it shares a parameter with 1"):
        bgn.convert(bgn.freeze(model), num_groups=2)


def test_a_layer_held_outside_of_the_modules_is_refused() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    model.aside = [model[1]]
    with pytest.raises(ValueError, match="1: the model also holds it in its attribute aside"):
        bgn.convert(model, num_groups=2)
    model = nn.Sequential(nn.BatchNorm2d(4))
    model[0].forward = lambda x: x
    with pytest.raises(ValueError, match="0 .*has a forward of its own"):
        bgn.convert(model, num_groups=2)


class Positive(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return nn.functional.softplus(value)

    def right_inverse(self, value: Tensor) -> Tensor:
        if (value <= 0).any():
            raise ValueError("must be positive")
        return torch.expm1(value).log()


class Unit(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return value / value.norm()

    def right_inverse(self, value: Tensor) -> Tensor:
        return value


@pytest.mark.parametrize(
    ("step", "words"),
    [(Positive(), "must be positive"), (Unit(), "does not give the new values back")],
)
def test_a_parametrization_that_cannot_follow_changes_nothing(step: nn.Module, words: str) -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)))
    with torch.no_grad():
        model[2].bias.fill_(0.1)
        model[2].running_mean.copy_(torch.tensor([-5.0, 5.0, -5.0, 5.0]))
    parametrize.register_parametrization(model[2], "bias", step)
    before = model(x)
    with pytest.raises(ValueError, match=words):
        bgn.convert(model, num_groups=2)
    assert torch.equal(model(x), before)


class OwnTrain(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> Any:  # noqa: ARG002
        return super().train(False)


def test_what_would_be_lost_is_refused() -> None:
    with pytest.raises(ValueError, match="has a train or eval of its own"):
        bgn.convert(nn.Sequential(OwnTrain(4)), num_groups=2)
    model = nn.Sequential(nn.BatchNorm2d(4))
    model[0].register_buffer("extra", torch.ones(1))
    with pytest.raises(ValueError, match="it holds extra, which a normalizer does not have"):
        bgn.convert(model, num_groups=2)


def test_sync_batch_norm_behind_linear_layers_is_one_dimensional() -> None:
    with pytest.warns(UserWarning, match="no longer synchronized"):
        model = bgn.convert(nn.Sequential(nn.Linear(3, 4), nn.SyncBatchNorm(4)), num_groups=2)
    assert model(torch.randn(3, 3)).shape == (3, 4)


def test_data_parallel_is_refused() -> None:
    class Fake(nn.parallel.DistributedDataParallel):
        def __init__(self) -> None:
            nn.Module.__init__(self)

    with pytest.raises(TypeError, match="convert model.module first"):
        bgn.convert(nn.Sequential(Fake()), num_groups=1)

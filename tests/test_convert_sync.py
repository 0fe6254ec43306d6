"""Conversion to statistics over all processes: what is converted, what stays, what is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import bgn
from bgn.surgery.mixin import parts
from tests.tolerance import assert_close

x = torch.randn(4, 3, 6, 6, dtype=torch.float64)


def network(norm: nn.Module) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm).double()


class Custom(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).relu()


class Identity(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight


def test_a_forward_of_its_own_is_refused() -> None:
    model = network(Custom(8))
    with pytest.raises(ValueError, match=r"1: its class .*Custom has a forward of its own"):
        bgn.convert_sync(model)
    assert type(model[1]) is Custom


def test_a_parametrized_layer_is_refused() -> None:
    model = network(nn.BatchNorm2d(8))
    parametrize.register_parametrization(model[1], "weight", Identity())
    with pytest.raises(ValueError, match="1: it holds parametrizations, which would be lost"):
        bgn.convert_sync(model)


def test_frozen_layers_stay_frozen() -> None:
    model = bgn.freeze(network(nn.BatchNorm2d(8)))
    before = model.train()(x)
    layer = model[1]
    assert bgn.convert_sync(model)[1] is layer
    assert_close(model.train()(x), before)


def test_an_activation_inside_of_the_layer_stays() -> None:
    model = network(nn.BatchNorm2d(8))
    activated = bgn.surgery.support.Activated
    model[1].__class__ = bgn.surgery.mixin.mixed(activated, nn.BatchNorm2d)
    model[1].drop, model[1].act = nn.Identity(), nn.ReLU()
    before = model(x)
    assert before.min() == 0
    bgn.convert_sync(model)
    assert parts(type(model[1])) == ((activated,), bgn.SyncBatchGroupNorm)
    assert_close(model(x), before)


def test_nothing_is_converted_if_one_layer_is_refused() -> None:
    model = nn.Sequential(nn.BatchNorm2d(8), bgn.GeneralBatchGroupNorm2d(8, 4, batch_blocks=2))
    with pytest.raises(ValueError, match="1: batch_blocks=2 .* blocks across processes"):
        bgn.convert_sync(model)
    assert type(model[0]) is nn.BatchNorm2d


def test_a_layer_without_values_keeps_its_tensors() -> None:
    model = nn.Sequential(nn.BatchNorm2d(8, device="meta"))
    weight = model[0].weight
    assert bgn.convert_sync(model)[0].weight is weight

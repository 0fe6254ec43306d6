"""The networks: sizes, keys, and any normalizer in any of them."""

import pytest
import torch
from torch import nn

from bgn.factory import NAMES
from bgn.surgery.kinds import normalizers
from bgn_lab import norms
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.models.resnet import MODELS, resnet


def _size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
    ],
)
def test_large_networks_have_torchvisions_sizes(name: str, size: int) -> None:
    with torch.device("meta"):
        model = resnet(name, nn.BatchNorm2d, 1000)
    assert _size(model) == size


def test_keys_are_torchvisions() -> None:
    with torch.device("meta"):
        keys = set(resnet("resnet50", nn.BatchNorm2d, 1000).state_dict())
    assert len(keys) == 320
    assert {
        "conv1.weight", "bn1.running_var", "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.weight", "layer1.0.conv3.weight",
        "layer3.5.bn3.bias", "layer4.2.conv2.weight", "fc.bias",
    } <= keys  # fmt: skip
    assert not any("layer1.1.downsample" in key for key in keys)


@pytest.mark.parametrize("depth", [8, 20, 56])
def test_small_networks_have_so_many_layers(depth: int) -> None:
    model = resnet(f"resnet{depth}", nn.BatchNorm2d, 10, channels=1)
    on_the_way = [
        m
        for name, m in model.named_modules()
        if isinstance(m, nn.Conv2d | nn.Linear) and "downsample" not in name
    ]
    assert len(on_the_way) == depth
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("norm", NAMES)
def test_any_normalizer(norm: str) -> None:
    model = resnet("resnet8", norms.constructor(Recipe(norm=norm, batch_size=8)), 10)
    model(torch.randn(8, 3, 16, 16)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert len(normalizers(model)) == 9


def test_width_and_unknown_names() -> None:
    assert resnet("resnet34", nn.BatchNorm2d, 10, width=8).fc.in_features == 64
    with pytest.raises(ValueError, match="model='resnet9' is not known; .*did you mean 'resnet"):
        resnet("resnet9", nn.BatchNorm2d, 10)
    assert set(MODELS) >= {"resnet18", "resnet20", "resnet50"}


def test_narrow_layers_do_not_turn_gn_into_in() -> None:
    for C, G in {2: 1, 16: 8, 32: 16, 64: 32, 256: 32}.items():
        assert norms.constructor(Recipe(norm="gn"))(C).num_groups == G
        assert norms.constructor(Recipe(norm="gbgn"))(C).num_groups == G
    assert norms.constructor(Recipe(norm="gn", groups=4))(16).num_groups == 4

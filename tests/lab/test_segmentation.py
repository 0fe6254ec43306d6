"""Segmentation: networks with every normalizer, the loss of several workers, runs and reports."""

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from bgn.factory import NAMES
from bgn.surgery.freeze import Frozen
from bgn.surgery.kinds import normalizers
from bgn_lab import cli, experiments, models, norms
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe as Recipe
from bgn_lab.experiments.segmentation.task import Segmentation, balanced
from bgn_lab.models import segmentation
from bgn_lab.report.collect import read
from bgn_lab.report.comparison import compare
from bgn_lab.report.write import write
from bgn_lab.training import loop
from bgn_lab.training.run import run
from bgn_lab.training.workers import statistics_in_blocks
from tests.lab.interrupting import same_bits
from tests.tolerance import assert_close

SMALL = Recipe(width=8, crop=(32, 32), limit=12, epochs=1, onednn=True, device="cpu")


@cache
def _data(name: str) -> Any:
    data = experiments.task(replace(SMALL, data=name, crop=None)).data
    few = torch.arange(10)
    crop = (32, 32) if name == "scenes" else (16, 16, 16)
    parts = {part: getattr(data, part).part(few) for part in ("train", "validation", "test")}
    for part, own in parts.items():
        parts[part] = replace(own, crops=replace(own.crops, size=crop))
    return replace(data, shape=(data.shape[0], *crop), **parts)


def task(**values: Any) -> Segmentation:
    """A small one."""
    recipe = replace(SMALL, **values)
    data = _data(recipe.data)
    crops = {
        part: replace(
            getattr(data, part),
            crops=replace(getattr(data, part).crops, neighbors=recipe.neighbors),
        )
        for part in ("train", "validation", "test")
    }
    return Segmentation(recipe, replace(data, **crops))


MODELS = ("unet", "fpn-mobilenet-v2", "deeplab-mobilenet-v2", "fpn-resnet18", "deeplab-resnet50")


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_size_of_the_image(name: str) -> None:
    for size in ((32, 32), (37, 50)):
        model = task(model=name, norm="bgn", groups=1).build().train()
        x = torch.randn(1, 3, *size)
        assert model(x).shape == (1, 5, *size)
        assert bool(model.eval()(x).isfinite().all())


@pytest.mark.parametrize("norm", NAMES)
@pytest.mark.parametrize("name", ["unet", "deeplab-resnet18"])
def test_every_normalizer_learns_from_one_image(name: str, norm: str) -> None:
    own = task(model=name, norm=norm, batch_size=1)
    own.check()
    model = own.build().train()
    found = {type(layer).__name__ for layer in normalizers(model).values()}
    assert len(found) == 1, "one normalizer everywhere"
    prepare = loop.Prepare(own.data, own.recipe)
    batch = prepare(next(own.batches(0, [0])))
    optimizer = torch.optim.SGD(model.parameters(), 0.02, momentum=0.9)
    losses = []
    for _ in range(8):
        loss, logits, labels = own.loss(model, batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
        assert logits.shape == (len(labels), 5)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("norm", ["bn", "in", "ln", "gn", "bgn", "bgn+ws", "bn+renorm"])
def test_volumes(norm: str) -> None:
    own = task(data="volumes", norm=norm)
    own.check()
    model = own.build().train()
    x, y = loop.Prepare(own.data, own.recipe)(next(own.batches(0, [0])))
    assert x.shape == (2, 1, 16, 16, 16)
    loss, _, _ = own.loss(model, (x, y))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None for p in model.parameters())
    assert not any(isinstance(m, nn.Conv2d) for m in model.modules())


def test_dilated_stages_keep_their_stride_and_their_weights() -> None:
    """DeepLab's backbone computes at stride 16 what a classifier computes at stride 32."""
    torch.manual_seed(0)
    for name in ("mobilenet-v2", "resnet18", "resnet50"):
        net = models.network(name, nn.BatchNorm2d, 2)
        keys = {key for key in net.state_dict() if not key.startswith(models.head(name))}
        made = segmentation.segmenter(f"deeplab-{name}", net, 5, nn.BatchNorm2d)
        sizes = [tuple(m.shape[2:]) for m in made.backbone(torch.randn(2, 3, 64, 96))]
        assert sizes == [(16, 24), (8, 12), (4, 6), (4, 6)]
        own = {key.removeprefix("backbone.") for key in made.backbone.state_dict()}
        missing = {key for key in keys - own if not key.startswith("features.18.")}
        assert not missing


def reference(logits: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
    return F.cross_entropy(logits, y.long(), weights, ignore_index=IGNORED)


@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_the_loss_is_the_mean_over_pixels_with_a_class(class_weights: str) -> None:
    own = task(class_weights=class_weights)
    model = own.build()
    x, y = loop.Prepare(own.data, own.recipe)(next(own.batches(0, [0])))
    loss, logits, labels = own.loss(model.eval(), (x, y))
    assert_close(loss, reference(model(x), y, own.class_weights))
    assert len(labels) == int((y != IGNORED).sum()) == len(logits)
    accuracy = (logits.argmax(1) == labels).float().mean()
    assert_close(accuracy, (model(x).argmax(1) == y)[y != IGNORED].float().mean())


def test_a_batch_without_a_class_has_no_loss() -> None:
    own = task()
    model = own.build().train()
    x, y = loop.Prepare(own.data, own.recipe)(next(own.batches(0, [0])))
    loss, _, labels = own.loss(model, (x, torch.full_like(y, IGNORED)))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0
    assert len(labels) == 0
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_workers_in_one_pass_are_exact() -> None:
    """Images of two workers differ in how many of their pixels count."""
    own = task(norm="bgn", groups=4, simulate_workers=2)
    model = own.build().double().train()
    prepare = loop.Prepare(own.data, own.recipe)
    batches = [prepare(batch) for batch in own.batches(0, [0, 1])]
    batches[0][1][0] = IGNORED
    assert own.supports_one_pass(model)
    losses, gradients = [], []
    for x, y in batches:
        loss, _, _ = own.loss(model, (x.double(), y))
        losses.append(loss)
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    with statistics_in_blocks(model, 2):
        loss, _, _ = own.loss(model, (x.double(), y))
    assert_close(loss, torch.stack(losses).mean())
    together = torch.autograd.grad(loss, list(model.parameters()))
    for found, (a, b) in zip(together, zip(*gradients, strict=True), strict=True):
        assert_close(found, (a + b) / 2)


def test_balanced_weights() -> None:
    weights = balanced(torch.tensor([50, 25, 25]))
    assert_close(weights, torch.tensor([0.5, 1.0, 1.0]))


@pytest.fixture
def imagenet(tmp_path: Path) -> str:
    """Weights as they would be pretrained."""
    torch.manual_seed(1)
    net = models.network("resnet10", nn.BatchNorm2d, 7)
    for layer in normalizers(net).values():
        for tensor in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
            assert isinstance(tensor, Tensor)
            tensor.data.uniform_(0.5, 1.5)
    save_file(net.state_dict(), tmp_path / "bn.safetensors")
    return str(tmp_path / "bn.safetensors")


@pytest.mark.filterwarnings("ignore:standardize. running statistics are those of the weights")
@pytest.mark.parametrize("norm", [*NAMES, "bn+renorm", "bgn+renorm", "bn+ws", "bn+frozen"])
def test_pretrained_weights_are_carried_over_as_exactly_as_possible(
    norm: str, imagenet: str
) -> None:
    values = {"model": "fpn-resnet10", "weights": imagenet}
    groups = {"groups": 4} if norm.startswith("bgn") else {}
    plain = task(norm="bn", **values).build().eval()
    own = task(norm=norm, **groups, **values)
    own.check()
    model = own.build().eval()
    x = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        maps, expected = model.backbone(x), plain.backbone(x)  # type: ignore[operator]
    exact = norm.split("+")[0] in ("bn", "gbgn", "bgn") and "ws" not in norm
    error = max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(maps, expected, strict=True)
    )
    assert (error < 1e-3) == exact
    trained = {k: v for k, v in model.named_parameters() if k.startswith("backbone")}
    first = "backbone.backbone.conv1.weight"
    assert torch.equal(trained[first], dict(plain.named_parameters())[first])
    if not exact and "ws" not in norm:
        key = "backbone.backbone.bn1.weight"
        assert torch.equal(trained[key], dict(plain.named_parameters())[key]), "BN's weight"


@pytest.mark.parametrize("norm", ["gn", "gbgn", "bgn"])
def test_weights_of_layers_whose_channels_32_does_not_divide(norm: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    net = models.network("mobilenet-v2", nn.BatchNorm2d, 2)
    save_file(net.state_dict(), tmp_path / "a.safetensors")
    groups = {"groups": 32} if norm == "bgn" else {}
    own = task(
        norm=norm, model="fpn-mobilenet-v2", weights=str(tmp_path / "a.safetensors"), **groups
    )
    layers: list[Any] = list(normalizers(own.build()).values())
    wide = [layer for layer in layers if len(layer.weight) == 144]
    assert wide
    if norm != "gbgn":  # whose groups are of 144 // 32 channels
        assert all(144 % layer.num_groups == 0 for layer in wide)


def test_frozen_layers_are_those_with_pretrained_statistics(imagenet: str) -> None:
    own = task(norm="bn+frozen", model="fpn-resnet10", weights=imagenet)
    model = own.build().train()
    found = normalizers(model)
    frozen = {name for name, layer in found.items() if isinstance(layer, Frozen)}
    assert frozen == {name for name in found if name.startswith("backbone.")}
    optimizer = own.optimizer(model)
    ids = [{id(p) for p in group["params"]} for group in optimizer.param_groups]
    for name, parameter in model.named_parameters():
        is_frozen = name.rpartition(".")[0] in frozen
        assert parameter.requires_grad != is_frozen
        assert (id(parameter) in ids[0] | ids[1]) != is_frozen
    assert norms.label(own.recipe) == "BN + frozen"
    with_workers = task(
        norm="bn+frozen", model="fpn-resnet10", weights=imagenet, simulate_workers=2
    )
    kinds = {type(layer).__name__ for layer in normalizers(with_workers.build()).values()}
    assert kinds == {"BatchGroupNorm2d", "FrozenBatchGroupNorm2d"}


def test_new_layers_learn_faster_than_pretrained_ones(imagenet: str) -> None:
    own = task(norm="bn", model="fpn-resnet10", weights=imagenet)
    groups = own.optimizer(own.build()).param_groups
    assert [group["factor"] for group in groups] == [1.0, 10.0]
    alone = task(norm="bn", model="fpn-resnet10")
    assert [group["factor"] for group in alone.optimizer(alone.build()).param_groups] == [1.0]


def test_renormalized_layers_have_a_momentum_of_their_own(imagenet: str) -> None:
    for values in ({}, {"model": "fpn-resnet10", "weights": imagenet}):
        own = task(norm="bgn+renorm", groups=4, renorm_momentum=0.02, **values)
        layers: list[Any] = list(normalizers(own.build()).values())
        assert {layer.momentum for layer in layers} == {0.02}
        trained = [bool(layer.running_mean.any()) for layer in layers]
        assert [layer.renorm_steps > 0 for layer in layers] == trained, "no warmup for these"
    one, other = (replace(own.recipe, norm_momentum=m) for m in (0.1, 0.2))
    assert one.key() == other.key()
    assert one.key() != replace(one, renorm_momentum=0.01).key()
    plain = replace(SMALL, norm="bn")
    assert plain.key() == replace(plain, renorm_momentum=0.5).key()


def test_a_run_and_its_files(tmp_path: Path) -> None:
    own = task(norm="bgn", groups=4, recalibrate=True, epochs=2)
    result = run(own, tmp_path)
    for key in ("test_iou", "validation_iou", "test_iou_recalibrated"):
        assert 0 <= (result.measure(key) or 0) <= 1
    matrix = torch.tensor(result.details["confusion"])
    assert int(matrix.sum()) == int(own.data.test.counts.sum())
    assert result.test_accuracy == float(matrix.diagonal().sum() / matrix.sum().double())
    assert [*result.details["class_iou"]] == [*own.data.classes]
    assert {path.name for path in tmp_path.iterdir()} >= {"predictions.png", "predictions.npz"}
    assert not (tmp_path / "warnings.txt").exists()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert "test_iou" not in lines[0]
    assert lines[0]["images_per_second"] < 10_000, "of images, not of pixels"
    again = read(tmp_path)
    assert again.result is not None
    assert again.result.measures["test_iou"] == result.measures["test_iou"]
    assert result.floor > result.chance / 2


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    make = lambda: task(norm="bgn", groups=4, epochs=2, neighbors=2, recalibrate=True)  # noqa: E731
    whole, parts = same_bits(make, tmp_path, (1, 3))
    assert parts.measures == whole.measures


def test_recalibration_leaves_the_trained_network_alone(tmp_path: Path) -> None:
    without = run(task(norm="bn"), tmp_path / "a")
    beside = run(task(norm="bn", recalibrate=True), tmp_path / "b")
    assert without.weights_sha256 == beside.weights_sha256
    assert without.measures["test_iou"] == beside.measures["test_iou"]
    assert "test_iou_recalibrated" not in without.measures
    of_samples = run(task(norm="gn", recalibrate=True), tmp_path / "c")
    assert "test_iou_recalibrated" not in of_samples.measures, "nothing to recalibrate"


@pytest.mark.slow
def test_a_report_of_several_runs(tmp_path: Path) -> None:
    for norm in ("bn", "bgn"):
        for size in (1, 2):
            for seed in (0, 1):
                own = task(norm=norm, batch_size=size, seed=seed, recalibrate=True)
                run(own, tmp_path / "runs" / f"{norm}-{size}-{seed}")
    runs = [read(path) for path in sorted((tmp_path / "runs").iterdir())]
    (found,) = compare(runs)
    assert found.title().startswith("segmentation, unet (8 channels at first) on scenes, 1 epoch")
    write(runs, tmp_path / "out")
    table = (tmp_path / "out" / "table.md").read_text()
    assert "Mean IoU in %, mean ± standard deviation over 2 seeds" in table
    assert "| normalizer | batch | pixel accuracy | background | top or dress |" in table
    assert "### Recalibrated after training" in table
    assert "The images are made up." in table
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "predictions.png", "accuracy.png", "report.html", "results.json",
    }  # fmt: skip
    (tmp_path / "runs" / "bn-2-0" / "predictions.npz").write_bytes(b"damaged")
    write(runs, tmp_path / "out")


@pytest.mark.slow
def test_the_laptop_preset_learns(tmp_path: Path) -> None:
    words = "run segmentation --preset laptop --norm bgn --groups auto --out"
    assert cli.main([*words.split(), str(tmp_path / "run")]) == 0
    result = read(tmp_path / "run").result
    assert result is not None
    assert (result.measures["test_iou"] or 0) > 0.4


CAMVID = Path(os.environ.get("BGN_DATA", "")) / "camvid_240.npz"


@pytest.mark.skipif(not CAMVID.is_file(), reason="BGN_DATA names no folder with camvid_240.npz")
@pytest.mark.slow
def test_camvid() -> None:
    own = experiments.task(Recipe(data=str(CAMVID), crop=(120, 160), norm="bgn"))
    assert [len(p) for p in (own.data.train, own.data.validation, own.data.test)] == [367, 101, 233]
    assert own.data.classes[0] == "sky"
    assert len(own.data.classes) == 11
    assert own.data.shape == (3, 120, 160)
    assert own.data.test.x[0].shape == (3, 180, 240)
    assert own.data.chance < 0.05

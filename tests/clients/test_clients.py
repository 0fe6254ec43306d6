"""Models of other packages: convert, train at batch 1 and 2, evaluate, save, load, fold.

``-s`` prints the results.
"""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn
from bgn.surgery.kinds import normalizers
from tests.tolerance import assert_close

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
Batch = Callable[[int], Any]


def nearest(groups: int) -> Callable[[Any], int]:
    return lambda layer: bgn.nearest_groups(
        layer.running_mean.numel(), min(groups, layer.running_mean.numel())
    )


def warmed(model: nn.Module) -> nn.Module:
    """Running statistics and affine away from their initial values, as in a trained model."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in normalizers(model).values():
            for name, tensor in [
                *layer.named_parameters(recurse=False),
                *layer.named_buffers(recurse=False),
            ]:
                if tensor.is_floating_point():
                    noise = torch.rand(tensor.shape, generator=generator)
                    tensor.copy_(0.1 * noise if name in ("bias", "running_mean") else 0.5 + noise)
    return model


def cycle(
    title: str,
    make: Callable[[], nn.Module],
    batch: Batch,
    loss_of: Callable[[nn.Module, Any], Tensor],
    output_of: Callable[[nn.Module, Any], Tensor],
    rate: float = 1e-3,
) -> nn.Module:
    torch.manual_seed(0)
    model = warmed(make())
    kinds = {type(layer).__name__ for layer in normalizers(model).values()}
    model.eval()
    before = output_of(model, batch(2))
    bgn.convert(model, num_groups=nearest(4))
    layers = [
        layer for layer in normalizers(model).values() if "BatchGroupNorm" in type(layer).__name__
    ]
    assert layers
    after = output_of(model, batch(2))
    error = (after - before).abs().max().item() / before.abs().max().item()
    assert error < 1e-4

    losses = {}
    for n in (1, 2):
        torch.manual_seed(1)
        net = copy.deepcopy(model).train()
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], rate)
        data, trail = batch(n), []
        for _ in range(6):
            optimizer.zero_grad()
            loss = loss_of(net, data)
            loss.backward()
            optimizer.step()
            trail.append(loss.item())
        assert min(trail[3:]) < trail[0], trail
        losses[n] = f"{trail[0]:.2f} -> {min(trail[3:]):.2f}"
        moved = next(
            layer for layer in normalizers(net).values() if "BatchGroupNorm" in type(layer).__name__
        )
        assert moved.num_batches_tracked >= 6

    fresh = make()
    bgn.convert(fresh, num_groups=nearest(4))
    fresh.load_state_dict(net.state_dict())
    assert_close(output_of(fresh.eval(), batch(2)), output_of(net.eval(), batch(2)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folded = bgn.fold(net)
    left = sum("BatchGroupNorm" in type(layer).__name__ for layer in normalizers(folded).values())
    expected = output_of(net, batch(2))
    assert (output_of(folded, batch(2)) - expected).abs().max() < 1e-3 * expected.abs().max()
    print(
        f"\n| {title} | {len(layers)} {', '.join(sorted(kinds))} | {error:.0e}"
        f" | {losses[1]} | {losses[2]}"
        f" | {len(layers) - left} of {len(layers)} |"
    )
    return net


def images(size: int, channels: int = 3) -> Batch:
    return lambda n: torch.randn(
        n, channels, size, size, generator=torch.Generator().manual_seed(n)
    )


def classify(net: nn.Module, x: Tensor) -> Tensor:
    return nn.functional.cross_entropy(net(x), torch.arange(len(x)) % 10)


def logits(net: nn.Module, x: Any) -> Tensor:
    with torch.no_grad():
        out: Tensor = net(x)
    return out


def test_torchvision_resnet50(torchvision: Any) -> None:
    net = cycle(
        "torchvision ResNet-50",
        lambda: torchvision.models.resnet50(num_classes=10),
        images(64),
        classify,
        logits,
    )
    assert sum(p.numel() for p in net.parameters()) == 25_557_032 - 990 * 2049


@pytest.mark.parametrize("frozen", [False, True])
def test_torchvision_faster_rcnn(torchvision: Any, frozen: bool) -> None:
    detection = torchvision.models.detection
    norm = torchvision.ops.misc.FrozenBatchNorm2d if frozen else nn.BatchNorm2d

    def make() -> nn.Module:
        backbone = detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet50", weights=None, norm_layer=norm, trainable_layers=5
        )
        model: nn.Module = detection.FasterRCNN(
            backbone, num_classes=5, min_size=96, max_size=128, box_score_thresh=0.0
        )
        return model

    def batch(n: int) -> Any:
        generator = torch.Generator().manual_seed(n)
        pictures = [torch.rand(3, 96, 96 + 16 * i, generator=generator) for i in range(n)]
        targets = [
            {"boxes": torch.tensor([[10.0, 10.0, 50.0, 60.0]]), "labels": torch.tensor([1 + i])}
            for i in range(n)
        ]
        return pictures, targets

    def loss_of(net: nn.Module, data: Any) -> Tensor:
        torch.manual_seed(0)  # the sampling of proposals
        total: Tensor = sum(net(*data).values())  # type: ignore[assignment]
        return total

    def output_of(net: Any, data: Any) -> Tensor:
        with torch.no_grad():
            found = net(data[0])
            assert all(f["scores"].isfinite().all() for f in found)
            features = net.backbone(net.transform(data[0])[0].tensors)
        return torch.cat([f.flatten() for f in features.values()])

    cycle(
        f"torchvision Faster R-CNN, ResNet-50 FPN{', frozen BN' if frozen else ''}",
        make,
        batch,
        loss_of,
        output_of,
        rate=1e-4,
    )


def test_torchvision_deeplab(torchvision: Any) -> None:
    def make() -> nn.Module:
        model: nn.Module = torchvision.models.segmentation.deeplabv3_resnet50(
            weights=None, weights_backbone=None, num_classes=4
        )
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        target = (torch.arange(x[:, 0].numel()) // 700 % 4).view(x[:, 0].shape)
        return nn.functional.cross_entropy(net(x)["out"], target)

    cycle(
        "torchvision DeepLabV3, ResNet-50",
        make,
        images(64),
        loss_of,
        lambda net, x: logits(lambda x: net(x)["out"], x),
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["resnet26d", "efficientnet_b0", "regnety_002"])
def test_timm(timm: Any, name: str) -> None:
    make = lambda: timm.create_model(name, num_classes=10, drop_rate=0.0, drop_path_rate=0.0)  # noqa: E731
    net = cycle(f"timm {name}", make, images(64), classify, logits)
    if name != "resnet26d":
        activated = [m for m in net.modules() if type(m).__name__ == "ActivatedBatchGroupNorm2d"]
        assert activated
        assert any(not isinstance(m.act, nn.Identity) for m in activated)


def test_timm_builds_and_fuses_layers_with_activations(timm: Any) -> None:
    def norm(C: int, **options: Any) -> nn.Module:
        return bgn.BatchGroupNormAct2d(C, 8, **{"act_layer": nn.SiLU, **options})

    def count(net: nn.Module) -> int:
        return sum(isinstance(m, bgn.BatchGroupNormAct2d) for m in net.modules())

    x = torch.randn(2, 3, 64, 64)
    built = timm.create_model("efficientnet_b0", norm_layer=norm)
    plain = timm.create_model("efficientnet_b0").eval()
    converted = bgn.convert(copy.deepcopy(plain), num_groups=8, fuse_act=True)
    assert count(built) == count(converted) == 49
    assert list(converted.state_dict()) == list(plain.state_dict()) == list(built.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(converted(x), plain(x), rtol=1e-3, atol=1e-4)


def test_timm_models_of_layer_norm_are_refused(timm: Any) -> None:
    with pytest.raises(ValueError, match="has no normalizer that is known here"):
        bgn.convert(timm.create_model("convnext_atto", num_classes=10), batch_size=2)


def test_monai_unet_3d(monai: Any) -> None:
    nets = monai.networks.nets

    def make() -> nn.Module:
        net: nn.Module = nets.UNet(
            spatial_dims=3,
            in_channels=1,
            out_channels=2,
            channels=(8, 16, 32),
            strides=(2, 2),
            num_res_units=1,
            norm="batch",
        )
        return net

    def volumes(n: int) -> Tensor:
        return torch.randn(n, 1, 16, 16, 16, generator=torch.Generator().manual_seed(n))

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())

    net = cycle("MONAI UNet, 3D", make, volumes, loss_of, logits)
    assert any(isinstance(m, bgn.BatchGroupNorm3d) for m in net.modules())


def test_transformers_resnet(transformers: Any) -> None:
    config = transformers.ResNetConfig(
        hidden_sizes=[32, 64, 128, 256], depths=[1, 1, 1, 1], num_labels=10
    )
    make = lambda: transformers.ResNetForImageClassification(config)  # noqa: E731
    head = lambda net: lambda x: net(pixel_values=x).logits  # noqa: E731
    cycle(
        "transformers ResNet",
        make,
        images(64),
        lambda net, x: classify(head(net), x),
        lambda net, x: logits(head(net), x),
    )

"""Networks of dense prediction of other packages, trained for some steps at one and two images.

With renormalization, with standardized weights, and with both; then recalibrated and folded. And
the recipes of docs/two-images.md, run as they stand there, without downloads. ``-s`` prints losses.
"""

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn.surgery.kinds import normalizers
from bgn.surgery.standardized import Standardized
from tests.clients.test_clients import nearest, warmed

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
WAYS: dict[str, dict[str, Any]] = {
    "renorm": {"renorm": True},
    "standardized": {"standardize": True},
    "both": {"renorm": True, "standardize": True},
}
Inputs = Callable[[int], Any]
ways = pytest.mark.parametrize("way", list(WAYS))


def trained(
    title: str,
    model: nn.Module,
    way: str,
    batch: Inputs,
    loss_of: Callable[[nn.Module, Any], Tensor],
    rate: float = 1e-3,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> nn.Module:
    """Convert to four groups, train six steps at one image, and six at two from the same start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # standardized weights are not those of the statistics
        bgn.convert(model, num_groups=nearest(4), **WAYS[way])
    if way == "both":  # or batches would be corrected towards statistics of other weights
        bgn.recalibrate(model, [batch(2)], forward=forward, progress=False)
    layers = [m for m in model.modules() if hasattr(m, "batch_blocks")]
    assert layers
    assert all((m.renorm is not None) == ("renorm" in WAYS[way]) for m in layers)
    has = any(isinstance(m, Standardized) for m in model.modules())
    assert has == ("standardize" in WAYS[way])
    for n in (1, 2):
        torch.manual_seed(1)
        net = copy.deepcopy(model).train()
        optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], rate)
        data, losses = batch(n), []
        for _ in range(6):
            optimizer.zero_grad()
            loss = loss_of(net, data)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        assert min(losses[3:]) < losses[0], losses
        print(f"\n| {title} | {way} | {n} | {losses[0]:.2f} -> {min(losses[3:]):.2f} |")
    return net


def folded_alike(net: nn.Module, run: Callable[[nn.Module], Tensor]) -> None:
    """Nothing but convolutions is left, and the output is the same."""
    net.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = bgn.fold(net)
    assert not normalizers(plain)
    with torch.no_grad():
        before, after = run(net), run(plain)
    assert (after - before).abs().max() <= 1e-3 * before.abs().max()


def pictures(size: int) -> Inputs:
    return lambda n: torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(n))


@ways
def test_deeplab(torchvision: Any, way: str) -> None:
    torch.manual_seed(0)
    make = torchvision.models.segmentation.deeplabv3_resnet50
    model = warmed(make(weights=None, weights_backbone=None, num_classes=4))
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        target = (torch.arange(x[:, 0].numel()) // 700 % 4).view(x[:, 0].shape)
        return F.cross_entropy(net(x)["out"], target)

    rate = 2e-5 if way == "both" else 2e-4  # statistics that are corrected towards follow slowly
    net = trained("DeepLabV3", model, way, pictures(64), loss_of, rate)
    bgn.recalibrate(net, [pictures(64)(2)], progress=False)
    folded_alike(net, lambda net: net(pictures(64)(2))["out"])


@ways
def test_faster_rcnn(torchvision: Any, way: str) -> None:
    torch.manual_seed(0)
    detection = torchvision.models.detection
    backbone = detection.backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet50", weights=None, trainable_layers=5,
        norm_layer=torchvision.ops.misc.FrozenBatchNorm2d,
    )  # fmt: skip
    model = warmed(detection.FasterRCNN(backbone, num_classes=5, min_size=96, max_size=128))

    def batch(n: int) -> Any:
        images = [torch.rand(3, 96, 96 + 16 * i) for i in range(n)]
        boxes = torch.tensor([[10.0, 10.0, 50.0, 60.0]])
        return images, [{"boxes": boxes, "labels": torch.tensor([1 + i])} for i in range(n)]

    def loss_of(net: nn.Module, data: Any) -> Tensor:
        torch.manual_seed(0)  # the sampling of proposals
        total: Tensor = sum(net(*data).values())  # type: ignore[assignment]
        return total

    detect = lambda net, own: net(own[0])  # noqa: E731
    net: Any = trained("Faster R-CNN", model, way, batch, loss_of, 1e-4, detect)
    net.eval()
    bgn.recalibrate(net, [batch(2)], forward=detect, progress=False)
    images = torch.rand(2, 3, 96, 96)
    folded_alike(net, lambda net: net.backbone(images)["0"])  # type: ignore[operator]


@ways
@pytest.mark.parametrize("name", ["UNet", "SegResNet"])
def test_monai_in_3d(monai: Any, name: str, way: str) -> None:
    torch.manual_seed(0)
    nets = monai.networks.nets
    if name == "UNet":
        make = lambda: nets.UNet(  # noqa: E731
            spatial_dims=3, in_channels=1, out_channels=2, channels=(8, 16, 32), strides=(2, 2),
            num_res_units=1, norm="batch",
        )  # fmt: skip
    else:
        make = lambda: nets.SegResNet(  # noqa: E731
            spatial_dims=3, in_channels=1, out_channels=2, init_filters=8, norm="batch",
            blocks_down=(1, 1, 1), blocks_up=(1, 1),
        )  # fmt: skip
    model = warmed(make())

    def volumes(n: int) -> Tensor:
        return torch.randn(n, 1, 16, 16, 16, generator=torch.Generator().manual_seed(n))

    def loss_of(net: nn.Module, x: Tensor) -> Tensor:
        return F.cross_entropy(net(x), (x[:, 0] > 0).long())

    net = trained(f"MONAI {name}", model, way, volumes, loss_of)
    assert any(isinstance(m, bgn.BatchGroupNorm3d) for m in net.modules())
    bgn.recalibrate(net, [volumes(2)], progress=False)
    if name == "UNet":  # SegResNet normalizes before it convolves
        folded_alike(net, lambda net: net(volumes(2)))


PAGE = Path(__file__).parents[2] / "docs" / "two-images.md"


def test_the_recipes_of_the_page(torchvision: Any, monai: Any, timm: Any) -> None:  # noqa: ARG001
    torch.manual_seed(0)
    boxes = {"boxes": torch.tensor([[10.0, 10.0, 50.0, 60.0]]), "labels": torch.tensor([1])}
    names: dict[str, Any] = {
        "loader": [(torch.randn(2, 3, 64, 64), torch.randint(0, 11, (2, 64, 64)))],
        "scenes": [([torch.rand(3, 96, 96)], [boxes])],
    }
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        offline = block.replace('weights="DEFAULT"', "weights=None, weights_backbone=None")
        offline = offline.replace("pretrained=True", "pretrained=False")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(offline, str(PAGE), "exec"), names)
    assert not normalizers(names["plain"])
    with torch.no_grad():
        expected = names["plain"](names["images"])["out"]
        exported = names["program"].module()(names["images"])["out"]
    assert (exported - expected).abs().max() < 1e-4
    assert names["found"][0]["boxes"].shape[1] == 4
    kinds = {type(m).__name__ for m in normalizers(names["net"]).values()}
    assert kinds == {"BatchGroupNorm3d"}
    assert [m.shape[1] for m in names["maps"]]

"""Converted models in other people's frameworks: training, checkpoints, registries, hubs.

The blocks of docs/from-others.md are run as they stand there.
"""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn
from tests.clients.conftest import declare_torchvision
from tests.tolerance import assert_close

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PAGE = Path(__file__).parent.parent.parent / "docs/from-others.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def block(word: str) -> str:
    (found,) = (text for text in BLOCKS if word in text)
    return str(found)


def converted() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    bgn.convert(model, num_groups=2)
    return model


def batches() -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, 8, 8, generator=draws)
    return list(zip(x.split(2), torch.arange(12).remainder(4).split(2), strict=True))


def trained(model: nn.Module) -> nn.Module:
    """By plain torch, for two epochs: what the frameworks must arrive at."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


def assert_same_state(a: nn.Module, b: nn.Module) -> None:
    for one, other in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        assert_close(one.float(), other.float())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_lightning(here: Path) -> None:
    declare_torchvision()  # its metrics look for it
    lightning = pytest.importorskip("lightning", reason="needs lightning")
    names: dict[str, Any] = {"torch": torch, "bgn": bgn, "lightning": lightning}
    torch.manual_seed(0)
    names["net"] = net = converted()
    twin = trained(copy.deepcopy(net))
    names["loader"] = torch.utils.data.DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    exec(block("LightningModule"), names)
    assert_same_state(names["module"].net, twin)
    assert net[1].num_batches_tracked == 12
    again = names["Classifier"].load_from_checkpoint(here / "trained.ckpt", net=converted())
    assert_same_state(again.net, twin)


def test_accelerate(here: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    torch.manual_seed(0)
    net = converted()
    twin = trained(copy.deepcopy(net))
    names: dict[str, Any] = {"torch": torch, "bgn": bgn, "net": net}
    names["loader"] = torch.utils.data.DataLoader(batches(), batch_size=None)  # type: ignore[arg-type]
    exec(block("Accelerator"), names)
    assert_same_state(names["accelerator"].unwrap_model(names["net"]), twin)
    (found,) = here.glob("trained/*.safetensors")
    from safetensors.torch import load_file

    again = converted()
    again.load_state_dict(load_file(found))
    assert_same_state(again, twin)


def test_hugging_face(transformers: Any, here: Path) -> None:  # noqa: ARG001
    """A randomly initialized model of a small configuration stands for one from the hub."""
    config = transformers.ResNetConfig(
        hidden_sizes=[16, 32], depths=[1, 1], embedding_size=8, num_labels=4
    )
    torch.manual_seed(0)
    transformers.ResNetForImageClassification(config).save_pretrained("name")
    names: dict[str, Any] = {}
    exec(block("from_pretrained"), names)
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = names["model"].eval()(pixel_values=x).logits
        assert_close(names["again"].eval()(pixel_values=x).logits, before)
    for model in (names["model"], names["again"]):
        kinds = {type(m).__name__ for m in model.modules()}
        assert "BatchGroupNorm2d" in kinds
        assert "BatchNorm2d" not in kinds
    # BatchNorm again, for those who have not got this package
    plain = transformers.ResNetForImageClassification.from_pretrained("mine-bn")
    with torch.no_grad():
        assert_close(plain.eval()(pixel_values=x).logits, before)


def test_mmcv() -> None:
    cnn = pytest.importorskip("mmcv.cnn", reason="needs mmcv or mmcv-lite")
    names: dict[str, Any] = {}
    exec(block("register_module"), names)
    name, layer = cnn.build_norm_layer({"type": "BGN", "num_groups": 1}, 16, 1)
    assert (name, type(layer)) == ("bn1", bgn.BatchGroupNorm2d)  # keys are those of BN
    module = cnn.ConvModule(3, 16, 3, norm_cfg={"type": "BGN", "num_groups": 4})
    assert module.conv.bias is None
    module(torch.randn(2, 3, 8, 8)).sum().backward()
    assert module.norm.num_batches_tracked == 1
    # as registered: one number of groups for every layer, or one for every batch size
    assert names["MODELS"].get("BGN") is bgn.BatchGroupNorm2d

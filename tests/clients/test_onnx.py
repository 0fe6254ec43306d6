"""ONNX: every normalizer is exported in eval mode, and onnxruntime computes what torch does."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn

pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
runtime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PAGE = Path(__file__).parent.parent.parent / "docs/deploy.md"
BLOCKS = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
(BLOCK,) = (block for block in BLOCKS if "torch.onnx.export" in block)
LAYERS: dict[str, Callable[[int], nn.Module]] = {
    **{name: bgn.norm_layer(name) for name in ("bn", "in", "ln", "gn", "pn", "gbgn")},
    "bgn, a group": lambda C: bgn.BatchGroupNorm2d(C, 1),
    "bgn, whole channels": lambda C: bgn.BatchGroupNorm2d(C, 4),
    "bgn, parts of channels": lambda C: bgn.BatchGroupNorm2d(C, 2 * C),
    "bgn, across channels": lambda C: bgn.BatchGroupNorm2d(C, 3),
    "bgn, center": lambda C: bgn.BatchGroupNorm2d(C, 4, center="channel"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_export(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norm = LAYERS[name]
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), norm(16), nn.ReLU(), nn.Conv2d(16, 32, 3), norm(32)
    )
    for _ in range(3):
        model(torch.randn(8, 3, 12, 12))
    check(model.eval(), tmp_path, monkeypatch)


def test_export_of_a_folded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), bgn.BatchGroupNorm2d(16, 4), nn.ReLU())
    model(torch.randn(8, 3, 12, 12))
    check(bgn.fold(model.eval()), tmp_path, monkeypatch)


def check(model: nn.Module, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Export as the page does, then compare at two batch sizes."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"torch": torch, "model": model, "x": torch.randn(2, 3, 12, 12)}
    exec(BLOCK, names)
    session = runtime.InferenceSession("model.onnx")
    for N in (2, 5):
        x = torch.randn(N, 3, 12, 12)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        expected: Tensor = model(x)
        torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-5, atol=1e-5)

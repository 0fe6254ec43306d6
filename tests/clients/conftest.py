"""Fixtures of other packages.

torchvision's wheel needs CUDA libraries for its operators, so the operators are declared here.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = pytest.mark.slow
_library: Any = None


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Greedy non-maximum suppression."""
    order, kept = scores.argsort(descending=True), []
    while order.numel():
        best, order = order[0], order[1:]
        kept.append(best)
        low, high = (
            torch.max(boxes[best, :2], boxes[order, :2]),
            torch.min(boxes[best, 2:], boxes[order, 2:]),
        )
        overlap = (high - low).clamp(min=0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = order[overlap <= iou_threshold * (area[best] + area[order] - overlap)]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.long)


def declare_torchvision() -> None:
    global _library
    if _library is None:
        _library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture
def torchvision() -> Any:
    declare_torchvision()
    module = pytest.importorskip(
        "torchvision", reason="torchvision is not installed; make test-all installs it"
    )
    module.ops.boxes.nms = _nms
    return module


@pytest.fixture
def timm() -> Any:
    declare_torchvision()
    return pytest.importorskip("timm", reason="timm is not installed; make test-all installs it")


@pytest.fixture
def monai() -> Any:
    declare_torchvision()
    return pytest.importorskip("monai", reason="monai is not installed; make test-all installs it")


@pytest.fixture
def transformers() -> Any:
    declare_torchvision()
    return pytest.importorskip(
        "transformers", reason="transformers is not installed; make test-all installs it"
    )

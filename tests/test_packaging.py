"""What a user's pip would do."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
needs_checkout = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="needs the source tree"
)


@pytest.mark.slow
@needs_checkout
def test_a_plain_install_leaves_torch_alone(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [
        *PIP,
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--report",
        str(report),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (package,) = json.loads(report.read_text())["install"]
    required = [r for r in package["metadata"]["requires_dist"] if "extra" not in r]
    assert required == ["torch>=2.6"]
    subprocess.run(
        [*PIP, "install", "--dry-run", "--report", str(report), str(ROOT)],
        check=True,
        capture_output=True,
    )
    names = {item["metadata"]["name"] for item in json.loads(report.read_text())["install"]}
    assert names <= {"batch-group-norm"}


@pytest.mark.slow
@needs_checkout
def test_the_wheel_holds_the_library_and_its_types(tmp_path: Path) -> None:
    subprocess.run(
        [*PIP, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    if shutil.which("cc"):
        assert "-cp310-abi3-" in wheel.name  # one wheel for every version of Python
    names = zipfile.ZipFile(wheel).namelist()
    assert "bgn/py.typed" in names
    assert "bgn/kernels/definition.py" in names
    assert {"bgn/native/node.cpp", "bgn/native/node_core.h"} <= set(names)  # to be built later
    assert not any("_node" in name and name.endswith(".so") for name in names)  # free of torch
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "docs/")) for name in names)

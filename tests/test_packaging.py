"""What a user's pip would do, and what a release is made of."""

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tools import release

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
needs_checkout = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").exists(), reason="needs the source tree"
)


def run(*command: object, cwd: Path | None = None) -> str:
    """What a command prints; its errors too, if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        cwd=cwd,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@needs_checkout
def test_a_plain_install_leaves_torch_alone(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    run(*PIP, "install", "--dry-run", "--ignore-installed", "--no-deps", "--report", report, ROOT)
    (package,) = json.loads(report.read_text())["install"]
    required = [r for r in package["metadata"]["requires_dist"] if "extra" not in r]
    assert required == ["torch>=2.6"]
    run(*PIP, "install", "--dry-run", "--report", report, ROOT)
    names = {item["metadata"]["name"] for item in json.loads(report.read_text())["install"]}
    assert names <= {"batch-group-norm"}


def needs_tools(compiler: str) -> None:
    """Skip where a wheel cannot be built."""
    missing = [name for name in ("build", "auditwheel", "twine") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: pip install '.[release]'")
    if sys.platform != "linux" or not shutil.which(compiler):
        pytest.skip(f"needs Linux and {compiler}")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a release's files for this machine."""
    needs_tools("cc")
    folder = tmp_path_factory.mktemp("dist")
    printed = run(sys.executable, ROOT / "tools/wheels.py", "--out", folder)
    assert printed.count("PASSED") == 2  # of twine, for the wheel and the source distribution
    return folder


@pytest.mark.slow
@needs_checkout
def test_the_wheel_serves_every_python_and_holds_the_library(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    assert "-py3-none-manylinux" in wheel.name
    assert wheel.name.endswith(f"_{platform.machine()}.whl")
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert "bgn/py.typed" in names
    assert "bgn/_native.abi3.so" in names
    assert "bgn/kernels/definition.py" in names
    assert {"bgn/native/node.cpp", "bgn/native/node_core.h"} <= set(names)  # to be built later
    assert not any("_node" in name and name.endswith(".so") for name in names)  # free of torch
    assert not any("gomp" in name for name in names)  # torch brings its own
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "docs/", "tools/")) for name in names)
    core = archive.read("bgn/_native.abi3.so")
    assert str(ROOT).encode() not in core
    assert sys.prefix.encode() not in core


@pytest.mark.slow
@needs_checkout
def test_the_source_distribution_holds_what_a_wheel_is_built_from(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "src/bgn/native").iterdir()}
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", *native} <= names


@pytest.mark.slow
@needs_checkout
def test_a_fresh_environment_runs_what_the_wheel_holds(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    (packages,) = (tmp_path / "venv/lib").glob("*/site-packages")
    # torch and what the laboratory needs are those of these tests, to save their installation
    (packages / "others.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    code = "import bgn; print(bgn.__file__); print(bgn.info().backend)"
    file, backend = run(python, "-c", code, cwd=tmp_path).splitlines()
    assert Path(file).is_relative_to(packages)
    assert backend == "cpu"
    script = tmp_path / "venv/bin/bgn"
    assert release.version() in run(script, "--version", cwd=tmp_path)
    command = "compare --norms bn bgn --batch-sizes 8 --epochs 1 --limit 200 --seeds 1 --out runs"
    run(script, *command.split(), cwd=tmp_path)
    assert (tmp_path / "runs/table.md").exists()


@pytest.mark.slow
@needs_checkout
def test_a_wheel_for_arm64_is_built_by_a_cross_compiler(tmp_path: Path) -> None:
    needs_tools("aarch64-linux-gnu-gcc")
    run(sys.executable, ROOT / "tools/wheels.py", "--out", tmp_path, "--machine", "aarch64")
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-manylinux" in wheel.name
    assert wheel.name.endswith("_aarch64.whl")
    core = zipfile.ZipFile(wheel).read("bgn/_native.abi3.so")
    assert int.from_bytes(core[18:20], "little") == 183  # ELF's number of AArch64


@needs_checkout
def test_changelog_and_tag_have_the_package_version(tmp_path: Path) -> None:
    own = release.version()
    first = release.HEADING.search((ROOT / "CHANGELOG.md").read_text())
    assert first is not None
    assert first["version"] == own
    (tmp_path / "src/bgn").mkdir(parents=True)
    (tmp_path / "src/bgn/_version.py").write_text('__version__ = "1.2.0"\n')
    changelog = (
        "# Changelog\n\n## 1.2.0 (2030-01-31)\n\n- New.\n\n## 1.1.0 (2029-12-01)\n\n- Old.\n"
    )
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    assert release.notes("v1.2.0", tmp_path) == "- New.\n"
    with pytest.raises(ValueError, match=r"tag='v1.2'; expected 'v1.2.0'"):
        release.notes("v1.2", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(changelog.replace("2030-01-31", "unreleased"))
    with pytest.raises(ValueError, match="1.2.0 is 'unreleased'; expected its date"):
        release.notes("v1.2.0", tmp_path)

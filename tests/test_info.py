"""What the package says of itself, and how a backend is forced."""

import os
import subprocess
import sys

import pytest

import bgn
from bgn import kernels


def run(backend: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BGN_BACKEND": backend}
    return subprocess.run(
        [sys.executable, "-m", "bgn"], env=environment, capture_output=True, text=True, check=False
    )


def test_info_names_versions_and_the_chosen_backend() -> None:
    text = str(bgn.info())
    assert f"bgn       {bgn.__version__}" in text
    assert bgn.info().backend in bgn.info().backends
    assert "the best one available" in text


def test_a_backend_is_forced_by_the_environment() -> None:
    assert "definition (forced by BGN_BACKEND=definition)" in run("definition").stdout
    assert "the best one available" in run("").stdout


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(
        ValueError, match="BGN_BACKEND='cuda' is not a backend; accepted: auto, .*definition"
    ):
        kernels.choose("cuda")
    assert "BGN_BACKEND='cuda'" in run("cuda").stderr


def test_the_library_imports_torch_alone() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import bgn;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names) - {'bgn', 'torch'}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"

"""The GPU core in triton's interpreter, in processes of their own; and what happens without triton.

The interpreter must be chosen before a kernel is imported. It runs the same source as a GPU would,
with numpy: values are tested, machine code and speed are not.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bgn
from bgn import kernels
from bgn.kernels import backends, triton
from bgn.partition import slices
from tests import kernel_calls

ROOT = Path(__file__).parent.parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="triton is not installed"
)


def interpret(*arguments: str, **environment: str) -> None:
    """Run tests with the interpreter; a failure shows what they printed."""
    inherited = {name: value for name, value in os.environ.items() if "PYTEST" not in name}
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", *arguments],
        cwd=ROOT,
        env={**inherited, "TRITON_INTERPRET": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


@needs_triton
def test_values_in_the_interpreter() -> None:
    fast = "-m", "not slow"
    interpret(*fast, "tests/gpu/values.py", "tests/gpu/addresses.py", BGN_GPU_EXAMPLES="3")


@needs_triton
@pytest.mark.slow
def test_many_values_in_the_interpreter() -> None:
    interpret("tests/gpu/values.py", BGN_GPU_EXAMPLES="300")


@needs_triton
@pytest.mark.slow
def test_what_autograd_may_do_in_the_interpreter() -> None:
    interpret("tests/gpu/autograd.py")


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("file", ["test_blocks", "test_renorm", "test_center", "test_definition"])
def test_what_every_backend_must_do(file: str) -> None:
    interpret(f"tests/{file}.py", "-k", "triton")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_tests_for_a_gpu_say_that_there_is_none() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu/device.py"],
        cwd=ROOT,
        env={**os.environ, "BGN_TEST_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode
    assert f"DEVICE=cuda, but this torch ({torch.__version__}) sees no GPU" in result.stderr
    assert "Traceback" not in result.stderr


@needs_triton
@pytest.mark.slow
def test_statistics_of_several_processes() -> None:
    interpret("tests/test_sync.py", BGN_BACKEND="triton")


def child(code: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints, warnings first."""
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stderr + result.stdout


CALL = """
import torch, bgn
torch.manual_seed(0)
norm = bgn.BatchGroupNorm2d(4, 2)
x = torch.randn(2, 4, 6, 6, requires_grad=True)
for _ in range(2):
    norm(x).square().sum().backward()
print(bgn.info())
moved = norm.running_mean, norm.running_var, norm.weight.grad, norm.bias.grad
print([int(norm.num_batches_tracked), *(float(v) for t in moved for v in t)])
"""


@needs_triton
def test_a_triton_that_cannot_be_imported_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("raise ImportError('no such libtriton')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    said = child(CALL, PYTHONPATH=path, TRITON_INTERPRET="1", BGN_BACKEND="triton")
    assert said.count("triton does not work here (ImportError: no such libtriton)") == 1
    assert "no triton (ImportError: no such libtriton)" in said
    assert numbers(said)[0] == 2  # batches


BREAK = """
import importlib, os, sys
import torch
from bgn.kernels.triton import launch
import triton.errors, triton.runtime.build
where, fused, error = sys.argv[1:]
if not int(fused):
    launch.FUSED = 0
class Broken:
    def __getitem__(self, grid):
        if error == "compiler":
            os.environ.pop("CC", None)
            os.environ["PATH"] = ""
            triton.runtime.build._build("launcher", "launcher.c", ".", [], [], [], [])
        raise eval(error)("no such target")
module, name = where.split(".")
setattr(importlib.import_module(f"bgn.kernels.triton.{module}"), name, Broken())
"""
CUMULATIVE = CALL.replace("4, 2)", "4, 2, momentum=None)")
CENTERED = CALL.replace("4, 2)", "4, 2, center='channel')")


def numbers(said: str) -> list[float]:
    """The last line that a child printed."""
    found: list[float] = json.loads(said.splitlines()[-1])
    return found


@functools.cache
def right(code: str) -> list[float]:
    return numbers(child(code, BGN_BACKEND="definition"))


@needs_triton
@pytest.mark.parametrize(
    ("code", "kernel", "error"),
    [
        (CUMULATIVE, "merge.merge_moments", "triton.errors.TritonError"),
        (CUMULATIVE, "sweeps.write", "triton.errors.TritonError"),
        (CUMULATIVE, "fused.forward", "compiler"),
        *(
            pytest.param(*case, "compiler", marks=pytest.mark.slow)
            for case in [
                (CUMULATIVE, "sweeps.moments"),
                (CUMULATIVE, "sweeps.products"),
                (CENTERED, "sweeps.products"),  # sweep by sweep
            ]
        ),
    ],
)
def test_a_triton_that_cannot_compile_is_said_once(code: str, kernel: str, error: str) -> None:
    """Whichever kernel it is, and running statistics move once per batch all the same."""
    fused = str(int(kernel.startswith("fused")))
    interpreted = {"TRITON_INTERPRET": "1", "BGN_BACKEND": "triton"}
    said = child(BREAK + code, kernel, fused, error, **interpreted)
    why = "TritonError: no such target"
    if error == "compiler":
        why = "RuntimeError: Failed to find C compiler"
    assert said.count(f"triton does not work here ({why}") == 1, said
    assert f"no triton ({why}" in said
    torch.testing.assert_close(numbers(said), right(code), rtol=1e-4, atol=1e-4)


@needs_triton
@pytest.mark.parametrize("kernel", ["sweeps.write", "sweeps.products"])
def test_an_error_of_memory_is_not_tritons(kernel: str) -> None:
    """It is raised, and later calls get triton all the same."""
    code = """
norm = bgn.BatchGroupNorm2d(4, 2)
try:
    norm(torch.randn(2, 4, 6, 6, requires_grad=True)).sum().backward()
except torch.OutOfMemoryError as error:
    print("raised:", error, bgn.kernels.triton.why_not() == "")
"""
    said = child(
        BREAK + "import bgn\n" + code, kernel, "0", "torch.OutOfMemoryError",
        TRITON_INTERPRET="1", BGN_BACKEND="triton",
    )  # fmt: skip
    assert said.strip() == "raised: no such target True"


def test_the_choice_on_a_gpu() -> None:
    """torch's own kernels where they have the same traffic in fewer launches, and float64."""

    def choice(shape: tuple[int, ...], G: int, B: int = 1, last: bool = False) -> str:
        x = torch.empty(shape, device="meta")
        if last:
            x = x.contiguous(memory_format=torch.channels_last)
        N, C, *space = shape
        plan = kernel_calls.plan(x, slices(N, C, torch.Size(space).numel(), G, B))
        found = backends.gpu_choice(plan, 132)
        assert found.reason
        return found.name

    assert choice((2, 256, 56, 56), 1) == "triton"
    assert choice((8, 256, 56, 56), 256) == "triton"  # too few channels for a block each
    assert choice((8, 512, 28, 28), 512) == "triton"  # a channel fits a program
    assert choice((32, 512, 28, 28), 512) == "aten"
    assert choice((8, 256, 56, 56), 256, last=True) == "aten"
    assert choice((8, 1024, 14, 14), 32, B=8) == "triton"
    assert choice((2, 1024, 1200, 1200), 1024) == "triton"  # 2^31 elements
    assert not triton.is_eligible(
        torch.empty(2, 4, 3, 3, dtype=torch.float64),
        kernel_calls.plan(torch.empty(2, 4, 3, 3, dtype=torch.float64), slices(2, 4, 9, 2)),
        None,
        None,
    )


def test_nothing_changes_on_a_cpu() -> None:
    x = torch.randn(2, 4, 3, 3)
    assert not backends.is_for_triton(x, kernel_calls.plan(x, slices(2, 4, 9, 2)))
    assert "triton" not in bgn.info().devices


def test_a_backend_that_is_not_there_is_refused() -> None:
    if "triton" in kernels.BACKENDS:
        pytest.skip("it is there")
    with pytest.raises(ValueError, match="BGN_BACKEND='triton', but"):
        kernels.choose("triton")

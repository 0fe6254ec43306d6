"""The shared library in a process: several threads, after a fork, missing or damaged."""

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import bgn
from bgn.kernels import cpu
from bgn.kernels.library import find, load

pytestmark = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")


def test_from_several_python_threads() -> None:
    torch.manual_seed(0)
    norm = bgn.BatchGroupNorm2d(8, 3, track_running_stats=False)
    inputs = [torch.randn(3, 8, 20, 20 + i) for i in range(8)]
    expected = [norm(x) for x in inputs]
    found: list[Any] = [None] * 8

    def work(i: int) -> None:
        for _ in range(20):
            found[i] = norm(inputs[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _in_a_child(queue: Any) -> None:
    torch.set_num_threads(1)  # as a DataLoader's worker does
    queue.put(bgn.BatchGroupNorm2d(8, 3)(torch.ones(2, 8, 100, 100)).abs().max().item())


@pytest.mark.usefixtures("two_threads")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_after_a_fork() -> None:
    bgn.BatchGroupNorm2d(8, 3)(torch.randn(2, 8, 100, 100))  # the parent's threads are running
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_a_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60) == 0
    child.join(timeout=60)


def whole_library() -> bytes:
    path = find()
    assert path is not None
    return path.read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda: None, "missing: it is compiled when the package is installed"),
        (lambda: b"no library", "damaged or for another machine"),
        (lambda: whole_library()[:100], "damaged or for another machine"),
        (lambda: whole_library()[:50_000], "damaged or for another machine"),
    ],
    ids=["missing", "text", "its header", "a part of it"],
)
def test_without_a_library_it_says_why(
    monkeypatch: Any, tmp_path: Path, content: Any, words: str
) -> None:
    path = tmp_path / "_native.so"
    if content() is not None:
        path.write_bytes(content())
    monkeypatch.setattr("bgn.kernels.library.find", lambda: path if path.exists() else None)
    library, why = load()
    assert library is None
    assert words in why
    monkeypatch.setattr(cpu, "_found", None)
    monkeypatch.setattr(cpu, "why_not", why)
    monkeypatch.setattr(bgn.kernels.backends, "BACKENDS", ("aten", "definition"))
    assert bgn.kernels.choose("auto").name == "aten"
    assert words in bgn.kernels.choose("auto").reason
    with pytest.raises(ValueError, match=f"BGN_BACKEND='cpu', but cpu is {words}"):
        bgn.kernels.choose("cpu")


@pytest.mark.parametrize(
    ("asked", "words"), [("default", "default"), ("sse", "accepted: default, avx2, avx512")]
)
def test_the_environment_chooses_the_instruction_set(asked: str, words: str) -> None:
    code = "import bgn.kernels.cpu as cpu; print(cpu.library.capability)"
    environment = {**os.environ, "BGN_CPU_CAPABILITY": asked}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert words in done.stdout + done.stderr


def test_one_openmp_runtime_in_the_process() -> None:
    """In one of its own: other packages, which other tests load, bring theirs."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc")
    code = (
        "import bgn, torch; bgn.BatchGroupNorm2d(8, 3)(torch.randn(2, 8, 100, 100))\n"
        "mapped = {line.split()[-1] for line in open('/proc/self/maps')}\n"
        "print(bgn.info().backend,"
        " *(file for file in mapped if 'libgomp' in file or 'libomp' in file))"
    )
    environment = {**os.environ, "BGN_BACKEND": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    backend, *loaded = done.stdout.split()
    assert backend == "cpu"
    assert len(loaded) == 1, loaded


@pytest.mark.parametrize(
    ("variable", "backend", "warned"),
    [(None, "aten", True), ("aten", "aten", False), ("definition", "definition", False)],
)
def test_a_missing_library_is_announced_once_unless_it_is_not_wanted(
    variable: str | None, backend: str, warned: bool
) -> None:
    code = (
        "import importlib.machinery; importlib.machinery.EXTENSION_SUFFIXES = []\n"
        "import bgn, torch; norm = bgn.BatchGroupNorm2d(4, 2)\n"
        "for _ in range(3): norm(torch.ones(2, 4, 3, 3))\n"
        "print(bgn.info().backend)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "BGN_BACKEND"}
    if variable is not None:
        environment["BGN_BACKEND"] = variable
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == backend
    assert done.stderr.count("the C core of bgn is missing") == warned


def test_imported_in_inference_mode_it_is_as_fast_as_ever() -> None:
    code = (
        "import torch\n"
        "with torch.inference_mode(): import bgn\n"
        "x = torch.randn(2, 8, 4, 4)\n"
        "print(type(bgn.BatchGroupNorm2d(8, 8)(x).grad_fn).__name__)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "_NormalizeBackward" in done.stdout

"""Which autograd node is used and why, and how the one in C++ is built."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from bgn.kernels import build, cpu, node

pytestmark = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")
can_build = not node.obstacle() and any(map(shutil.which, build.COMPILERS))
needs_compiler = pytest.mark.skipif(
    not can_build, reason=f"the node in C++ cannot be built here: {node.obstacle()}"
)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder of built nodes, here and in processes that are started."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return node.cache_folder()


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != node.VARIABLE}
    root = str(Path(node.__file__).parent.parent.parent)
    return subprocess.run(
        [sys.executable, *arguments],
        env={**environment, "PYTHONPATH": root, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_folder_is_where_the_user_wants_caches(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert node.cache_folder() == tmp_path / "batch-group-norm"
    monkeypatch.setenv("HOME", str(tmp_path))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert node.cache_folder() == tmp_path / ".cache" / "batch-group-norm"


def test_the_name_has_all_that_a_node_depends_on(monkeypatch: Any, tmp_path: Path) -> None:
    names = {node.file_name()}
    assert f"torch{torch.__version__}" in node.file_name()
    with monkeypatch.context() as other:
        other.setattr(torch, "__version__", "2.14.0")
        names.add(node.file_name())
    with monkeypatch.context() as other:
        other.setattr(torch.version, "git_version", "another commit of the same version")
        names.add(node.file_name())
    with monkeypatch.context() as other:
        other.setattr("importlib.machinery.EXTENSION_SUFFIXES", [".cpython-399.so"])
        names.add(node.file_name())
    with monkeypatch.context() as other:
        (tmp_path / "node.cpp").write_text("another source")
        other.setattr(node, "SOURCES", (tmp_path / "node.cpp",))
        names.add(node.file_name())
    assert len(names) == 5


@needs_compiler
def test_without_one_the_node_in_python_is_used(cache: Path) -> None:
    module, choice = node.choose("auto")
    assert module is None
    assert str(choice) == "Python (no node in C++: not built: python -m bgn build)"
    with pytest.raises(
        ValueError, match="BGN_NODE='cpp', but there is no node in C\\+\\+: not bui"
    ):
        node.choose("cpp")
    cache.mkdir(parents=True)
    for content in (b"no library", b"\x7fELF\x02\x01" + bytes(100)):
        (cache / node.file_name()).write_bytes(content)
        module, choice = node.choose("auto")
        assert module is None
        assert "cannot be loaded" in choice.reason
    assert "python -m bgn build builds it again" in choice.reason


def test_nodes_are_forced_by_the_environment(cache: Path) -> None:
    assert node.choose("python") == (None, ("Python", "forced by BGN_NODE=python"))
    with pytest.raises(ValueError, match="BGN_NODE='c' is not a node; accepted: auto, python, cpp"):
        node.choose("c")
    assert (
        "node      Python (forced by BGN_NODE=python)"
        in python("-m", "bgn", BGN_NODE="python").stdout
    )
    assert (
        "BGN_NODE='cpp', but there is no node in C++" in python("-m", "bgn", BGN_NODE="cpp").stderr
    )
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("torch.__version__", "2.12.1", "needs torch 2.13 or newer, not 2.12.1"),
        ("sys.platform", "darwin", "on Linux only, not on darwin"),
        ("bgn.kernels.node.SOURCES", (Path("nowhere.cpp"),), "source is missing"),
    ],
)
def test_where_there_can_be_none(monkeypatch: Any, name: str, value: Any, words: str) -> None:
    monkeypatch.setattr(name, value)
    module, choice = node.choose("auto")
    assert module is None
    assert words in choice.reason
    with pytest.raises(build.BuildError, match=words):
        build.build()


@needs_compiler
def test_a_build_that_fails_says_why_and_leaves_nothing(
    cache: Path, monkeypatch: Any, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -x")
    assert build.main() == 1
    captured = capsys.readouterr()
    assert f"into {cache / node.file_name()}" in captured.out
    assert "not built: no C++ compiler found (looked for CXX=no-such-compiler)" in captured.err
    monkeypatch.delenv("CXX")
    source = tmp_path / "node.cpp"
    source.write_text("#error of the test")
    monkeypatch.setattr(node, "SOURCES", (source,))
    with pytest.raises(build.BuildError, match="(?s)the compiler failed:.*#error of the test"):
        build.build()
    source.write_text('extern "C" void* PyInit__node() { return 0; }')
    with pytest.raises(build.BuildError, match="what was built cannot be loaded"):
        build.build()
    assert list(cache.iterdir()) == []
    cache.chmod(0o500)
    if not os.access(cache, os.W_OK):
        with pytest.raises(build.BuildError, match="cannot write to"):
            build.build()


@pytest.mark.slow
@needs_compiler
def test_the_command_builds_a_node_that_the_next_process_uses(cache: Path) -> None:
    done = python("-m", "bgn", "build")
    assert done.returncode == 0, done.stderr
    assert f"for torch {torch.__version__} (about a minute)" in done.stdout
    assert "built in" in done.stdout
    assert [path.name for path in cache.iterdir()] == [node.file_name()]
    assert done.stderr == ""  # no warnings of the compiler either
    again = python("-m", "bgn", "build")
    assert again.stdout.startswith("already built: ")
    assert f"node      C++ (built for torch {torch.__version__})" in python("-m", "bgn").stdout
    code = (
        "import torch, bgn; y = bgn.BatchGroupNorm2d(4, 2)(torch.randn(2, 4, 3, 3));"
        "print(isinstance(y.grad_fn, torch.autograd.function.BackwardCFunction))"
    )
    assert python("-c", code).stdout.strip() == "False"
    assert python("-c", code, BGN_NODE="python").stdout.strip() == "True"

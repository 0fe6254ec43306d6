"""The autograd node in C++: where it is, and whether it is used.

It is compiled against the headers of one build of torch, so it is no part of a wheel: ``python -m
bgn build`` compiles it (:mod:`bgn.kernels.build`) into a folder of the user. Its file's name has
the versions of torch and Python and a digest of its source, so a node that was built for another
torch or by another version of this package is never loaded. Without it, the node is the one in
Python, with the same results and more time per call.

The environment variable ``BGN_NODE`` forces one: ``python`` or ``cpp``; ``auto``, the default,
takes the one in C++ where it is built. It is read once, when the package is imported.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import torch

from bgn.kernels.library import damage

VARIABLE = "BGN_NODE"
NODES = ("auto", "python", "cpp")
SOURCES = tuple(
    Path(__file__).parent.parent / "native" / name for name in ("node.cpp", "node_core.h")
)
OLDEST = (2, 13)  # the first torch whose headers it was written for
HOW = "python -m bgn build"


class Choice(NamedTuple):
    """Which node is at work, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


def cache_folder() -> Path:
    """The folder of built nodes: one per user, in $XDG_CACHE_HOME or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # relative paths are to be ignored, says the XDG specification
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return folder / "batch-group-norm"


def file_name() -> str:
    """The name of the file that is built for this torch and this Python from this source."""
    digest = hashlib.sha256(str(torch.version.git_version).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]  # such as .cpython-311-x86_64-linux-gnu.so
    return f"_node-torch{torch.__version__}-{digest.hexdigest()[:12]}{suffix}"


def obstacle() -> str:
    """Why there can be no node in C++ here, or nothing."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if sys.platform != "linux":
        return f"it is built on Linux only, not on {sys.platform}"
    if version < OLDEST:
        return f"it needs torch {'.'.join(map(str, OLDEST))} or newer, not {torch.__version__}"
    missing = [source.name for source in SOURCES if not source.exists()]
    return f"its source is missing ({', '.join(missing)})" if missing else ""


def load_file(path: Path) -> ModuleType:
    """The module in a file; ImportError where there is none that works."""
    wrong = damage(path)
    if wrong:
        raise ImportError(f"{path} is damaged: {wrong}")
    loader = importlib.machinery.ExtensionFileLoader("bgn._node", str(path))
    spec = importlib.util.spec_from_file_location("bgn._node", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def load() -> tuple[ModuleType | None, str]:
    """The module of the node, or why there is none."""
    why = obstacle()
    if why:
        return None, why
    try:
        path = cache_folder() / file_name()
        if not path.exists():
            return None, f"not built: {HOW}"
        return load_file(path), ""
    except (OSError, ImportError, RuntimeError) as error:  # RuntimeError: there is no home
        return None, f"cannot be loaded: {error}; {HOW} builds it again"


def choose(asked: str) -> tuple[ModuleType | None, Choice]:
    """The node to use when the environment asks for ``asked``, and the module where it is C++."""
    if asked == "python":
        return None, Choice("Python", f"forced by {VARIABLE}=python")
    if asked not in ("", *NODES):
        raise ValueError(f"{VARIABLE}={asked!r} is not a node; accepted: {', '.join(NODES)}")
    module, why_not = load()
    if module is not None:
        return module, Choice("C++", f"built for torch {torch.__version__}")
    if asked == "cpp":
        raise ValueError(
            f"{VARIABLE}='cpp', but there is no node in C++: {why_not}; accepted: auto, python"
        )
    return None, Choice("Python", f"no node in C++: {why_not}")

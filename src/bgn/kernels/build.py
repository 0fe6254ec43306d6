"""``python -m bgn build``: compile the autograd node in C++ for the torch that is installed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch

from bgn.kernels import node

COMPILERS = ("c++", "g++", "clang++")
_LOAD = "import sys; from pathlib import Path; from bgn.kernels import node;"
_LOAD += "node.load_file(Path(sys.argv[1]))"


class BuildError(Exception):
    """Why there is no node: a sentence for the user."""


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, or the first one found."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [[name] for name in COMPILERS]:
        if shutil.which(command[0]):
            return command
    wanted = f"CXX={asked[0]}" if asked else ", ".join(COMPILERS)
    raise BuildError(f"no C++ compiler found (looked for {wanted})")


def command(target: Path) -> list[str]:
    """The command that compiles the node into ``target``."""
    home = Path(torch.__file__).parent
    headers = {
        home / "include" / "torch": "headers of torch",
        Path(sysconfig.get_path("include")) / "Python.h": "headers of Python",
    }
    for path, what in headers.items():
        if not path.exists():
            raise BuildError(f"the {what} are not installed ({path})")
    return [
        *compiler(),
        *("-std=c++20", "-O2", "-Wall", "-fPIC", "-shared"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *("-isystem", str(home / "include")),
        *("-isystem", sysconfig.get_path("include")),
        str(node.SOURCES[0]),
        *("-o", str(target)),
        f"-L{home / 'lib'}",  # no path in the file: torch is loaded when the node is
        *("-ltorch_python", "-ltorch_cpu", "-lc10"),
    ]


def build() -> Path:
    """Compile the node, try to load it, and put it where the package looks for it."""
    why = node.obstacle()
    if why:
        raise BuildError(why)
    folder = node.cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # beside the target, so that moving it there is one step
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as temporary:
            made = Path(temporary) / node.file_name()
            done = _run(command(made))
            if done.returncode:
                raise BuildError(f"the compiler failed:\n{done.stderr}")
            done = _run([sys.executable, "-c", _LOAD, str(made)])
            if done.returncode:
                raise BuildError(f"what was built cannot be loaded:\n{done.stderr}")
            return made.replace(folder / made.name)
    except OSError as error:
        raise BuildError(f"cannot write to {folder}: {error}") from error


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).parent.parent.parent)  # this copy of the package, and the old node
    path = os.pathsep.join([root, *filter(None, sys.path)])  # torch may be found through it
    environment = {**os.environ, "PYTHONPATH": path, node.VARIABLE: "python"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def main() -> int:
    """Build, say what is done and how long it took; the code to exit with."""
    why = node.obstacle()
    if why:
        print(f"not built: {why}", file=sys.stderr)
        return 1
    target = node.cache_folder() / node.file_name()
    if node.load()[0] is not None:
        print(f"already built: {target}")
        return 0
    print(f"compiling the autograd node in C++ for torch {torch.__version__} (about a minute)")
    print(f"into {target}", flush=True)
    start = time.monotonic()
    try:
        build()
    except BuildError as error:
        print(f"not built: {error}", file=sys.stderr)
        print("bgn works without it: its node in Python takes more time per call", file=sys.stderr)
        return 1
    print(f"built in {time.monotonic() - start:.0f} s; used from the next import of bgn on")
    return 0

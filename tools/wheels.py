"""Build what goes to PyPI: the source distribution, and a wheel for each Linux platform.

    python tools/wheels.py --out dist                    # this machine's platform
    python tools/wheels.py --out dist --machine aarch64  # by a cross compiler

A wheel is built from the source distribution and from nothing else. The C core is loaded with
ctypes, so a wheel serves every version of Python (py3-none-PLATFORM). auditwheel finds the oldest
manylinux that it runs on. libgomp is left out: torch brings its own, and two in a process would
compete for cores. Needs the extra `release`, a C compiler for the machine, and Linux.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
MACHINES = ("x86_64", "aarch64")
CORE = "bgn/_native.abi3.so"
OPENMP = "libgomp.so.1"


def compiler(machine: str) -> str:
    """The C compiler for a machine: this one's own, or Debian's cross compiler."""
    own = machine == platform.machine()
    name = os.environ.get("CC", "cc") if own else f"{machine}-linux-gnu-gcc"
    if shutil.which(name) is None:
        package = "gcc" if own else f"gcc-{machine}-linux-gnu"
        raise SystemExit(f"--machine {machine} needs the compiler {name} (Debian: {package})")
    return name


def run(*command: str, **environment: str) -> None:
    """Run a tool of this environment."""
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.run(
        [sys.executable, "-m", *command],
        check=True,
        env={**os.environ, "PATH": path, **environment},
    )


def source(out: Path) -> Path:
    """The source distribution."""
    run("build", "--sdist", "--outdir", str(out), str(ROOT))
    return newest(out, "*.tar.gz")


def wheel(archive: Path, machine: str, out: Path) -> Path:
    """The wheel for a machine, with its manylinux tag, from the source distribution."""
    cc = compiler(machine)
    environment = {
        "CC": cc,
        "LDSHARED": f"{cc} -shared",
        "CFLAGS": "-g0 -DNDEBUG -fwrapv -Wall",  # without paths of this machine
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",  # what setuptools calls the platform
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.unpack_archive(archive, folder)
        (unpacked,) = folder.iterdir()
        run("build", "--wheel", "--outdir", str(folder / "plain"), str(unpacked), **environment)
        plain = newest(folder / "plain", "*.whl")
        if CORE not in zipfile.ZipFile(plain).namelist():
            raise SystemExit(f"{plain.name} lacks {CORE}: the C core was not compiled")
        done = folder / "audited"
        run("auditwheel", "repair", "--exclude", OPENMP, "--wheel-dir", str(done), str(plain))
        return Path(shutil.copy(newest(done, "*.whl"), out))


def newest(folder: Path, pattern: str) -> Path:
    """The file that was written last."""
    return max(folder.glob(pattern), key=lambda path: path.stat().st_mtime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the results")
    parser.add_argument(
        "--machine", choices=MACHINES, action="append", help="may be repeated; default: this one"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    archive = source(options.out)
    built = [wheel(archive, name, options.out) for name in options.machine or [platform.machine()]]
    run("twine", "check", "--strict", str(archive), *map(str, built))
    print("\n".join(map(str, [archive, *built])))


if __name__ == "__main__":
    main()

"""The C code built with sanitizers, through everything that Python can ask of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = [ROOT / "src" / "bgn" / "native" / name for name in ("bgn.c", "plan.c")]
FLAGS = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
FLAGS += ["-std=gnu11", "-fopenmp", "-fno-math-errno", "-ffp-contract=fast", "-fPIC", "-shared"]


def runtime(name: str) -> str:
    """The path of one of gcc's libraries, or nothing."""
    if not shutil.which("gcc"):
        return ""
    path = subprocess.run(
        ["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True
    ).stdout.strip()
    # some distributions have a text file here that names the library to the linker
    return path if Path(path).is_file() and Path(path).read_bytes()[:4] == b"\x7fELF" else ""


@pytest.mark.slow
@pytest.mark.skipif(not all(source.exists() for source in SOURCES), reason="needs the source tree")
def test_memory_is_used_as_it_should_be(tmp_path: Path) -> None:
    preload = [runtime("libasan.so"), runtime("libubsan.so")]
    if not all(preload):
        pytest.skip("needs gcc with its sanitizers")
    library = tmp_path / "sanitized.so"
    subprocess.run(["gcc", *FLAGS, *map(str, SOURCES), "-o", str(library), "-lm"], check=True)
    environment = {
        **os.environ,
        # the process is Python's: the sanitizers have to be there before it
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python leaves things behind when it ends
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONMALLOC": "malloc",  # every allocation on its own
        "OMP_WAIT_POLICY": "passive",  # more threads than cores
        "BGN_NODE": "python",  # the one in C++ keeps to the library it was set up with
    }
    command = [sys.executable, "-m", "tests.sanitized_child", str(library)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    last = done.stdout.strip().rpartition("\n")[2]
    assert done.returncode == 0, f"after the case {last}\n{done.stderr[:5000]}"
    assert last.startswith("large"), "the last case was not reached"

"""The C code without torch: by other compilers, and for another architecture under emulation.

What is not installed is skipped. Debian's packages are clang, libomp-dev, gcc-aarch64-linux-gnu,
libc6-dev-arm64-cross and qemu-user.
"""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NATIVE = ROOT / "src" / "bgn" / "native"
PROGRAM = ROOT / "tests" / "native_check.c"
FLAGS = [
    "-O3",
    "-std=gnu11",
    "-fopenmp",
    "-fno-math-errno",
    "-ffp-contract=fast",
]  # as in pyproject.toml
CROSS = "aarch64-linux-gnu-gcc"
OPENMP = "#include <omp.h>\nint main(void) { return omp_get_num_threads() - 1; }\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (NATIVE.exists() and PROGRAM.exists()), reason="needs the source tree"),
]


def compiled(compiler: str, folder: Path, *more: str) -> str:
    """The program that compares the C code with naive loops.

    Skips the test where the compiler cannot make one.
    """
    probe, program = folder / "probe.c", str(folder / "check")
    probe.write_text(OPENMP)
    if not shutil.which(compiler):
        pytest.skip(f"needs {compiler}")
    if subprocess.run(
        [compiler, "-fopenmp", *more, str(probe), "-o", program], capture_output=True
    ).returncode:
        pytest.skip(f"needs {compiler} with OpenMP")
    command = [compiler, *FLAGS, *more, "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}", str(PROGRAM)]
    subprocess.run([*command, "-o", program, "-lm"], check=True)
    return program


def run(*command: str) -> list[str]:
    """The instruction sets that passed."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # more threads than cores
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition(":")[0] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_here(compiler: str, tmp_path: Path) -> None:
    cpu = Path("/proc/cpuinfo")
    expected = ["base"]
    if compiler == "gcc" and platform.machine() == "x86_64" and cpu.exists():
        flags = cpu.read_text().split()
        wide = {"avx2": {"avx2"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
        expected += [name for name, needs in wide.items() if needs <= set(flags)]
    assert run(compiled(compiler, tmp_path)) == expected


def test_for_aarch64(tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if not emulator:
        pytest.skip("needs qemu-aarch64")
    # linked statically, so that nothing has to be found while it is emulated
    assert run(emulator, compiled(CROSS, tmp_path, "-static")) == ["base"]

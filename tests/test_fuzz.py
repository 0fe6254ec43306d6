"""The random comparison of the C core with the definition (tests/fuzz.py), short and long."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from bgn.kernels import cpu

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")


def fuzz(seed: int, seconds: int) -> None:
    """In a process of its own: it changes threads and instruction sets."""
    command = ["-m", "tests.fuzz", "--seed", str(seed), "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_for_a_few_seconds() -> None:
    fuzz(0, 4)


@pytest.mark.slow
def test_for_ten_minutes() -> None:
    fuzz(random.SystemRandom().randrange(2**31), 600)

"""In the interpreter, every launch of every test is watched, and unwritten memory is NaN."""

import os
from collections.abc import Iterator

import pytest
import torch

from bgn.kernels import triton


def pytest_configure() -> None:
    if os.environ.get("BGN_TEST_DEVICE") == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(f"DEVICE=cuda, but this torch ({torch.__version__}) sees no GPU")


@pytest.fixture(scope="session", autouse=True)
def watch() -> Iterator[None]:
    if not triton.interpreted:
        yield
        return
    from tests.gpu.watch import watched  # imports triton

    torch.use_deterministic_algorithms(True)  # fills what torch.empty makes
    with watched() as checked:
        yield
    torch.use_deterministic_algorithms(False)
    print(f"{len(checked)} launches without a race")

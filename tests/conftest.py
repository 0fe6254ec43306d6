"""Set-up that every test shares: the number of threads, reproducible draws."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

# one thread unless told otherwise, because pytest-xdist runs one process per core; processes that
# a test starts have as many as this one, so that both round their sums alike
THREADS = int(os.environ.get("BGN_TEST_THREADS", "1"))
os.environ["OMP_NUM_THREADS"] = str(THREADS)
torch.set_num_threads(THREADS)
settings.register_profile(
    "suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


@pytest.fixture(autouse=True)
def reproducible_draws() -> None:
    """Let a test draw the same numbers whichever tests its process ran before."""
    torch.manual_seed(int(os.environ.get("BGN_TEST_SEED", "0")))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

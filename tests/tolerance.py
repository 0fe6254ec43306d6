"""One table of tolerances per dtype, for everything that is compared."""

from typing import Any

import torch
from torch import Tensor

TOLERANCES = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-10},
    torch.float32: {"rtol": 1e-4, "atol": 2e-5},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
}


def assert_close(
    actual: Tensor, expected: Tensor, dtype: torch.dtype | None = None, **overrides: Any
) -> None:
    """Compare values within the tolerance of the coarser dtype (or of ``dtype``)."""
    coarse = dtype or max((actual.dtype, expected.dtype), key=lambda d: torch.finfo(d).eps)
    torch.testing.assert_close(
        actual.double(), expected.double(), **{**TOLERANCES[coarse], **overrides}, equal_nan=False
    )

"""The GPU core beside the definition in float64; small tiles on request.

In triton's interpreter: only for processes with TRITON_INTERPRET=1, which ``tests/test_triton.py``
starts. Or on a GPU, with BGN_TEST_DEVICE=cuda (``make test DEVICE=cuda``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bgn import kernels
from bgn.activation import After
from bgn.kernels import plans, triton
from bgn.kernels.triton import launch
from bgn.partition import Partition
from bgn.renorm import Reference
from bgn.running import Running
from tests import kernel_calls

DEVICE = os.environ.get("BGN_TEST_DEVICE", "cpu")
torch.set_default_device(DEVICE)
EPS = 1e-3
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
# of the largest number of the exact result; sums of gradients with a mean cancel digits
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}


@contextlib.contextmanager
def tiles(elements: int, fused: int) -> Iterator[None]:
    """Within the context, tiles and fused statistics of so many elements, to see loops at work."""
    changed = {
        "TILE": {4: elements, 2: 2 * elements},
        "SMALLEST_TILE": elements,
        "FUSED": fused,
        "MERGE": max(elements // 2, 4),
    }
    plans._plans.clear()
    with contextlib.ExitStack() as stack:
        for name, value in changed.items():
            stack.enter_context(mock.patch.object(launch, name, value))
        yield
    plans._plans.clear()


def step(
    backend: str,
    x: Tensor,
    part: Partition,
    affine: tuple[Tensor | None, Tensor | None],
    gy: Tensor,
    running: Running | None = None,
    given: tuple[Tensor, Tensor] | None = None,
    reference: Reference | None = None,
    after: After | None = None,
) -> tuple[dict[str, Tensor], str]:
    """Output, gradients and running statistics of one step, and the module of its node."""
    residual = None if after is None else after.residual
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, *affine, residual)]
    if after is not None:
        after = After(after.act, leaves[3])
    plan = kernel_calls.plan(leaves[0], part)
    with kernels.use(backend):
        if given is None:
            y = kernels.normalize(leaves[0], plan, *leaves[1:3], EPS, running, reference, after)
        else:
            y = kernels.normalize_with(leaves[0], plan, *given, *leaves[1:3], EPS, after)
        y.backward(gy)
    found = {"y": y.detach()}
    for name, leaf in zip(("gx", "gw", "gb", "gr"), leaves, strict=True):
        if leaf is not None:
            found[name] = leaf.grad
    if running is not None:
        found |= {"mean": running.mean, "var": running.var}
        if running.counter is not None:
            found["counter"] = running.counter
    return found, ran(y)


def ran(y: Tensor) -> str:
    """The backend of a node's class."""
    node: Any = type(y.grad_fn)
    module = str(getattr(node, "_forward_cls", node).__module__)
    return module.removeprefix("bgn.kernels.").partition(".")[0]


def assert_same(ours: dict[str, Tensor], exact: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Within the tolerance of a dtype, by the largest number of each exact result."""
    for name, expected in exact.items():
        found = ours[name]
        assert found.shape == expected.shape, name
        precise = found.dtype if found.dtype in TOLERANCES else torch.float32
        error = (found.double() - expected.double()).abs().max()
        limit = TOLERANCES[max(precise, dtype, key=lambda d: torch.finfo(d).eps)]
        assert error <= limit * expected.double().abs().max().clamp(min=1), (name, error)


assert triton.interpreted or DEVICE == "cuda", "set TRITON_INTERPRET=1 before Python starts"

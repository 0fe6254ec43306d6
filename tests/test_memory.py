"""A training step takes no more memory than BatchNorm's: nothing else of x's size at any time."""

import subprocess
import sys

import pytest

from bgn.kernels import cpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the peak of memory is read as Linux gives it"
    ),
]

CODE = """
import ctypes, sys, torch, bgn
from pathlib import Path
from torch import nn
torch.set_num_threads(2)
layer, layout, dtype = eval(sys.argv[1]), getattr(torch, sys.argv[2]), getattr(torch, sys.argv[3])
shape = 8, 64, 140, 140  # 40 MB in float32
x, gy = (torch.empty(shape, dtype=dtype, memory_format=layout).normal_() for _ in range(2))
layer(x[:, :, :9, :9].clone()).sum().backward()  # whatever happens at the first call
x.requires_grad_()
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
def status(key):
    return int(Path("/proc/self/status").read_text().split(key + ":")[1].split()[0]) * 1024
before = status("VmRSS")
layer(x).backward(gy)
print((status("VmHWM") - before) / (x.numel() * x.element_size()))
"""
BATCH_NORM = "nn.BatchNorm2d(64)"
OURS = [f"bgn.BatchGroupNorm2d(64, {G})" for G in (1, 512)]
OURS += [
    "bgn.GroupNorm(8, 64)",
    "bgn.GroupNorm(64, 64)",
    "bgn.PositionalNorm2d(64)",
    "bgn.GeneralBatchGroupNorm2d(64, 8, 4)",
]


def growth(layer: str, layout: str, dtype: str) -> float:
    """Peak of memory above what was there before, in sizes of x."""
    command = [sys.executable, "-c", CODE, layer, layout, dtype]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(
    ("layout", "dtype"), [("contiguous_format", "float32"), ("channels_last", "bfloat16")]
)
def test_no_more_than_batch_norm(layout: str, dtype: str) -> None:
    allowed = (
        growth(BATCH_NORM, layout, dtype) + 0.15
    )  # PN has as many statistics as there are positions
    assert allowed > 1.5  # the output and a gradient
    found = {layer: growth(layer, layout, dtype) for layer in OURS}
    assert {layer: size for layer, size in found.items() if size > allowed} == {}

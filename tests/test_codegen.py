"""Machine code of the GPU core, compiled ahead of time for real GPUs, against what was kept."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton
from benchmarks.gpu import codegen
from benchmarks.gpu.codegen import CALLS, TARGETS, Code

KEPT = codegen.kept()
MORE_REGISTERS = 8  # a step of the hardware's allocation
FEW = ("G = 1", "GN, bfloat16", "PN, channels_last")
same_triton = pytest.mark.skipif(
    not triton.__version__.startswith("3.9."), reason="figures are those of triton 3.9"
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def assert_no_worse(found: list[Code]) -> None:
    """No spills; no more registers, no more shared memory and no narrower accesses than kept."""
    assert found
    for code in found:
        before = KEPT[code.key]
        assert code.spilled == 0, code
        assert code.registers <= before.registers + MORE_REGISTERS, (code, before)
        assert code.shared <= before.shared, (code, before)
        assert (code.load, code.store) >= (before.load, before.store), (code, before)
        assert code.load >= before.load, (code, before)
        assert code.store >= before.store, (code, before)


@same_triton
def test_some_calls_on_one_gpu() -> None:
    calls = tuple(call for call in CALLS if call.name in FEW)
    assert len(calls) == len(FEW)
    assert_no_worse(codegen.codes(("sm_90",), calls))


@same_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_every_call(target: str) -> None:
    assert_no_worse(codegen.codes((target,)))


def test_what_is_kept_has_no_spills_and_wide_accesses() -> None:
    """16 bytes for each access of x's size, where rows are multiples of 16 bytes."""
    assert {code.target for code in KEPT.values()} == set(TARGETS)
    shapes = {call.name: call for call in CALLS}
    for code in KEPT.values():
        assert code.spilled == 0, code
        call = shapes[code.call]
        positions = torch.Size(call.shape[2:]).numel()
        even = not code.call.startswith("uneven") and positions % 8 == 0
        if even and code.target.startswith("sm"):
            if code.kernel in ("sweeps.write", "sweeps.write_gradient", "fused.forward"):
                assert (code.load, code.store) == (16, 16), code
            if code.kernel in ("sweeps.moments", "sweeps.products"):
                assert code.load == 16, code


def test_a_worse_kernel_is_noticed() -> None:
    own = next(iter(KEPT.values()))
    worse = [
        Code(**{**vars(own), name: value})
        for name, value in [
            ("spilled", 4),
            ("registers", own.registers + MORE_REGISTERS + 1),
            ("shared", own.shared + 1),
            ("load", own.load - 1),
            ("store", own.store - 1),
        ]
    ]
    assert_no_worse([own])
    for code in worse:
        with pytest.raises(AssertionError):
            assert_no_worse([code])

"""Machine code of the Triton kernels for real GPUs, made and inspected without one.

    python -m benchmarks.gpu.codegen            # the table
    python -m benchmarks.gpu.codegen --update   # and keep it as what tests compare with

Every kernel of the calls in CALLS is compiled ahead of time, by triton with the assemblers that its
wheel brings. Told is what the assemblers say:

- registers of a thread, and how many of them were *spilled* to memory: none may be;
- bytes of shared memory of a program;
- *widest*: bytes of the widest load and of the widest store of memory that one thread makes at
  once: 16 where alignment allows. (Kernels that write a map store nothing else.)

Nothing runs. On how fast the code is, this says nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import create_function_from_signature

from benchmarks.gpu.record import Call, Launched, launches
from bgn.partition import channel_groups

KEPT = Path(__file__).with_name("codegen.json")
PROCESSORS = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304}
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
half = torch.bfloat16
CALLS = (
    Call("G = 1", (2, 256, 56, 56), 1),
    Call("G = 1, bfloat16", (2, 256, 56, 56), 1, dtype=half),
    Call("G = 1, channels_last", (2, 256, 56, 56), 1, channels_last=True),
    Call("G = 1, channels_last, bfloat16", (2, 256, 56, 56), 1, dtype=half, channels_last=True),
    Call("G = 1, small", (2, 2048, 7, 7), 1),
    Call("G = 16", (8, 512, 28, 28), 16),
    Call("G = C", (8, 64, 56, 56), 64),
    Call("G = C, channels_last", (8, 64, 56, 56), 64, channels_last=True),
    Call("G = 2 C", (8, 64, 32, 32), 128),
    Call("G = 2 C, channels_last", (8, 64, 32, 32), 128, channels_last=True),
    Call("G = D", (64, 64, 8, 8), 4096),
    Call("uneven", (8, 64, 32, 32), 7),
    Call("uneven, channels_last", (8, 64, 32, 32), 7, channels_last=True),
    Call("GBGN", (8, 100, 32, 32), 32, 2, cut=channel_groups),
    Call("GN", (8, 1024, 14, 14), 32, None),
    Call("GN, bfloat16", (8, 1024, 14, 14), 32, None, dtype=half),
    Call("GN, channels_last", (8, 1024, 14, 14), 32, None, channels_last=True),
    Call("GN, large", (8, 64, 112, 112), 32, None),
    Call("IN, small", (8, 512, 7, 7), 512, None),
    Call("G = 1, relu", (2, 256, 56, 56), 1, act="relu"),
    Call("G = 1, sum, relu", (2, 256, 56, 56), 1, act="relu", residual=True),
    Call("G = 1, silu, bfloat16", (2, 256, 56, 56), 1, dtype=half, act="silu"),
    Call("G = 16, channels_last, relu", (8, 512, 28, 28), 16, channels_last=True, act="relu"),
    Call("uneven, hardswish", (8, 64, 32, 32), 7, act="hardswish"),
    Call("GN, relu", (8, 1024, 14, 14), 32, None, act="relu"),
    Call("GN, sum, leaky_relu", (8, 1024, 14, 14), 32, None, act="leaky_relu", residual=True),
    Call("GN, silu, channels_last", (8, 1024, 14, 14), 32, None, channels_last=True, act="silu"),
    Call("PN", (8, 256, 56, 56), 1, positional=True),
    Call("PN, bfloat16", (8, 256, 56, 56), 1, dtype=half, positional=True),
    Call("PN, many channels", (2, 2048, 7, 7), 1, positional=True),
    Call("PN, channels_last", (8, 256, 56, 56), 1, channels_last=True, positional=True),
)


@dataclass(frozen=True)
class Code:
    """What the assembler says of one kernel."""

    kernel: str
    call: str
    target: str
    registers: int
    spilled: int
    shared: int
    load: int
    store: int

    @property
    def key(self) -> str:
        """What names it."""
        return f"{self.target}, {self.kernel}, {self.call}"


def compiled(launched: Launched, target: GPUTarget) -> Any:
    """The kernel that this launch would run on a target."""
    backend, kernel = make_backend(target), launched.kernel
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, special, options = binder(*launched.args, **launched.kwargs)
    kwargs = {**launched.kwargs, "debug": False}
    options, signature, constants, attributes = kernel._pack_args(
        backend, kwargs, bound, special, options
    )
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=options.__dict__)


def inspect(launched: Launched, call: str, name: str) -> Code:
    """What the assembler says of a launch's kernel."""
    found = compiled(launched, TARGETS[name])
    read = _of_nvidia if name.startswith("sm") else _of_amd
    registers, spilled, load, store = read(found, name)
    return Code(launched.name, call, name, registers, spilled, found.metadata.shared, load, store)


def _of_nvidia(found: Any, name: str) -> tuple[int, int, int, int]:
    from triton.backends.nvidia.compiler import get_ptxas  # fails where there is no NVIDIA backend

    with tempfile.NamedTemporaryFile(suffix=".ptx", mode="w") as file:
        file.write(found.asm["ptx"])
        file.flush()
        arch = f"{name}a" if name != "sm_80" else name
        command = [get_ptxas(int(name[3:])).path, "-v", f"-arch={arch}", file.name, "-o"]
        said = subprocess.run(
            [*command, "/dev/null"], capture_output=True, text=True, check=True
        ).stderr
    registers = int(re.search(r"Used (\d+) registers", said)[1])  # type: ignore[index]
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", said)))
    ptx = found.asm["ptx"]
    return (
        registers,
        spilled,
        _widest(r"ld\.global[\w.:]*?((?:\.v\d)?\.[bfu]\d+)", ptx),
        _widest(r"st\.global[\w.:]*?((?:\.v\d)?\.[bfu]\d+)", ptx),
    )


def _widest(pattern: str, text: str) -> int:
    """Bytes of the widest access."""
    sizes = [0]
    for width in re.findall(pattern, text):
        parts = re.fullmatch(r"(?:\.v(\d))?\.[bfu](\d+)", width)
        assert parts is not None
        sizes.append(int(parts[1] or 1) * int(parts[2]) // 8)
    return max(sizes)


def _of_amd(found: Any, _: str) -> tuple[int, int, int, int]:
    text = found.asm["amdgcn"]

    def number(field: str) -> int:
        return sum(map(int, re.findall(rf"\.{field}:\s+(\d+)", text)))

    spilled = 4 * (number("vgpr_spill_count") + number("sgpr_spill_count"))
    widths = {"ubyte": 1, "ushort": 2, "short": 2, "dword": 4, "dwordx2": 8, "dwordx3": 12,
              "dwordx4": 16}  # fmt: skip

    def widest(kind: str) -> int:
        found = re.findall(rf"(?:global|buffer|flat)_{kind}_(\w+?)(?:_d16\w*)?\s", text)
        return max([0, *(widths.get(name, 0) for name in found)])

    return number("vgpr_count"), spilled, widest("load"), widest("store")


def codes(targets: tuple[str, ...] = tuple(TARGETS), calls: tuple[Call, ...] = CALLS) -> list[Code]:
    """Every kernel of the calls for every target."""
    found = {}
    for target in targets:
        for call in calls:
            for launched in [one for way in launches(call, PROCESSORS[target]) for one in way]:
                code = inspect(launched, call.name, target)
                found[code.key] = code
    return list(found.values())


def table(found: list[Code]) -> str:
    """One line per kernel and call, with a column per target: registers, shared memory, widths."""
    targets = list(dict.fromkeys(code.target for code in found))
    by = {(code.kernel, code.call, code.target): code for code in found}
    rows = list(dict.fromkeys((code.kernel, code.call) for code in found))
    lines = [f"| kernel | call | {' | '.join(targets)} |", "|---|---|" + "---|" * len(targets)]
    for kernel, call in rows:
        cells = []
        for target in targets:
            code = by.get((kernel, call, target))
            cells.append("" if code is None else _cell(code))
        lines.append(f"| {kernel} | {call} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(code: Code) -> str:
    spilled = f", **{code.spilled} spilled**" if code.spilled else ""
    return f"{code.registers}, {code.shared} B, {code.load}/{code.store}{spilled}"


FIGURES = ("registers", "spilled", "shared", "load", "store")


def save(found: list[Code]) -> None:
    """Keep what tests compare with."""
    rows = (
        f"{json.dumps(code.key)}: {json.dumps([getattr(code, name) for name in FIGURES])}"
        for code in found
    )
    KEPT.write_text("{{\n{}\n}}\n".format(",\n".join(rows)))


def kept() -> dict[str, Code]:
    """What was kept."""
    found = {}
    for key, figures in json.loads(KEPT.read_text()).items():
        target, kernel, call = key.split(", ", 2)
        found[key] = Code(kernel, call, target, **dict(zip(FIGURES, figures, strict=True)))
    return found


if __name__ == "__main__":
    everything = codes()
    print(table(everything))
    if "--update" in sys.argv:
        save(everything)

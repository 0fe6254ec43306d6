"""The shared library of the C core: where it is, its functions, and its own plans."""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import torch

from bgn.kernels import definition
from bgn.kernels.plans import Plan
from bgn.moments import Moments

# as in native/plan.h
TYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
SLICED, CHANNELS_LAST, POSITIONAL, BY_ROWS = range(4)  # ways through memory
_SERIAL = 40_000  # elements below which a second thread costs more than it gains
CAPABILITY = "BGN_CPU_CAPABILITY"
CAPABILITIES = ("default", "avx2", "avx512")  # as in native/bgn.c


class CRenorm(ctypes.Structure):
    """``bgn_renorm`` of native/plan.h."""

    _fields_: ClassVar = [
        ("mean", ctypes.c_void_p),
        ("var", ctypes.c_void_p),
        ("entries", ctypes.c_int64),
        ("r_max", ctypes.c_double),
        ("d_max", ctypes.c_double),
        ("r", ctypes.c_void_p),
        ("d", ctypes.c_void_p),
    ]


class CAct(ctypes.Structure):
    """``bgn_act`` of native/plan.h."""

    _fields_: ClassVar = [
        ("function", ctypes.c_int),
        ("inverted", ctypes.c_int),
        ("slope", ctypes.c_double),
        ("residual", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("inner", ctypes.c_void_p),
        ("again", ctypes.c_void_p),
    ]


LEAKY, SILU, HARDSWISH = range(3)  # functions, as in native/plan.h


class Library:
    """The functions of the shared library, with their signatures."""

    def __init__(self, path: str) -> None:
        handle = ctypes.CDLL(path)
        pointer, size, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(handle, name)
            found.restype, found.argtypes = result, arguments
            return found

        def kernel(name: str, *arguments: Any) -> Any:
            """A function of a plan, whose last argument is the number of threads."""
            return function(name, number, pointer, *arguments, number)

        x_y_w_b_low = pointer, pointer, pointer, pointer, number
        self.plan_new = function("bgn_plan_new", pointer, *[size] * 5, number, number, number)
        self.plan_free = function("bgn_plan_free", None, pointer)
        self._use = function("bgn_use", number, number)
        running = pointer, pointer, size, real, pointer
        self.forward = kernel(
            "bgn_forward", *x_y_w_b_low, real, pointer, *running, pointer, pointer
        )
        self.apply = kernel("bgn_apply", *x_y_w_b_low, real, *[pointer] * 4)
        self.backward = kernel(
            "bgn_backward", *[pointer] * 4, number, *[pointer] * 4, number, pointer, pointer
        )
        self.moments = kernel("bgn_moments", *[pointer] * 3)
        self.write = kernel("bgn_write", *x_y_w_b_low, *[pointer] * 2)
        self.products = kernel("bgn_products", *[pointer] * 3, number, *[pointer] * 5)
        self.write_gradient = kernel("bgn_write_gradient", *[pointer] * 4, number, *[pointer] * 3)
        self.use(os.environ.get(CAPABILITY) or CAPABILITIES[-1])

    def use(self, most: str) -> str:
        """Use the best instruction set of this CPU up to ``most``; returns which one that is."""
        if most not in CAPABILITIES:
            raise ValueError(f"{CAPABILITY}={most!r}; accepted: {', '.join(CAPABILITIES)}")
        self.capability = CAPABILITIES[self._use(CAPABILITIES.index(most))]
        return self.capability


def find() -> Path | None:
    """The file of the shared library, beside the package's modules."""
    folder = Path(__file__).parent.parent
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"_native{suffix}"
        if path.exists():
            return path
    return None


def load() -> tuple[Library | None, str]:
    """The library, or why there is none."""
    path = find()
    if path is None:
        return None, (
            "missing: it is compiled when the package is installed, where a C compiler is found"
            " (to try again: pip install --force-reinstall --no-deps batch-group-norm)"
        )
    wrong = damage(path)
    if wrong:
        return None, f"damaged or for another machine ({path.name}: {wrong})"
    try:
        return Library(str(path)), ""
    except (OSError, AttributeError) as error:
        return None, f"damaged or for another machine: {error}"


def damage(path: Path) -> str:
    """What is wrong with a file that would kill the process when it is loaded, or nothing.

    The system maps a file as its header says, and the process dies of a bus error where the file
    ends too early. ELF alone is looked into; elsewhere the loader reports errors.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        data = file.read(4096)
    if not data.startswith(b"\x7fELF") or len(data) < 64 or data[4] != 2:
        return "" if sys.platform != "linux" else "no 64-bit ELF file"
    order: Any = "little" if data[5] == 1 else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    # program headers: where they begin, the size of one, how many; segments: offset, size in file
    begin, each, many = number(32, 8), number(54, 2), number(56, 2)
    segments = [begin + i * each for i in range(many)]
    end = max([begin + many * each, *(number(s + 8, 8) + number(s + 32, 8) for s in segments)])
    return f"{size} bytes of {end}" if size < end else ""


class CorePlan:
    """The C core's plan of a shape: how its loops walk through memory; freed with its last user."""

    def __init__(self, library: Library, plan: Plan) -> None:
        part = self.part = plan.part
        self.shape, self.dtype, self.layout = plan.shape, plan.dtype, plan.layout
        self.numel = plan.numel
        self.statistics = torch.promote_types(plan.dtype, torch.float32)
        self.positional = plan.positional
        # whether the positions of a channel lie side by side
        together = plan.layout is torch.contiguous_format and part.P > 1
        if self.positional:
            walk = POSITIONAL if together else BY_ROWS
        else:
            walk = SLICED if together else CHANNELS_LAST
        size = part.N * part.P if self.positional else part.B * part.G  # statistics of each sort
        self.step = size * self.statistics.itemsize  # bytes from one sort to the next
        self.Statistics = ctypes.c_char * (3 * self.step)  # mean, variance, 1 / standard deviation
        self.serial = part.N * part.D < _SERIAL
        self._free = library.plan_free
        self.pointer = library.plan_new(
            part.N, part.C, part.P, part.B, part.G, part.whole_channels, TYPES[plan.dtype], walk
        )
        if not self.pointer:
            raise MemoryError(f"no memory for the plan of {part}")

    def threads(self) -> int:
        """How many threads to use."""
        return 1 if self.serial else torch.get_num_threads()

    def moments(self, stats: Any) -> Moments:
        """Statistics in memory of C as tensors, (B, G) each."""
        shape = 3, self.part.B, self.part.G
        mean, var, _ = torch.frombuffer(stats, dtype=self.statistics).view(shape)
        count = definition.count(self.part, mean)
        return Moments(count, mean, var * count)

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._free(self.pointer)

"""The shared library of the cpu backend: where it is, its functions, and its plans."""

from __future__ import annotations

import ctypes
import importlib.util
from typing import Any

import torch

from bgn.partition import Partition

TYPES = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}  # as in native/plan.h
SLICED, CHANNELS_LAST, POSITIONAL, BY_ROWS = range(4)  # ways through memory, as in native/plan.h
_SERIAL = 65536  # elements below which a second thread costs more than it gains


class Library:
    """The functions of the shared library, with their signatures."""

    def __init__(self, path: str) -> None:
        handle = ctypes.CDLL(path)
        pointer, size, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(handle, name)
            found.restype, found.argtypes = result, arguments
            return found

        self.plan_new = function("bgn_plan_new", pointer, *[size] * 5, number, number, number)
        self.plan_free = function("bgn_plan_free", None, pointer)
        self.use_avx2 = function("bgn_use_avx2", number, number)
        affine = pointer, pointer, number
        self.forward = function(
            "bgn_forward",
            number,
            pointer,
            pointer,
            pointer,
            *affine,
            real,
            *[pointer] * 3,
            size,
            real,
            pointer,
            number,
        )
        self.apply = function(
            "bgn_apply", number, pointer, pointer, pointer, *affine, real, *[pointer] * 3, number
        )
        self.backward = function(
            "bgn_backward", number, *[pointer] * 5, number, *[pointer] * 4, number, number
        )
        # the four sweeps on their own; not for PN
        self.moments = function("bgn_moments", number, *[pointer] * 4, number)
        self.write = function("bgn_write", number, *[pointer] * 3, *affine, *[pointer] * 2, number)
        self.products = function(
            "bgn_products", number, *[pointer] * 4, number, *[pointer] * 5, number
        )
        self.write_gradient = function(
            "bgn_write_gradient", number, *[pointer] * 5, number, *[pointer] * 3, number
        )
        self.use_avx2(1)  # where there is such a thing


def load() -> tuple[Library | None, str]:
    """The library, or why there is none."""
    spec = importlib.util.find_spec("bgn._native")
    if spec is None or spec.origin is None:
        return None, "not built: no C compiler was found when the package was installed"
    try:
        return Library(spec.origin), ""
    except (OSError, AttributeError) as error:
        return None, f"damaged or for another machine: {error}"


class Plan:
    """How the C code walks through one shape; freed with its last user."""

    def __init__(
        self,
        library: Library,
        part: Partition,
        dtype: torch.dtype,
        walk: int,
        layout: torch.memory_format,
    ) -> None:
        self.part, self.layout, self.positional = part, layout, walk in (POSITIONAL, BY_ROWS)
        self.statistics = torch.float64 if dtype == torch.float64 else torch.float32
        size = part.N * part.P if self.positional else part.B * part.G  # statistics of each sort
        self.step = size * self.statistics.itemsize  # bytes from one sort to the next
        self.Statistics = ctypes.c_char * (
            3 * self.step
        )  # memory for mean, biased variance and 1 / standard deviation
        self.serial = part.N * part.D < _SERIAL
        self._free = library.plan_free
        self.pointer = library.plan_new(
            part.N, part.C, part.P, part.B, part.G, part.whole_channels, TYPES[dtype], walk
        )
        if not self.pointer:
            raise MemoryError(f"no memory for the plan of {part}")

    def threads(self) -> int:
        """How many threads to use."""
        return 1 if self.serial else torch.get_num_threads()

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._free(self.pointer)

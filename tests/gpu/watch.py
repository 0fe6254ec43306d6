"""What the interpreter cannot notice: programs of a launch run at once on a GPU, here in turns.

Every address that a launch reads and writes is written down with the program that did it. It must
lie within a tensor that was passed; no two programs, and no two threads of a program, may write to
it; and no program may read it that did not write it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from triton.runtime import interpreter

from bgn.kernels.eligible import extent


@dataclass
class Launch:
    """What one launch has read and written so far: addresses, and whose they are."""

    name: str
    tensors: list[torch.Tensor]
    reads: list[tuple[Any, int]] = field(default_factory=list)
    writes: list[tuple[Any, int]] = field(default_factory=list)

    def check(self) -> None:
        """Raise an error for a race, or for an address that is nobody's."""
        read, reader = _together(self.reads)
        written, writer = _together(self.writes)
        self._check_bounds(np.concatenate([read, written]))
        written, first, times = np.unique(written, return_index=True, return_counts=True)
        if (times > 1).any():
            raise AssertionError(f"{self.name}: {(times > 1).sum()} addresses are written twice")
        if len(written):
            at = np.minimum(np.searchsorted(written, read), len(written) - 1)
            raced = (written[at] == read) & (writer[first][at] != reader)
            if raced.any():
                both = reader[raced][0], writer[first][at][raced][0]
                raise AssertionError(f"{self.name}: a program reads what another writes: {both}")

    def _check_bounds(self, addresses: Any) -> None:
        inside = np.zeros(len(addresses), dtype=bool)
        for tensor in self.tensors:
            begin = np.uint64(tensor.data_ptr())
            end = begin + np.uint64(extent(tensor) * tensor.element_size())
            inside |= (addresses >= begin) & (addresses < end)
        if not inside.all():
            raise AssertionError(f"{self.name}: {(~inside).sum()} addresses are of no tensor")


def _together(own: list[tuple[Any, int]]) -> tuple[Any, Any]:
    empty = np.empty(0, np.uint64)
    addresses = np.concatenate([empty, *(found for found, _ in own)])
    programs = np.repeat([0, *(pid for _, pid in own)], [0, *(len(found) for found, _ in own)])
    return addresses, programs


@contextlib.contextmanager
def watched() -> Iterator[list[str]]:
    """Within the context, every launch is checked; lists the names of kernels that were."""
    builder = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store
    call = interpreter.GridExecutor.__call__
    checked: list[str] = []
    current: list[Launch] = []

    def addresses(pointers: Any, mask: Any) -> Any:
        every, inside = np.broadcast_arrays(pointers.data, mask.data)
        return every[inside.astype(bool)].astype(np.uint64).ravel()

    def watch_load(ptrs: Any, mask: Any, *rest: Any) -> Any:
        current[-1].reads.append((addresses(ptrs, mask), builder.grid_idx[0]))
        return load(ptrs, mask, *rest)

    def watch_store(ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        current[-1].writes.append((addresses(ptrs, mask), builder.grid_idx[0]))
        return store(ptrs, value, mask, *rest)

    def watch_call(self: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        current.append(Launch(self.fn.__name__, tensors))
        call(self, *args, **kwargs)
        current[-1].check()
        checked.append(current.pop().name)

    with (
        mock.patch.object(builder, "create_masked_load", watch_load),
        mock.patch.object(builder, "create_masked_store", watch_store),
        mock.patch.object(interpreter.GridExecutor, "__call__", watch_call),
    ):
        yield checked

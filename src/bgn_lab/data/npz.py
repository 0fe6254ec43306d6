"""Arrays of .npz files, checked before memory is allocated for them; nothing is unpickled."""

from __future__ import annotations

import math
import sys
import zipfile
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bgn_lab.data.names import printable
from bgn_lab.system.memory import available_memory, gigabytes

COPIES = 2  # of every array that are in memory at a time: as read, and in the layout of a batch
KINDS = "biufSU"  # truth values, numbers and strings


def names(path: Path) -> tuple[str, ...]:
    """Names of the arrays in a file."""
    if not path.is_file():
        raise FileNotFoundError(f"{printable(path)} is not there; expected an .npz file")
    try:
        with zipfile.ZipFile(path) as archive:
            return tuple(
                name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")
            )
    except Exception as error:
        raise _unreadable(path, error) from None


def read(path: Path, needed: Sequence[str], optional: Iterable[str] = ()) -> dict[str, Any]:
    """The needed arrays, and those of the optional ones that are there."""
    found = names(path)
    if missing := [name for name in needed if name not in found]:
        have = printable(", ".join(found)) or "nothing"
        raise ValueError(
            f"{printable(path)} has no {', '.join(missing)}; expected {', '.join(needed)}, "
            f"found {have}"
        )
    wanted = [*needed, *(name for name in optional if name in found)]
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {name: archive.getinfo(f"{name}.npy").file_size for name in wanted}
            _refuse_size(sizes)
            return {name: _array(archive, name, sizes[name]) for name in wanted}
    except _Refused as error:
        raise ValueError(f"{printable(path)}: {error}") from None
    except Exception as error:  # zipfile, zlib and numpy raise many kinds for damaged files
        raise _unreadable(path, error) from None


class _Refused(Exception):
    """A file that can be read, but not used."""


def _unreadable(path: Path, error: Exception) -> Exception:
    if isinstance(error, MemoryError):
        return error
    why = printable(getattr(error, "strerror", None) or error) or type(error).__name__
    return ValueError(f"{printable(path)} cannot be read as an .npz file: {why}")


def _refuse_size(sizes: dict[str, int]) -> None:
    """Refuse more than memory can hold: a few bytes of a zip file can stand for gigabytes."""
    needed, available = COPIES * sum(sizes.values()), available_memory()
    if available is not None and needed > available:
        largest = max(sizes, key=lambda name: sizes[name])
        raise _Refused(
            f"its arrays need {gigabytes(needed)} of memory when loaded (the largest is {largest}, "
            f"{gigabytes(sizes[largest])}), {gigabytes(available)} are available"
        )


def _array(archive: zipfile.ZipFile, name: str, size: int) -> Any:
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise _Refused(f"{name} is in version {version} of the .npy format; expected 1 or 2")
        if dtype.hasobject or dtype.kind not in KINDS:
            raise _Refused(f"{name} is an array of type {dtype}; expected numbers or strings")
        described = math.prod(shape) * dtype.itemsize
        if min(shape, default=1) < 0 or described != size - file.tell():
            raise _Refused(
                f"{name} is damaged: {dtype} {shape} takes {described:,} bytes, "
                f"{size - file.tell():,} are there"
            )
    with archive.open(f"{name}.npy") as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    if dtype.kind == "U" and array.size:
        letters = array.astype(dtype.newbyteorder("=")).ravel().view(np.uint32)
        if len(letters) and letters.max() > sys.maxunicode:
            raise _Refused(f"{name} has letters beyond Unicode")
    return array


def strings(array: Any) -> tuple[str, ...]:
    """Names in an array of strings, or of bytes in UTF-8."""
    return tuple(
        printable(name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name)
        for name in np.ravel(array).tolist()
    )


def integers(path: Path, name: str, array: Any, count: int | None, least: int, most: int) -> Any:
    """The array as int64, if it is a row of so many integers, each from ``least`` to ``most``."""
    rows = "(M,)" if count is None else f"({count},)"
    if array.dtype.kind not in "iu" or array.ndim != 1 or count not in (None, len(array)):
        raise ValueError(
            f"{printable(path)}: {name} is {array.dtype} {array.shape}; expected integers {rows}"
        )
    for value in (array.min(), array.max()) if len(array) else ():
        if not least <= int(value) <= most:
            raise ValueError(
                f"{printable(path)}: {name} has the value {value}; expected {least} to {most}"
            )
    return array.astype(np.int64)


def labels(
    path: Path, rows: dict[str, Any], counts: dict[str, int], classes: int | None
) -> dict[str, Tensor]:
    """Labels for so many images. Without names of classes, there is no gap between labels."""
    most = np.iinfo(np.int64).max if classes is None else classes - 1
    found = {name: integers(path, name, y, counts[name], 0, most) for name, y in rows.items()}
    different = np.unique(np.concatenate([*found.values()]))  # sorted
    if classes is None and len(different) and different[-1] != len(different) - 1:
        gap = int(np.flatnonzero(different != np.arange(len(different)))[0])
        raise ValueError(
            f"{printable(path)}: {' and '.join(found)} have labels up to {different[-1]}, but none "
            f"is {gap}; expected 0, 1, 2, ... without a gap, or class_names"
        )
    return {name: torch.from_numpy(y) for name, y in found.items()}


def slices(
    path: Path, arrays: dict[str, Any], name: str, offsets: str, count: int | None = None
) -> list[Any]:
    """Files packed one after the other: number i is the bytes offsets[i] to offsets[i + 1]."""
    packed, ends = arrays[name], arrays[offsets]
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError(
            f"{printable(path)}: {name} is {packed.dtype} {packed.shape}; expected uint8 (bytes,)"
        )
    ends = integers(
        path, offsets, ends, None if count is None else count + 1, 0, len(packed)
    ).tolist()
    if not ends or any(b - a < 2 for a, b in pairwise(ends)):
        raise ValueError(
            f"{printable(path)}: {offsets} does not rise from file to file; "
            f"expected the places in {name} where files begin, and the end of the last"
        )
    return [packed[a:b] for a, b in pairwise(ends)]

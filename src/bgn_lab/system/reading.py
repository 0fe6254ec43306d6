"""Files that others wrote, read with errors that name them.

They come from other people and other versions, and get damaged. Nothing here waits for a pipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bgn_lab.system import schema
from bgn_lab.system.memory import available_memory, gigabytes
from bgn_lab.system.printable import shorten

LONGEST = 500  # characters of a reason: it may quote the file
SMALL = 1 << 20  # bytes of a file that fits into any memory
COPIES, OBJECTS = 3, 20  # bytes of memory for a byte of a file: as tensors, as objects of JSON
DAMAGE = (ValueError, TypeError, ArithmeticError, AttributeError, LookupError, RecursionError)
"""What code raises that takes the content of a file for what it should be."""


def problem(path: Path, copies: int = OBJECTS) -> str:
    """Why a file is better not opened, though it is there; nothing if it can be."""
    if not path.is_file():
        return "it is not a file" if path.exists() else ""  # a pipe would wait for its writer
    size = path.stat().st_size
    available = None if size <= SMALL else available_memory()  # a report reads thousands of files
    if available is not None and copies * size > available:
        return f"it has {gigabytes(size)}, and {gigabytes(available)} of memory are available"
    return ""


def read_bytes(path: Path, copies: int = COPIES) -> bytes:
    """The content of a regular file."""
    if why := problem(path, copies):
        raise ValueError(f"{path} cannot be read: {why}")
    return path.read_bytes()


def read_text(path: Path) -> str:
    """The text of a regular file in UTF-8."""
    with naming(path):
        return read_bytes(path, OBJECTS).decode()


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    text = read_text(path)
    with naming(path):
        return schema.parse(text)


def differences(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str:
    """What two identities differ in; nothing if they are the same.

    >>> differences({"norm": "gn", "seed": 0}, {"norm": "bn", "seed": 0})
    "norm='gn' there, 'bn' here"
    """
    return "; ".join(
        f"{name}={shorten(repr(theirs.get(name)), 80)} there, {value!r} here"
        for name, value in mine.items()
        if theirs.get(name) != value
    )


@contextmanager
def naming(path: object, remedy: str = "") -> Iterator[None]:
    """Turn whatever goes wrong with a file's content into a ValueError that names the file.

    >>> with naming("run/recipe.json", remedy="; remove it"):
    ...     {}["norm"]
    Traceback (most recent call last):
    ...
    ValueError: run/recipe.json is damaged (it has no 'norm'); remove it
    """
    try:
        yield
    except DAMAGE as error:
        if str(error).startswith(str(path)):  # it is named already
            raise
        why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} is damaged ({shorten(why, LONGEST)}){remedy}") from None

"""Names that come from disks and archives, made safe to print."""

from __future__ import annotations

import os
from collections.abc import Iterable


def printable(text: object) -> str:
    r"""Text with control characters, ANSI escapes and undecodable bytes written as escapes.

    >>> printable("a\x1b[31mb\n"), printable("caf\udce9"), printable("café 日本")
    ('a\\x1b[31mb\\n', 'caf\\xe9', 'café 日本')
    """
    return "".join(c if c.isprintable() else _escaped(c) for c in str(text))


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python decodes file names
        return f"\\x{code - 0xDC00:02x}"
    return ascii(character)[1:-1]


def class_names(folders: Iterable[str]) -> tuple[str, ...]:
    """Names of folders as names of classes: printable, and the same in every locale."""
    return tuple(
        printable(os.fsencode(name).decode("utf-8", "surrogateescape")) for name in folders
    )

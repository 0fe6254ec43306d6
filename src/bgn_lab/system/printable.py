"""Text from outside made safe to print, draw and write.

Such text is names of files and classes, and other people's records.
"""

from __future__ import annotations

from typing import Any


def printable(text: str) -> str:
    r"""Text with control characters, direction marks and bytes that are no UTF-8 as escapes.

    A terminal would obey some of them, a file in UTF-8 cannot hold others, and fonts have none.

    >>> printable("caf\xe9 \x1b[31m\udcff\n")
    'café \\x1b[31m\\udcff\\n'
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def shorten(text: str, most: int) -> str:
    """Printable text of at most so many characters.

    >>> shorten("a very long name of a class", 15), shorten("robin", 15)
    ('a very long na…', 'robin')
    """
    text = printable(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable_values(value: Any) -> Any:
    """A value of JSON with every text in it, keys too, made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list):
        return [printable_values(item) for item in value]
    if isinstance(value, dict):
        return {printable(name): printable_values(item) for name, item in value.items()}
    return value

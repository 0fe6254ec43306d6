"""Docstrings for the reference of the documentation: what Markdown would misread.

Zensical runs this (mkdocs.yml): Sphinx' roles, such as :func:`convert`, become plain code,
doctests become blocks of code, and C*H*W keeps its asterisks. A class whose constructor is
inherited shows it as its own.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr):`~?([^`]+)`")
PRODUCT = re.compile(r"(?<=\w)\*(?=\w)")


def markdown(text: str) -> str:
    """A docstring as Markdown.

    >>> print(markdown("See :func:`fold`: C*H*W.\\n\\n>>> 2 * 3\\n6"))
    See `fold`: C\\*H\\*W.
    <BLANKLINE>
    ```pycon
    >>> 2 * 3
    6
    ```
    """
    made: list[str] = []
    inside = False  # a doctest
    for line in [*text.split("\n"), ""]:
        if inside and not line.strip():
            made.append("```")
            inside = False
        elif not inside and line.startswith(">>> "):
            made.append("```pycon")
            inside = True
        code = inside or line.startswith("    ")
        made.append(line if code else PRODUCT.sub(r"\\*", ROLE.sub(r"`\1`", line)))
    return "\n".join(made).strip()


class Docstrings(griffe.Extension):
    """Rewrites every docstring that is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give each class the constructor that it inherits."""
        modules = [pkg]
        while modules:
            module = modules.pop()
            modules += module.modules.values()
            for cls in module.classes.values():
                if not cls.is_alias and "__init__" not in cls.members:
                    inherited = cls.inherited_members.get("__init__")
                    if inherited is not None:
                        cls.set_member("__init__", inherited)

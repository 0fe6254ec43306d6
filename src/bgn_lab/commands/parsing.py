"""Words of a command line to an object, with errors of a few lines that name the option."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import shlex
import shutil
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import Positional, Suppress
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from bgn_lab.commands.options import STYLE, help_of


@dataclass(frozen=True)
class Option:
    """An option as a shell sees it."""

    names: tuple[str, ...]
    """``--limit``, or both ``--amp`` and ``--no-amp``."""
    field: str
    values: tuple[str, ...] = ()
    """What it accepts, where that is a short list."""
    takes: str = "one"
    """How many values: none, one or several."""
    kind: str = "text"
    """What they are: text, whole, number, choice or path."""
    help: str = ""

    def refuses(self, value: str) -> bool:
        """Whether a value cannot be one of this kind."""
        if self.kind == "choice":
            return value not in self.values
        with contextlib.suppress(ValueError):
            {"whole": int, "number": float}.get(self.kind, str)(value)
            return False
        return True


WIDTH = 80  # columns of prose
DESCRIPTION = "(description)"
EXPECTED: Mapping[str, Callable[[Option], str]] = {
    "text": lambda _: "a word",
    "whole": lambda _: "a whole number",
    "number": lambda _: "a number",
    "path": lambda _: "a file or folder",
    "choice": lambda option: ", ".join(option.values),
}


REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def _word(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[str] | None:
    """What help calls a word: a NAME, where tyro has STR."""
    if info.type is not str:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="NAME",
        instance_from_str=lambda words: words[0],
        is_instance=lambda found: isinstance(found, str),
        str_from_instance=lambda word: [word],
    )


def options(kind: type) -> list[Option]:
    """The options of a dataclass, with those of dataclasses in it."""
    return list(_options(kind))


def _options(kind: type) -> Iterator[Option]:
    hints = get_type_hints(kind, include_extras=True)
    docs = _docs(kind)
    for own in fields(kind):
        hint: Any = hints[own.name]
        marks: tuple[Any, ...] = ()
        if get_origin(hint) is Annotated:
            hint, *rest = get_args(hint)
            marks = tuple(rest)
        if not own.init or Positional in marks or Suppress in marks:
            continue
        if is_dataclass(hint):
            yield from _options(hint)  # type: ignore[arg-type]
            continue
        yield _option(own.name, hint, _help(marks, docs.get(own.name, "")))


def positionals(kind: type) -> dict[str, str]:
    """Names and help of what has no option before it."""
    hints, docs = get_type_hints(kind, include_extras=True), _docs(kind)
    return {
        own.name: _help(get_args(hints[own.name]), docs.get(own.name, ""))
        for own in fields(kind)
        if get_origin(hints[own.name]) is Annotated and Positional in get_args(hints[own.name])
    }


def _help(marks: Sequence[Any], otherwise: str) -> str:
    """The help that the marks of an option have, the last one if several do."""
    return next((mark.help for mark in reversed(marks) if getattr(mark, "help", None)), otherwise)


def _docs(kind: type) -> dict[str, str]:
    try:
        return help_of(kind)
    except OSError:  # of make_dataclass, whose help is in the annotations
        return {}


def _option(name: str, hint: Any, help: str) -> Option:
    dashed = name.replace("_", "-")
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    takes = "one"
    if get_origin(hint) is tuple:
        takes, hint = "several", get_args(hint)[0]
    if hint is bool:
        return Option((f"--{dashed}", f"--no-{dashed}"), name, takes="none", help=help)
    values = tuple(map(str, get_args(hint))) if get_origin(hint) is Literal else ()
    kinds = {int: "whole", float: "number", str: "text", Path: "path"}
    kind = "choice" if values else kinds[hint]
    return Option((f"--{dashed}",), name, values, takes, kind, help)


def parse(kind: type, name: str, words: Sequence[str], description: str) -> Any:
    """An object of a dataclass; a ValueError names the option that is wrong.

    Args:
        kind: whose fields are the options.
        name: of the command.
        words: options and their values.
        description: for its help.
    """
    errors, printed = io.StringIO(), _Held()
    try:
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(printed):
            found: Any
            found, unknown = tyro.cli(
                kind, prog=f"bgn {name}", args=list(words), description=DESCRIPTION,
                config=STYLE, return_unknown_args=True, registry=REGISTRY,
            )  # fmt: skip
    except SystemExit as exit:
        if exit.code:
            raise ValueError(_failure(errors.getvalue(), words, kind)) from None
        # tyro would make a line of each paragraph, as long as it is
        print(printed.getvalue().replace(DESCRIPTION, _wrapped(description)), end="")
        raise
    if unknown:
        raise ValueError(_unknown(unknown, words, options(kind)))
    return found


class _Held(io.StringIO):
    """What is printed, held back; with colors if it will go to a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.terminal, self.letters = sys.stdout.isatty(), sys.stdout.encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Whether there are letters for boxes."""
        return self.letters

    def isatty(self) -> bool:
        return self.terminal


def _wrapped(description: str) -> str:
    """Paragraphs that fit the terminal; commands to paste stay as long as they are."""
    width = min(WIDTH, shutil.get_terminal_size().columns)
    prose, examples, rest = description.partition("examples:\n")
    parts = (textwrap.fill(" ".join(part.split()), width) for part in prose.split("\n\n"))
    return "\n\n".join(parts) + examples + rest


def _failure(box: str, words: Sequence[str], kind: type) -> str:
    """What is wrong with the value of the option that tyro's message names."""
    known = {name: option for option in options(kind) for name in option.names}
    name = next((name for name in re.findall(r"--[a-z][\w-]*", box) if name in known), None)
    if name is None:
        missing = positionals(kind)
        wanted = "; ".join(f"{name.upper()} is missing: {help}" for name, help in missing.items())
        return wanted or " ".join(re.sub(r"[│╭╮╰╯─]", " ", box).split())
    option, given = known[name], _given(name, words)
    if not given:
        return f"{name} needs a value; expected {EXPECTED[option.kind](option)}"
    wrong = given[0] if option.takes == "one" else next(filter(option.refuses, given), given[0])
    return (
        f"{name} {shlex.quote(wrong)} is not accepted; expected {EXPECTED[option.kind](option)}"
        f"{near(wrong, option.values)}"
    )


def _given(name: str, words: Sequence[str]) -> list[str]:
    """The values that an option has on the command line, the last time it occurs."""
    given: list[str] = []
    is_own = False
    for word in words:
        if word.startswith("--"):
            head, equals, value = word.partition("=")
            is_own = head.replace("_", "-") == name
            if is_own:
                given = [value] if equals else []
        elif is_own:
            given.append(word)
    return given


def _unknown(unknown: Sequence[str], words: Sequence[str], known: Sequence[Option]) -> str:
    """About the first word that belongs to nothing."""
    wrong = next((word for word in unknown if word.startswith("-")), None)
    if wrong is None:
        where = list(words).index(unknown[0]) if unknown[0] in words else 0
        after = f", which takes {_count(words[:where], known)}" if where else ""
        option = next((w for w in reversed(words[:where]) if w.startswith("-")), "")
        return f"{unknown[0]!r} is too much" + (f" after {option}{after}" if option else "")
    name = wrong.partition("=")[0]
    names = [own for option in known for own in option.names]
    return f"there is no option {name}{near(name, names)}"


def _count(before: Sequence[str], known: Sequence[Option]) -> str:
    name = next((w.partition("=")[0] for w in reversed(before) if w.startswith("-")), "")
    takes = next((option.takes for option in known if name in option.names), "one")
    return {"none": "no value", "one": "one value"}.get(takes, "values")


NAMED = re.compile(r"(?:(?<=\s)|^)([a-z]\w*)=(True\b|False\b|(?=\S))")
# arguments of the library, and fields of recipes that `bgn compare` has several of
OTHER_NAMES = {
    "num_groups": "groups", "norm": "norms", "batch_size": "batch_sizes", "task": "tasks",
}  # fmt: skip


def with_options(message: str, kind: type) -> str:
    """A message about arguments, ``epochs=0``, as one about options, ``--epochs 0``.

    >>> from bgn_lab.commands.plan import options_of
    >>> with_options("batch_sizes=0 is not positive", options_of([]))
    '--batch-sizes 0 is not positive'
    >>> with_options("amp=True is not for mps; there is no x=1", options_of([]))
    '--amp is not for mps; there is no x=1'
    """
    known = {option.field: option for option in options(kind)}
    words = positionals(kind)

    def option_of(field: str) -> Option | None:
        return known.get(field) or known.get(OTHER_NAMES.get(field, ""))

    def replaced(found: re.Match[str]) -> str:
        if found[1] in words:
            return f"{found[1].upper()} {found[2]}"
        option = option_of(found[1])
        if option is None:
            return found[0]
        if option.takes == "none":
            return option.names[found[2] == "False"]
        return f"{option.names[0]} {found[2]}"

    first, space, rest = message.partition(" is empty")
    if space and first in words:
        return f"{first.upper()}{space}{rest}"
    if space and (option := option_of(first)):
        return f"{option.names[0]}{space}{rest}"
    # what a colon follows is about parts of a value
    about, colon, why = message.partition("': ")
    return re.sub(NAMED, replaced, about) + colon + why


def near(word: str, accepted: Sequence[str]) -> str:
    """The end of a message that suggests what was probably meant.

    >>> near("--batch-size", ["--batch-sizes", "--seeds"]), near("x", ["--seeds"])
    ('; did you mean --batch-sizes?', '')
    """
    found = difflib.get_close_matches(word, accepted, n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""

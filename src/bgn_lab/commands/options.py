"""The options of a recipe on the command line: flat names, one group of help per part."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import MISSING, field, fields, make_dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from bgn_lab.recipe import Part, Recipe

# None is a default that help explains in words, not a value to type
STYLE = (tyro.conf.DisallowNone, tyro.conf.OmitArgPrefixes)
LEADING = ("data", "model", "normalizer", "training", "optimizer", "worker")
LAST = "runtime"


def groups(default: Recipe, without: tuple[str, ...] = ()) -> list[tuple[str, Any, Any]]:
    """Fields for ``dataclasses.make_dataclass``: one nested dataclass for each group of options.

    Args:
        default: a recipe whose values are the defaults.
        without: fields that are no options.
    """
    kind = type(default)
    hints, help = get_type_hints(kind, include_extras=True), help_of(kind)
    found: dict[str, list[tuple[str, Any, Any]]] = {group: [] for group in LEADING}
    for own in fields(kind):
        if not own.init or own.name in without:
            continue
        value = getattr(default, own.name)
        # an optional option has its default in its help
        hint = "" if value is None else None
        kind_of_value: Any = own.metadata.get("type", hints[own.name])
        argument = tyro.conf.arg(help=help[own.name], help_behavior_hint=hint)
        option = Annotated[kind_of_value, argument]
        found.setdefault(_group(kind, own.name), []).append(
            (own.name, option, field(default=value))
        )
    found[LAST] = found.pop(LAST)
    made = []
    for group, options in found.items():
        if options:
            name = group.replace("-", "_").replace(" ", "_")
            nested = make_dataclass(f"_{name}", options, frozen=True)
            nested.__doc__ = ""
            made.append((name, nested, field(default_factory=nested)))
    return made


def of(command: type, words: list[str]) -> type:
    """A dataclass with the options of a command, which is a dataclass itself.

    A recipe among its fields becomes groups of options, but those that the field's metadata list as
    ``refused``: they are there only if the words name them, for the command to say why.
    """
    hints, help = get_type_hints(command, include_extras=True), help_of(command)
    first: list[tuple[str, Any, Any]] = []
    last: list[tuple[str, Any, Any]] = []
    for own in fields(command):
        if own.default_factory is not MISSING:
            if not isinstance(default := own.default_factory(), Recipe):
                last.append((own.name, type(default), field(default_factory=own.default_factory)))
                continue
            refused = own.metadata.get("refused", ())
            absent = tuple(name for name in refused if not is_given(name, words))
            last += groups(default, (*own.metadata.get("without", ()), *absent))
            continue
        hint = "" if own.default in (None, MISSING) else None
        marks = get_args(hints[own.name])
        called = own.name.upper() if tyro.conf.Positional in marks else None  # as errors do
        argument = tyro.conf.arg(metavar=called, help=help.get(own.name), help_behavior_hint=hint)
        option: Any = Annotated[hints[own.name], argument]
        first.append((own.name, option, field(default=own.default)))
    return make_dataclass("Options", [*first, *last], frozen=True)


def made(command: type, parsed: Any) -> Any:
    """A command from what was parsed by its options, those of :func:`of`."""
    found = {
        own.name: replace(own.default_factory(), **values(parsed))
        if own.default_factory is not MISSING and isinstance(own.default_factory(), Recipe)
        else getattr(parsed, own.name)
        for own in fields(command)
    }
    return command(**found)


def value_of(option: str, words: list[str]) -> str | None:
    """What the words give an option, the last one if they do so twice.

    >>> value_of("preset", ["--norm", "bn", "--preset", "laptop"]), value_of("preset", [])
    ('laptop', None)
    """
    named = [
        word.partition("=")[2] or after
        for word, after in pairwise([*words, ""])
        if word.partition("=")[0] == f"--{option}"
    ]
    return named[-1] if named and named[-1] else None


def is_given(option: str, words: list[str]) -> bool:
    """Whether the words name an option.

    >>> is_given("batch_size", ["--batch-size=2"]), is_given("batch_size", ["--batch-sizes", "2"])
    (True, False)
    """
    names = (f"--{option}", f"--{option.replace('_', '-')}")
    return any(word.partition("=")[0] in names for word in words)


def values(parsed: Any) -> dict[str, Any]:
    """Fields of the recipe from what tyro made of the groups."""
    found: dict[str, Any] = {}
    for own in fields(parsed):
        nested = getattr(parsed, own.name)
        if type(nested).__name__ == f"_{own.name}":
            found |= {inner.name: getattr(nested, inner.name) for inner in fields(nested)}
    return found


def _group(kind: type[Recipe], name: str) -> str:
    """Heading of an option: that of the part that has it first."""
    first = next(c for c in reversed(kind.__mro__) if name in vars(c).get("__annotations__", {}))
    assert issubclass(first, Part)
    return first.group


def help_of(kind: type) -> dict[str, str]:
    """Docstrings of the fields of a dataclass, those of the most derived class."""
    found: dict[str, str] = {}
    for cls in reversed(kind.__mro__):
        if "__dataclass_fields__" not in vars(cls) and not issubclass(cls, Part):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for line, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[line.target.id] = " ".join(str(after.value.value).split())
    return found

"""``bgn completion``: what the Tab key offers, as a script for a shell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import tyro
from rich.console import Console

from bgn import checks
from bgn.factory import NAMES
from bgn_lab import experiments, partners
from bgn_lab.commands import parsing, shells
from bgn_lab.commands.parsing import Option
from bgn_lab.data import DATA_SETS
from bgn_lab.models import MODELS

SHELLS = {"bash": shells.bash, "zsh": shells.zsh, "fish": shells.fish}


@dataclass(frozen=True)
class Completion:
    """Print a script that makes the Tab key complete commands, options and their values.

    The script has everything in it: no Python is started while you type. Print it anew after an
    update.
    """

    shell: tyro.conf.Positional[str]
    """bash, zsh or fish"""

    def __call__(self, console: Console) -> int:
        """Print it."""
        checks.one_of("shell", self.shell, tuple(SHELLS))
        console.file.write(SHELLS[self.shell](commands()))
        return 0


class Words(NamedTuple):
    """What can follow a command."""

    summary: str
    options: tuple[Option, ...]
    positional: tuple[str, ...] = ()
    """Values that need no option before them; empty for files."""


def commands() -> dict[str, Words]:
    """All commands, with the options that they have whatever the preset."""
    from bgn_lab import cli

    found = {}
    for name, own in cli.COMMANDS.items():
        options = parsing.options(cli.options_of(name))
        named = tuple(_named(option, name) for option in options)
        found[name] = Words(own.summary, named, POSITIONAL.get(name, ()))
    return found


POSITIONAL = {"data get": ("cifar10",), "completion": tuple(SHELLS)}


def _named(option: Option, command: str) -> Option:
    """An option with the names that it accepts, where there is a list of them."""
    values = option.values or _values(option.field, command)
    help = option.help.partition(";")[0].partition(":")[0]
    return Option(option.names, option.field, values, option.takes, option.kind, help)


def _values(field: str, command: str) -> tuple[str, ...]:
    if field in ("norm", "norms"):
        return (*NAMES, *(f"{name}+{word}" for name in ("bn", "bgn") for word in partners.PARTNERS))
    if field == "experiment":
        return tuple(n for n in experiments.names() if experiments.get(n).comparable)
    if field == "preset" and command in ("compare", "plan"):
        found = [experiments.get(name) for name in experiments.names()]
        names = (name for one in found if one.comparable for name in {**one.grids, **one.presets})
        return tuple(dict.fromkeys(names))
    if field == "preset":
        return tuple(experiments.get(command.partition(" ")[2]).presets)
    return VALUES.get(field, ())


VALUES = {
    "data": tuple(name for name in DATA_SETS if name not in ("folder", "arrays")),
    "device": ("auto", "cpu", "cuda", "mps"),
    "groups": ("paper", "auto"),
    "model": tuple(MODELS),
}

"""Descriptor of an experiment: everything that commands and reports need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bgn import checks
from bgn_lab import paper
from bgn_lab.recipe import Recipe
from bgn_lab.training.task import Task


@dataclass(frozen=True)
class Preset:
    """Other defaults for an experiment."""

    recipe: Recipe
    help: str
    needs: tuple[str, ...] = ()
    """Options that the user has to give."""
    check: Callable[[Any], None] = lambda recipe: None  # noqa: ARG005
    """Refuses recipes that are no longer what the preset's name promises."""


def _nothing(recipe: Any) -> str:  # noqa: ARG001
    return ""


@dataclass(frozen=True)
class Experiment:
    """One experiment. Its summary and examples are in the registry, which imports nothing."""

    name: str
    title: str
    """As in the heading of a report."""
    recipe: type[Recipe]
    task: type[Task]
    presets: Mapping[str, Preset] = field(default_factory=dict)
    paper_tables: tuple[paper.Table, ...] = ()
    """Tables of the paper that belong beside its results."""
    explain: Callable[[Any], str] = _nothing
    """Sentences that explain the measures of a recipe, for the text below a table."""
    comparable: bool = True
    """Whether `bgn compare` runs it; searches are compared by what they find."""

    def preset(self, name: str) -> Preset:
        """A preset by name."""
        checks.one_of("preset", name, tuple(self.presets))
        return self.presets[name]

    def check(self, name: str, recipe: Recipe) -> None:
        """Refuse a recipe that lacks what its preset needs.

        Args:
            name: of the preset that the recipe was made from.
            recipe: with the user's options.
        """
        preset = self.preset(name)
        missing = [n for n in preset.needs if getattr(recipe, n) == getattr(preset.recipe, n)]
        if missing:
            options = " and ".join(f"--{n.replace('_', '-')}" for n in missing)
            raise ValueError(
                f"preset={name!r} needs {options}; `bgn run {self.name} --help` says what is"
                " accepted"
            )
        preset.check(recipe)

"""Descriptor of an experiment: everything that commands and reports need to know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from bgn import checks
from bgn_lab import paper, partners
from bgn_lab.experiments.grid import Grid
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
    shipped_only: tuple[str, ...] = ()
    """Options whose value here suits the data of the preset; with other data `bgn compare` leaves
    them to their defaults."""


@dataclass(frozen=True)
class Choice:
    """How many searches are run by default, and how the best one of several is chosen."""

    searches: int
    training: str
    """Preset of nas-train that trains what is chosen; empty for the defaults of nas-train."""
    epochs: int
    """Epochs of the short training that judges what each search found."""


def _nothing(recipe: Any) -> str:  # noqa: ARG001
    return ""


def in_paper(table: paper.Table, recipe: Recipe, column: str) -> float | None:
    """The paper's figure for the recipe's normalizer, where its G is the paper's; it has no
    partners."""
    usual = recipe.groups is None and recipe.instances is None and not partners.of(recipe)
    return table.row(recipe.norm).get(column) if usual and recipe.norm in table.rows else None


class Further(NamedTuple):
    """A further table of a report, for one comparison."""

    title: str
    note: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Columns = tuple[Mapping[str, Any], ...]


def _one_column(data: str, tasks: tuple[str, ...]) -> Columns:  # noqa: ARG001
    return ({},)


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
    paper_value: Callable[[Any, str], float | None] = lambda recipe, measure: None  # noqa: ARG005
    """The paper's figure for a recipe and the name of a measure."""
    explain: Callable[[Any], str] = _nothing
    """Sentences that explain the measures of a recipe, for the text below a table."""
    grids: Mapping[str, Grid] = field(default_factory=dict)
    """Runs that `bgn compare --preset NAME` makes; of a preset without one, all normalizers."""
    columns: Callable[[str, tuple[str, ...]], Columns] = _one_column
    """Values of the fields that make the columns of a comparison beside the batch size, from the
    name of the data and the tasks that are wanted."""
    score: str = "test accuracy"
    """What cells of its tables are, in words."""
    caveats: Callable[[Any], str] | None = None
    """What a reader needs in order to judge a comparison, where the usual sentences do not fit."""
    further: Callable[[Any], tuple[Further, ...]] = lambda found: ()  # noqa: ARG005
    """Further tables of a comparison."""
    picture: Callable[[Any], Any] = lambda found: None  # noqa: ARG005
    """A picture of a comparison beside the usual two; None for none."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """How the best of several searches is chosen, by preset; an empty name means no preset."""
    comparable: bool = True
    """Whether `bgn compare` runs it; searches are compared by what they find."""

    def preset(self, name: str) -> Preset:
        """A preset by name."""
        checks.one_of("preset", name, tuple(self.presets))
        return self.presets[name]

    def grid(self, name: str) -> Grid:
        """The grid of a name, or of a preset of that name."""
        checks.one_of("preset", name, tuple({**self.grids, **self.presets}))
        found = self.grids.get(name, Grid())
        return found if found.preset else replace(found, preset=name)

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
            usual = {n: value for n in missing if (value := getattr(recipe, n)) is not None}
            unfit = "".join(f" {n}={value!r} is not meant by it;" for n, value in usual.items())
            raise ValueError(
                f"preset={name!r} needs {options};{unfit} `bgn run {self.name} --help` says what"
                " is accepted"
            )
        preset.check(recipe)

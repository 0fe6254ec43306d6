"""Grids: the runs that `bgn compare` makes of one preset, as rows and columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from bgn import checks
from bgn.factory import NAMES
from bgn.groups import AUTO, PAPER
from bgn_lab import partners

if TYPE_CHECKING:
    from bgn_lab.recipe import Recipe

Groups = int | str  # G of BGN, "paper" or "auto"


@dataclass(frozen=True)
class Grid:
    """Which runs are compared: each normalizer in each column, with each seed."""

    preset: str = ""
    """Preset of `bgn run` that the runs begin with; the grid's own name by default."""
    norms: tuple[str, ...] = NAMES
    batch_sizes: tuple[int, ...] = ()
    """Columns; none: the preset's batch size."""
    groups: tuple[Groups, ...] = (PAPER,)
    """Rows of BGN."""
    seeds: int = 2
    help: str = ""

    def check(self) -> None:
        """Refuse what makes no run."""
        for norm in self.norms:
            name, _ = partners.split(norm)
            if ":" not in name:
                checks.one_of("norms", name, NAMES)
        if not self.norms:
            raise ValueError("norms is empty; expected at least one")
        checks.positive_int("seeds", self.seeds)
        for size in self.batch_sizes:
            checks.positive_int("batch_sizes", size)
        for groups in self.groups:
            if not (groups in (PAPER, AUTO) if isinstance(groups, str) else groups > 0):
                raise ValueError(
                    f"groups={groups!r} is not accepted; expected positive numbers, {PAPER!r} or"
                    f" {AUTO!r}"
                )

    def recipes(
        self,
        kind: type[Recipe],
        values: Mapping[str, Any],
        columns: tuple[Mapping[str, Any], ...] = ({},),
    ) -> Iterator[Recipe]:
        """All runs, those of the first seed first, so that an early table is a whole one.

        Args:
            kind: the recipe of the experiment.
            values: of its fields, for what is not compared. ``{norm}`` in ``weights`` stands for
                the name of the normalizer, with its partners.
            columns: values of further fields, one mapping for each column.
        """
        self.check()
        sizes = dict.fromkeys(self.batch_sizes or (values["batch_size"],))
        rows: list[tuple[str, dict[str, Any]]] = []
        for norm in dict.fromkeys(self.norms):
            own = partners.row(norm)
            sweep = dict.fromkeys(self.groups) if own["norm"] == "bgn" else (None,)
            rows += [(norm, {**own, "groups": groups}) for groups in sweep]
        for seed, size, column, (norm, row) in product(range(self.seeds), sizes, columns, rows):
            made = {**values, **column, **row, "batch_size": size, "seed": seed}
            if isinstance(made.get("weights"), str):
                made["weights"] = made["weights"].replace("{norm}", norm)
            yield kind(**made)

"""``bgn report``: tables, pictures and a page from folders of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.text import Text

from bgn_lab.experiments.nas.recipe import SearchRecipe
from bgn_lab.report import text
from bgn_lab.report.collect import scan
from bgn_lab.report.write import check_out, write
from bgn_lab.system.printable import printable


@dataclass(frozen=True)
class Report:
    """Make tables, pictures and a page from all runs in and below some folders.

    The paper's tables stand beside them.
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """folders of runs, or folders with folders of runs in them"""
    out: Path = Path("results/report")
    """folder for results.json, table.md, pictures, report.html; overwrites only earlier reports"""

    def __call__(self, console: Console) -> int:
        """Write them."""
        if not self.folders:
            raise ValueError("folders is empty; expected at least one folder of runs")
        check_out(self.out)
        found, damaged = scan(self.folders)
        if not found:
            listed = "\n".join(map(str, damaged))
            raise ValueError(f"no run can be read; expected at least one\n{listed}")
        others = [run for run in found if not isinstance(run.recipe, SearchRecipe)]
        runs = [run for run in others if run.recipe.test]
        searches, untested = len(found) - len(others), len(others) - len(runs)
        if not runs:
            raise ValueError(
                f"there are {searches} searches, {untested} short trainings and nothing else;"
                " expected trainings of what searches found (bgn run nas-train)"
            )
        comparisons = write(runs, self.out, damaged)
        for comparison in comparisons:
            text.show(console, comparison)
            console.print()
        for one in damaged:
            console.print(Text(f"left out: {one}", style="red"), soft_wrap=True)
        if searches:
            console.print(
                "left out because they are searches, whose accuracies are not of test images: "
                f"{searches} of {len(found)} runs"
            )
        if untested:
            console.print(
                "left out because they did not evaluate test images: "
                f"{untested} of {len(found)} runs"
            )
        shown = {run.folder for comparison in comparisons for run in comparison.runs}
        if repeated := len(runs) - len(shown):
            console.print(
                f"left out because their recipe was run twice: {repeated} of {len(runs)} runs"
            )
        console.print(Text(printable(f"report: {self.out / 'report.html'}")), soft_wrap=True)
        return 0

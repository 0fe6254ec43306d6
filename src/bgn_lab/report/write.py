"""All files of a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bgn_lab.report import figures, text
from bgn_lab.report.cells import Cell
from bgn_lab.report.collect import Run
from bgn_lab.report.comparison import Comparison, compare
from bgn_lab.report.page import page
from bgn_lab.system import files


def write(runs: Sequence[Run], out: Path) -> list[Comparison]:
    """results.json, table.md, pictures and report.html; the comparisons that they show."""
    comparisons = compare(runs)
    out.mkdir(parents=True, exist_ok=True)
    files.write_json(out / "results.json", [_plain(found) for found in comparisons])
    files.write(out / "table.md", text.markdown(comparisons))
    for number, found in enumerate(comparisons):
        ending = "" if len(comparisons) == 1 else f"-{number + 1}"
        files.write_figure(out / f"accuracy{ending}.png", figures.accuracies(found), dpi=150)
        files.write_figure(out / f"curves{ending}.png", figures.curves(found), dpi=150)
    files.write(out / "report.html", page(comparisons))
    return comparisons


def _plain(found: Comparison) -> dict[str, Any]:
    def of(cell: Cell, first: bool) -> dict[str, Any]:
        return {
            "accuracy": None if cell.accuracy is None else asdict(cell.accuracy),
            "difference_to_bn": None if cell.difference is None else asdict(cell.difference),
            "did_not_converge": cell.failed,
            "best": cell.best,
            **(
                {"runs": [run.to_json() for run in cell.runs]} if first else {}
            ),  # of further measures the same
        }

    return {
        "title": found.title(),
        "caption": found.caption(),
        "cells": [
            {
                "normaliser": label,
                "place": column.place,
                "measure": column.measure.key,
                **of(cell, column in found.firsts),
            }
            for (label, column), cell in found.cells.items()
        ],
    }

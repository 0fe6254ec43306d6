"""All files of a report."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bgn_lab.report import figures, text
from bgn_lab.report.cells import Cell, Spread
from bgn_lab.report.collect import Damaged, Run
from bgn_lab.report.comparison import compare
from bgn_lab.report.grid import Comparison
from bgn_lab.report.page import page
from bgn_lab.report.verdict import verdict
from bgn_lab.system import files
from bgn_lab.system.printable import printable

RESULTS, TABLE, PAGE = "results.json", "table.md", "report.html"
NAMES = ACCURACY, CURVES, PREDICTIONS = "accuracy", "curves", "predictions"
PICTURES = re.compile(rf"({'|'.join(NAMES)})(-[1-9]\d*)?\.png")
HEAD = 4096  # bytes of a file within which its mark stands


def check_out(out: Path) -> None:
    """Refuse a folder if a report would overwrite files in it that no earlier report wrote."""
    if out.exists() and not out.is_dir():
        raise ValueError(printable(f"out={out} is a file; expected a folder"))
    foreign = sorted(path.name for path in _targets(out) if not _is_ours(path))
    if foreign:
        raise ValueError(
            printable(
                f"out={out} holds {', '.join(foreign)}, which bgn report did not write and would"
                " overwrite; choose another --out or move it"
            )
        )


def _targets(out: Path) -> list[Path]:
    """What there is under names of files of a report."""
    if not out.is_dir():
        return []
    return [
        path
        for path in out.iterdir()
        if path.name in (RESULTS, TABLE, PAGE) or PICTURES.fullmatch(path.name)
    ]


def _is_ours(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return text.MARK.encode() in file.read(HEAD)


def write(runs: Sequence[Run], out: Path, damaged: Sequence[Damaged] = ()) -> list[Comparison]:
    """Write results.json, table.md, pictures and report.html; the comparisons that they show."""
    check_out(out)
    comparisons = compare(runs)
    drawn = [_render(figures.draw(found)) for found in comparisons]
    content: dict[str, str | bytes] = {
        TABLE: text.markdown(comparisons, damaged),
        PAGE: page(comparisons, damaged, [pictures.get(PREDICTIONS) for pictures in drawn]),
    }
    for number, pictures in enumerate(drawn, 1):
        ending = "" if len(comparisons) == 1 else f"-{number}"
        content |= {f"{name}{ending}.png": picture for name, picture in pictures.items()}
    out.mkdir(parents=True, exist_ok=True)
    files.write_json(
        out / RESULTS,
        {
            "generator": text.MARK,
            "comparisons": [_plain(found) for found in comparisons],
            "left_out": [one.short() for one in damaged],
        },
    )
    for name, own in content.items():
        files.write(out / name, own)
    for path in _targets(out):  # pictures of comparisons that an earlier report had
        if path.name not in (RESULTS, *content):
            path.unlink()
    return comparisons


def _render(drawn: figures.Drawn) -> dict[str, bytes]:
    """The pictures that there are, as PNG."""
    return {
        name: files.render_figure(figure, "png", dpi=150, metadata={"Software": text.MARK})
        for name, figure in zip(NAMES, drawn, strict=True)
        if figure is not None
    }


def _plain(found: Comparison) -> dict[str, Any]:
    def values(own: Spread | None) -> dict[str, Any] | None:
        return None if own is None else asdict(own)

    def plain(cell: Cell, first: bool) -> dict[str, Any]:
        return {
            "accuracy": values(cell.accuracy),
            "difference_to_bn": values(cell.difference),
            "standing": cell.standing,
            "did_not_converge": cell.failed,
            "accuracy_of_not_converged": values(cell.failed_accuracy),
            # further measures are of the same runs
            **({"runs": [run.to_json() for run in cell.runs]} if first else {}),
        }

    return {
        "title": found.title(),
        "verdict": [str(sentence) for sentence in verdict(found)],
        "caption": found.caption(),
        "cells": [
            {
                "normalizer": label,
                "place": column.place,
                "measure": column.measure.key,
                "paper": found.printed(label, column),
                **plain(cell, column in found.firsts),
            }
            for (label, column), cell in found.cells.items()
        ],
    }

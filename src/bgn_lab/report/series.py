"""Rows as series of the page's pictures: how each looks, its line of the key, its group.

Everything that belongs to a row is a group of class ``s`` and ``s`` with the row's number, which
the page's check boxes switch off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bgn_lab import paper
from bgn_lab.report import svg
from bgn_lab.report.grid import Comparison
from bgn_lab.report.styles import Style, styles

CROSS = Style("bad", "cross")
LINE, MARK = 48, 32  # widths of samples: dashes show on both sides of the mark
Wrap = Callable[[str, str], str]


class Chart(NamedTuple):
    """A picture, its heading, and marks that its rows do not explain."""

    title: str
    picture: str
    key: tuple[tuple[str, str], ...] = ()
    """Names and pictures of marks."""


class Entry(NamedTuple):
    """A line of the key, which switches a row on and off."""

    number: int
    label: str
    sample: str
    """A picture of its line and mark."""


def measured(found: Comparison) -> str:
    """The heading of what was measured."""
    return f"Measured: {found.experiment.score}, %"


def rows(found: Comparison) -> dict[str, Style]:
    """Styles of all rows, then those of the paper's normalizers that are not among them."""
    tables = found.experiment.paper_tables
    printed = [paper.NORMALIZERS[name] for table in tables[:1] for name in table.rows]
    missing = [name for name in printed if paper_row(found, name) is None]
    return styles(found.labels) | {f"{name}, paper": styles([name])[name] for name in missing}


def paper_row(found: Comparison, name: str) -> str | None:
    """The row that the paper's normalizer of this name is in the comparison."""
    return next((label for label in found.labels if label.partition(",")[0] == name), None)


def key(found: Comparison) -> list[Entry]:
    """One entry for each row."""
    entries = []
    for number, (label, style) in enumerate(rows(found).items()):
        line = svg.polyline([(2.0, 8.0), (LINE - 2.0, 8.0)], **dashes(style))
        entries.append(Entry(number, label, sample(style, line)))
    return entries


def sample(style: Style, line: str = "") -> str:
    """The mark of a style, perhaps on its line."""
    width = LINE if line else MARK
    return svg.tag(
        "svg", line + svg.mark(style.shape, width / 2, 8.0, hollow=style.hollow),
        viewBox=f"0 0 {width} 16", width=width, height=16,
        class_="sample", style=color(style), aria_hidden="true",
    )  # fmt: skip


def color(style: Style) -> str:
    return f"--c:var(--{style.color})"


def dashes(style: Style) -> dict[str, str]:
    return {"stroke_dasharray": style.dashes} if style.dashes else {}


def groups(found: Comparison) -> Wrap:
    """What puts the marks of a row into its group."""
    all_rows = rows(found)
    numbers = {label: number for number, label in enumerate(all_rows)}

    def group(label: str, content: str) -> str:
        return svg.tag(
            "g", content, class_=f"s s{numbers[label]}", style=color(all_rows[label])
        ) if content else ""  # fmt: skip

    return group

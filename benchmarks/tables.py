"""The tables of a run, as Markdown for the file and with rich for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.about import describe, warning
from benchmarks.cases import BATCH_SIZES
from benchmarks.targets import (
    TARGETS,
    Row,
    Target,
    Verdict,
    extra_memory,
    judge,
    ratio,
    verdicts,
)

SETTINGS = "All settings"
NOTE = (
    "Below 1, this library is faster. Means are weighted by how often a shape occurs in its"
    " network. A figure that misses its target is bold. Disturbed: other processes took the CPU"
    " during a row, so the figure proves nothing, neither for nor against."
)
STYLES = {"yes": "green", "no": "bold red", "not measured": "dim", "disturbed": "yellow"}
PAIRS = (
    ("bgn", "nn.BatchNorm2d"),
    ("bgn", "nn.GroupNorm(32)"),
    ("bgn", "nn.GroupNorm(1)"),
    ("bgn", "floor"),
    ("bgn", "compiled composite"),
    ("bgn", "bgn definition"),
    ("bgn.GroupNorm(32)", "nn.GroupNorm(32)"),
    ("bgn IN", "nn.InstanceNorm2d"),
    ("bgn LN", "nn.GroupNorm(1)"),
    ("bgn PN", "layer_norm"),
)


@dataclass(frozen=True)
class Table:
    """A table of text with a heading."""

    heading: str
    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The heading and the table."""
        rows = [self.header, ["---"] * len(self.header), *self.lines]
        return "\n".join([f"## {self.heading}", "", *(f"| {' | '.join(row)} |" for row in rows)])

    def rich(self) -> RichTable:
        """The same for the terminal; yes and no in color."""
        found = RichTable(
            title=self.heading, title_justify="left", title_style="bold", box=box.SIMPLE
        )
        for name in self.header:
            found.add_column(name, overflow="fold")
        for line in self.lines:
            found.add_row(*map(_styled, line))
        return found


def _styled(cell: str) -> Text:
    style = STYLES["no"] if "**" in cell else STYLES.get(cell, "")
    return Text(cell.replace("**", ""), style=style)


def figure(value: float | None, target: Target) -> str:
    """A ratio or a difference as text; a dash where there is none."""
    if value is None:
        return "-"
    return f"{value:+.1f} {target.unit}" if target.unit else f"{value:.2f}"


def against(value: float | None, limit: float | None, target: Target) -> str:
    """A figure and its limit; bold where the limit is not met."""
    missed = value is not None and limit is not None and value > limit
    text = f"**{figure(value, target)}**" if missed else figure(value, target)
    if limit is None:
        return text
    return f"{text} ({limit:g} {target.unit})" if target.unit else f"{text} ({limit:.2f})"


def holds(verdict: Verdict) -> str:
    """Yes, no, disturbed or not measured."""
    if verdict.disturbed:
        return "disturbed"
    return {True: "yes", False: "no", None: "not measured"}[verdict.holds]


def verdict_table(found: Iterable[Verdict]) -> Table:
    """Which targets hold, of those that were measured."""
    lines = []
    for v in found:
        if v.holds is None:
            continue
        t = v.target
        several = v.rows > 1
        lines.append(
            [
                t.what,
                f"{t.ours} / {t.theirs}" if not t.unit else f"{t.ours} - {t.theirs}",
                against(v.mean, t.mean, t),
                against(v.worst, t.worst, t) if several else "-",
                v.at if several else "-",
                str(v.rows) if v.rows == v.wanted else f"{v.rows} of {v.wanted}",
                holds(v),
            ]
        )
    header = [
        "what", "ours / theirs", "mean (target)", "worst (target)", "at", "shapes",
        "holds",
    ]  # fmt: skip
    return Table("Targets: geometric mean and worst", header, lines)


def batch_verdicts(rows: Sequence[Row]) -> list[tuple[int, list[Verdict]]]:
    """BGN against BN and GN, on the rows of one batch size each."""
    chosen = [t for t in TARGETS if t.name == "training"]
    by_size = ((N, [row for row in rows if row["N"] == N]) for N in BATCH_SIZES)
    return [(N, [judge(t, own) for t in chosen]) for N, own in by_size]


def batch_table(rows: Sequence[Row]) -> Table:
    """BGN against BN and GN, by batch size."""
    lines = [
        [
            str(N),
            *(f"{figure(v.mean, v.target)}, worst {figure(v.worst, v.target)}" for v in found),
            str(max(v.rows for v in found)),
        ]
        for N, found in batch_verdicts(rows)
        if any(v.rows for v in found)
    ]
    return Table(
        "Training by batch size: geometric mean and worst",
        ["batch size", "bgn / nn.BatchNorm2d", "bgn / nn.GroupNorm(32)", "shapes"],
        lines,
    )


def step_table(rows: Sequence[Row]) -> Table:
    """Training steps of whole networks: time, and memory where it was measured."""
    bn, lines = "nn.BatchNorm2d", []
    for row in rows:
        if row["mode"] != "step":
            continue
        same = {"network": row["network"], "mode": "memory"}
        memory: Row = next((r for r in rows if same.items() <= r.items()), {"memory": {}})
        for name, t in row["times"].items():
            peak, extra = memory["memory"].get(name), extra_memory(memory, name, bn)
            by_bn = ratio(row, name, bn)
            lines.append(
                [
                    f"{row['network']}, batch {row['N']}"
                    + (", one thread" if row["one_thread"] else ""),
                    name,
                    f"{1e3 * t['median']:.1f}",
                    "-" if by_bn is None else f"{by_bn:.3f}",
                    str(t["rounds"]),
                    "-" if peak is None else f"{peak['median']:.0f}",
                    "-" if extra is None else f"{extra:+.1f}",
                ]
            )
    header = ["network", "normalizer", "ms", "/ BN", "runs", "peak MB", "- BN"]
    return Table("Training steps of whole networks", header, lines)


def element_table(found: dict[str, dict[str, float]]) -> Table:
    """Time per element as the batch and the number of groups grow."""
    lines = [
        [name, f"{t:.2f}", f"{t / min(ts.values()):.2f}"]
        for ts in found.values()
        for name, t in ts.items()
    ]
    heading = "Time per element: 12.8 MB, forward and backward"
    return Table(heading, ["N or G", "ns per element", "/ best"], lines)


def settings_table(rows: Sequence[Row]) -> Table:
    """Ratios of every pair in every setting."""
    lines = []
    fields = ("network", "mode", "dtype", "layout", "one_thread")
    layers = [row for row in rows if row["mode"] in ("train", "eval")]
    keys = dict.fromkeys(tuple(row[field] for field in fields) for row in layers)
    for ours, theirs in PAIRS:
        for key in keys:
            where = dict(zip(fields, key, strict=True))
            v = judge(Target("", "", ours, theirs, where, 0), layers)
            if v.mean is not None:
                threads = "one" if key[-1] else "all"
                figures = f"{v.mean:.2f}", f"{v.worst:.2f}", v.at, str(v.rows)
                lines.append([f"{ours} / {theirs}", *map(str, key[:-1]), threads, *figures])
    header = [
        "ours / theirs", "network", "mode", "dtype", "layout", "threads", "geometric mean", "worst",
        "at", "shapes",
    ]  # fmt: skip
    return Table(SETTINGS, header, lines)


def tables(results: dict[str, Any]) -> list[Table]:
    """Every table that the results have something for."""
    rows = results["rows"]
    found = [verdict_table(verdicts(rows)), batch_table(rows), step_table(rows)]
    if "per element" in results:
        found.append(element_table(results["per element"]))
    return [table for table in [*found, settings_table(rows)] if table.lines]


def unmeasured(found: Iterable[Verdict]) -> str:
    """A sentence that names the targets without a row, or nothing."""
    names = [f"{v.target.what} ({v.target.theirs})" for v in found if v.holds is None]
    return f"Not measured: {'; '.join(names)}." if names else ""


def page(results: dict[str, Any]) -> str:
    """table.md of one run."""
    facts = results["about"]
    parts = ["# Benchmark", describe(facts), warning(facts), NOTE + cut(results)]
    parts.append(unmeasured(verdicts(results["rows"])))
    parts += [table.markdown() for table in tables(results)]
    return "\n\n".join(part for part in parts if part) + "\n"


def cut(results: dict[str, Any]) -> str:
    """A sentence where the run was not whole, or nothing."""
    return "" if results["complete"] else " The run was interrupted."

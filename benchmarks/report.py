"""One table of several runs, side by side: how far figures scatter from run to run.

    python -m benchmarks.report results/bench/run1 results/bench/run2

Writes table.md, and ratios.png of the first run, beside the runs' folders (or to ``--out``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.about import describe, warning
from benchmarks.arguments import folder
from benchmarks.picture import picture
from benchmarks.results import Results, load
from benchmarks.tables import NOTE, Table, against, batch_verdicts, cut, figure, holds, step_table
from benchmarks.targets import Verdict, verdicts
from bgn_lab.system.files import write


def _cell(v: Verdict) -> str:
    """Mean and worst of a run; bold where a limit is missed."""
    if v.mean is None:
        return "-"
    t = v.target
    mean = against(v.mean, t.mean, t).partition(" (")[0]
    worst = against(v.worst, t.worst, t).partition(" (")[0]
    text = f"{mean}, {worst} at {v.at}" if v.rows > 1 else mean
    return f"{text}, disturbed" if v.disturbed else text


def _limits(v: Verdict) -> str:
    t = v.target
    if t.unit:
        return f"{t.mean:g} {t.unit}"
    return f"{t.mean:.2f}" if t.worst is None else f"{t.mean:.2f}, {t.worst:.2f}"


def target_table(runs: dict[str, Results]) -> Table:
    """Targets and what each run found."""
    lines = []
    for own in zip(*(verdicts(run["rows"]) for run in runs.values()), strict=True):
        t = own[0].target
        sign = "-" if t.unit else "/"
        sound = [v.holds for v in own if v.holds is not None and not v.disturbed]
        held, measured = sum(map(bool, sound)), len(sound)
        every = f"in {held} of {measured}"
        if held in (0, measured):
            every = holds(own[0]) if measured == 0 else "yes" if held else "no"
        lines.append(
            [t.what, f"{t.ours} {sign} {t.theirs}", _limits(own[0]), *map(_cell, own), every]
        )
    header = ["what", "ours / theirs", "target: mean, worst", *runs, "holds"]
    return Table("Targets: geometric mean, worst and where", header, lines)


def batch_table(runs: dict[str, Results]) -> Table:
    """BGN against BN and GN by batch size, run by run."""
    lines = []
    for own in zip(*(batch_verdicts(run["rows"]) for run in runs.values()), strict=True):
        size = own[0][0]
        for found in zip(*(verdicts_ for _, verdicts_ in own), strict=True):
            t = found[0].target
            cells = (f"{figure(v.mean, t)}, {figure(v.worst, t)}" if v.rows else "-" for v in found)
            if any(v.rows for v in found):
                lines.append([str(size), f"{t.ours} / {t.theirs}", *cells])
    header = ["batch size", "ours / theirs", *runs]
    return Table("Training by batch size: geometric mean, worst", header, lines)


def tables(runs: dict[str, Results]) -> list[Table]:
    """All tables of all runs."""
    found = [target_table(runs), batch_table(runs)]
    for name, run in runs.items():
        steps = step_table(run["rows"])
        found.append(Table(f"{steps.heading}, {name}", steps.header, steps.lines))
    return [table for table in found if table.lines]


def page(runs: dict[str, Results]) -> str:
    """table.md of all runs."""
    parts = ["# Benchmark", NOTE]
    for name, run in runs.items():
        facts = run["about"]
        parts += [f"{name}: {describe(facts)}{cut(run)}", warning(facts)]
    parts += [table.markdown() for table in tables(runs)]
    return "\n\n".join(part for part in parts if part) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the runs, print their tables and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", help="--out of each run")
    parser.add_argument("--out", type=folder, help="default: the folder that the first run is in")
    options = parser.parse_args(arguments)
    names = [folder.resolve().name for folder in options.folders]
    if len(set(names)) < len(names):
        parser.error(f"argument folders: {' '.join(names)}; accepted: folders of different names")
    try:
        runs = dict(zip(names, map(load, options.folders), strict=True))
    except ValueError as error:
        parser.error(str(error))
    out: Path = options.out or options.folders[0].resolve().parent
    out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for table in tables(runs):
        console.print(table.rich())
    write(out / "table.md", page(runs))
    drawn = picture(next(iter(runs.values()))["rows"], out / "ratios.png")
    console.print(f"Wrote table.md{' and ratios.png' if drawn else ''} in {out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())

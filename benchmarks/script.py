"""What the small benchmarks share: arguments, facts of the machine, a table, two files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console

from benchmarks.about import about, describe, warning
from benchmarks.arguments import folder, seconds
from benchmarks.tables import Table
from bgn_lab.system.files import write, write_json

Measure = Callable[[argparse.Namespace], tuple[dict[str, Any], Table]]


def parser(name: str, doc: str | None, duration: float, what: str) -> argparse.ArgumentParser:
    """A parser of --seconds and --out, for ``python -m benchmarks.NAME``.

    Args:
        name: of the module, and of the files that are written.
        doc: the module's docstring.
        duration: default of --seconds.
        what: what takes so many seconds.
    """
    found = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument(
        "--seconds", type=seconds, default=duration, help=f"for {what} (default: {duration:g})"
    )
    found.add_argument("--out", type=folder, help=f"folder for {name}.json and {name}.md")
    return found


def run(
    name: str, title: str, options: argparse.Namespace, measure: Measure, *, one_thread: bool
) -> int:
    """Measure, print and write."""
    before = torch.get_num_threads()
    if one_thread:
        torch.set_num_threads(1)
    try:
        facts = about()
        console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
        console.print(describe(facts))
        if warning(facts):
            console.print(warning(facts), style="bold yellow")
        found, table = measure(options)
    finally:
        torch.set_num_threads(before)
    console.print(table.rich())
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / f"{name}.json", {"about": facts, **found})
        parts = [f"# {title}", describe(facts), warning(facts), table.markdown()]
        write(options.out / f"{name}.md", "\n\n".join(part for part in parts if part) + "\n")
        console.print(f"Wrote {name}.json and {name}.md in {options.out}.")
    return 0

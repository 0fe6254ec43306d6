"""Time this library's normalizers against torch's, and say which targets hold.

    python -m benchmarks.run --quick                     # ResNet-50's layers at batch 2 and 8
    python -m benchmarks.run --out results/bench         # everything: tables, JSON, picture
    python -m benchmarks.run --only training floor       # the rows of some targets
    python -m benchmarks.run --strict                    # exit code 1 where a target does not hold

Ratios below 1 mean that this library is faster. All times of a row come from one interleaved run
with the same threads. A full run goes over all rows three times: a burst of noise spoils one third
of a row's rounds, and the median does not follow it. Passes in which other processes took the CPU
are left out where a row has a better one; a target with a row that has none is called disturbed.
Memory is reused (:mod:`benchmarks.allocator`). Ctrl-C ends the run and reports what was measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import cases, measure, results, scaling, tables
from benchmarks.about import about, describe, warning
from benchmarks.allocator import reuse_memory
from benchmarks.arguments import folder, seconds
from benchmarks.cases import BATCH_SIZES, Case
from benchmarks.others import Others
from benchmarks.picture import picture
from benchmarks.progress import Meter
from benchmarks.targets import NAMES, TARGETS, exit_code, verdicts
from bgn_lab.system.files import write

PASSES, SECONDS = 3, 0.9  # over all passes, for one row
QUICK_PASSES, QUICK_SECONDS = 1, 0.3
INTERRUPTED = 130  # exit code, as shells have it
# for the progress bar: seconds of a call per megabyte, calls of a pass, seconds of a ResNet-50 step
CALL, CALLS, STEP = 6e-4, 8, 1.5


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    found = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, names = found.add_argument, ", ".join(NAMES)
    sizes = ", ".join(map(str, BATCH_SIZES))
    texts = {
        "quick": "ResNet-50's layers at batch 2 and 8, within a minute",
        "out": "folder for table.md, results.json and ratios.png",
        "strict": "exit with 1 where a target does not hold",
        "only": f"only the rows of these targets: {names}; for example --only training",
        "sizes": f"only the rows of these batch sizes: {sizes}",
        "seconds": f"time to measure one row (default: {SECONDS}, with --quick {QUICK_SECONDS})",
        "all": "time the compiled composite and the definition too: minutes of compilation",
    }
    add("--quick", action="store_true", help=texts["quick"])
    add("--out", type=folder, metavar="FOLDER", help=texts["out"])
    add("--strict", action="store_true", help=texts["strict"])
    add("--only", nargs="+", choices=NAMES, metavar="NAME", help=texts["only"])
    add("--batch-sizes", type=int, nargs="+", choices=BATCH_SIZES, metavar="N", help=texts["sizes"])
    add("--seconds", type=seconds, help=texts["seconds"])
    add("--all", action="store_true", help=texts["all"])
    return found


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the arguments ask for."""
    threads = torch.get_num_threads()
    found = cases.quick(threads) if options.quick else cases.full(threads, options.all)
    if options.batch_sizes:
        found = [case for case in found if case.N in options.batch_sizes]
    if options.only:
        wanted = [target for target in TARGETS if target.name in options.only]
        needs = [
            (case, {n for t in wanted if t.covers_case(case) for n in (t.ours, t.theirs)})
            for case in found
        ]
        found = [
            replace(case, layers=tuple(n for n in case.layers if n in need))
            for case, need in needs
            if need & set(case.layers)
        ]
    return found


def work(case: Case, seconds: float) -> float:
    """About how many seconds a case takes in one pass."""
    if case.mode == "memory":
        return 30 * STEP
    if case.mode == "step":
        return (
            measure.STEP_TIME * seconds
            if case.network == "resnet20"
            else 16 * len(case.layers) * STEP
        )
    return 0.01 + max(seconds, CALL * CALLS * case.megabytes * len(case.layers))


class Run:
    """The measurements of a run so far."""

    def __init__(self, todo: Sequence[Case], seconds: float, passes: int) -> None:
        self.todo, self.seconds, self.passes = todo, seconds / passes, passes
        self.least = 3 if passes > 1 else 5  # rounds of a pass
        self.samples: dict[Case, list[measure.Sitting]] = {}
        self.facts = {**about(), "seconds": seconds, "passes": passes}
        self.extra: dict[str, Any] = {}
        self.complete = False
        self.begin = time.monotonic()

    def results(self) -> results.Results:
        """What results.json has."""
        minutes = round((time.monotonic() - self.begin) / 60, 1)
        return {
            "about": {**self.facts, "minutes": minutes},
            "complete": self.complete,
            **self.extra,
            "rows": [measure.row(case, self.samples[case]) for case in self.samples],
        }

    def measure(self, console: Console, per_element: bool, out: Path | None) -> None:
        """Every case in every pass; networks and the time per element in the first one only."""
        later = [case for case in self.todo if case.mode in ("train", "eval")]
        passes = [self.todo, *[later] * (self.passes - 1)]
        total = sum(work(case, self.seconds) for own in passes for case in own)
        with Meter(console, total) as meter:
            for number, own in enumerate(passes):
                for case in own:
                    meter.start(str(case))
                    self._add(case, number)
                    meter.advance(work(case, self.seconds))
                if number == 0 and per_element:
                    self.extra["per element"] = scaling.compare(20 * self.seconds)
                if out is not None and self.samples:
                    results.save(self.results(), out)
        self.complete = True

    def _add(self, case: Case, number: int) -> None:
        others = Others()
        if case.mode == "memory":
            sitting = measure.Sitting(measure.memory(case), None)  # load does not change it
        else:
            found = measure.times(case, self.seconds, self.least, seed=number)
            sitting = measure.Sitting(found, others.cores())
        if all(sitting.times.values()):  # else memory, on a system that does not tell
            self.samples.setdefault(case, []).append(sitting)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, report, and give the exit code."""
    command = parser()
    options = command.parse_args(arguments)
    if options.quick and options.all:
        command.error("argument --all: not with --quick; accepted: one of them")
    todo = chosen(options)
    if not todo:
        command.error("no row is left; accepted: fewer of --quick, --only and --batch-sizes")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    passes, default = (QUICK_PASSES, QUICK_SECONDS) if options.quick else (PASSES, SECONDS)
    run = Run(todo, options.seconds or default, passes)
    console.print(describe(run.facts))
    if warning(run.facts):
        console.print(warning(run.facts), style="bold yellow")
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    whole = not (options.quick or options.only or options.batch_sizes)
    try:
        run.measure(console, whole, options.out)
    except KeyboardInterrupt:
        console.print("Interrupted. This is what was measured so far.", style="bold yellow")
    found = run.results()
    if not found["rows"]:
        return INTERRUPTED
    report(found, console, options.out)
    return exit_code(verdicts(found["rows"]), options.strict) if run.complete else INTERRUPTED


def report(found: results.Results, console: Console, out: Path | None) -> None:
    """Print the tables; write them, the rows and the picture to a folder."""
    for table in tables.tables(found):
        if table.heading != tables.SETTINGS:  # long; it is in the file
            console.print(table.rich())
    if missing := tables.unmeasured(verdicts(found["rows"])):
        console.print(missing)
    if out is not None:
        results.save(found, out)
        write(out / "table.md", tables.page(found))
        drawn = picture(found["rows"], out / "ratios.png")
        console.print(f"Wrote table.md, results.json{', ratios.png' if drawn else ''} in {out}.")


if __name__ == "__main__":
    reuse_memory()
    sys.exit(main())

"""Train the rows of the study "many workers of two images, trained to the end".

    python -m studies.many_workers.run --mini mini100_32.npz --hours 2

Stages run in the order of studies.many_workers.plan, the most informative first. The command stops
after the hours given, and resumes where it was stopped. The first seed of every row is diagnosed at
its best rate, see studies.many_workers.diagnosis. Test accuracies are read by the report alone.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from studies.ledger import Ledger
from studies.many_workers.diagnosis import Diagnoses
from studies.many_workers.plan import STAGES, best, names, wanted
from studies.runner import add_options, engine_of, folder_name, run_all

FOLDER = Path("runs/many-workers")
RESULTS = Path("results/many-workers")
LEDGER, DIAGNOSES = RESULTS / "runs.jsonl", RESULTS / "diagnoses.jsonl"


def main() -> None:
    """Run what is not done yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mini", type=Path, required=True, help="mini100_32.npz")
    add_options(parser)
    parser.add_argument("--hours", type=float, default=2.0, help="in all (default: 2)")
    options = parser.parse_args()
    mini, end = options.mini.resolve(), time.monotonic() + 3600 * options.hours
    ledger, diagnoses = Ledger(LEDGER), Diagnoses(DIAGNOSES)
    where = engine_of(options)
    for stage in STAGES:
        seeds = ", ".join(map(str, stage.seeds))
        print(f"{stage.cell}, {stage.rows} rows, seeds {seeds}", flush=True)
        done = run_all(partial(wanted, stage, mini, ledger), FOLDER, where, end, ledger)
        chosen = (best(stage.cell, name, mini, ledger) for name in names(stage, mini, ledger))
        for own in chosen:
            if own is None or own not in ledger or own in diagnoses:
                continue
            folder = FOLDER / folder_name(own)
            if folder.exists():  # of a run of this machine
                diagnoses.add(own, folder)
        if not done:
            return


if __name__ == "__main__":
    main()

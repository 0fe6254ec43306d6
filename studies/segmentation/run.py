"""Train the rows of the study "real streets, one and two images at a time".

    python -m studies.segmentation.run --data camvid_240.npz --weights mobilenet_v2.pth --hours 4

Stages run in the order of studies.segmentation.plan, the most informative first. The command stops
after the hours given, and resumes where it was stopped. Scores on test images are read by the
report alone.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

from studies.ledger import Ledger
from studies.runner import add_options, engine_of, run_all
from studies.segmentation.plan import STAGES, wanted
from studies.segmentation.rows import Sources

FOLDER = Path("runs/segmentation")
RESULTS = Path("results/segmentation")
LEDGER = RESULTS / "runs.jsonl"


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Options that the report has as well."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="camvid_240.npz")
    parser.add_argument("--weights", type=Path, required=True, help="torchvision's MobileNetV2")
    return parser


def main() -> None:
    """Run what is not done yet."""
    parser = arguments(__doc__)
    add_options(parser)
    parser.add_argument("--hours", type=float, default=4.0, help="in all (default: 4)")
    options = parser.parse_args()
    end, ledger = time.monotonic() + 3600 * options.hours, Ledger(LEDGER)
    sources = Sources(options.data.resolve(), options.weights.resolve())
    where = engine_of(options)
    for stage in STAGES:
        print(f"{stage.cell}, {stage.rows} rows, {len(stage.seeds)} seeds", flush=True)
        if not run_all(partial(wanted, stage, sources, ledger), FOLDER, where, end, ledger):
            return


if __name__ == "__main__":
    main()

"""How many JPEGs a core decodes a second: 500x375 pixels, a random part of each cut to 224x224.

python -m benchmarks.decoding --out results/sync/decoding.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

from bgn_lab.planning.measure import decoding

TIMES = 5


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/sync/decoding.json"))
    given = parser.parse_args()
    rates = [decoding(224) for _ in range(TIMES)]
    record = {
        "command": "python -m benchmarks.decoding",
        "load": os.getloadavg(),
        "images_per_second": statistics.median(rates),
        "rates": rates,
    }
    print(f"{record['images_per_second']:.0f} images/s a core")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What lies in folders of runs: epochs so far, records that are whole, results that are equal."""

import json
from pathlib import Path

from bgn_lab.training.record import METRICS, RESULT
from bgn_lab.training.run import WEIGHTS


def epochs(out: Path) -> dict[str, int]:
    """Epochs done, by run."""
    return {
        path.parent.name: path.read_text().count("\n") for path in out.glob(f"runs/*/{METRICS}")
    }


def check_records(out: Path, expected: int) -> None:
    """Each epoch of each run is there, once."""
    paths = list(out.glob(f"runs/*/{METRICS}"))
    assert paths
    for path in paths:
        found = [json.loads(line)["epoch"] for line in path.read_text().splitlines()]
        assert found == list(range(1, expected + 1)), path


def check_same(one: Path, two: Path, runs: int) -> None:
    """The runs of ``one`` have the same results and weights in ``two``, but for the time taken."""
    found = sorted(one.glob(f"runs/*/{RESULT}"))
    assert len(found) == runs
    for path in found:
        other = two / path.relative_to(one)
        values, others = (json.loads(own.read_text()) for own in (path, other))
        assert {**values, "seconds": 0} == {**others, "seconds": 0}
        assert path.with_name(WEIGHTS).read_bytes() == other.with_name(WEIGHTS).read_bytes()

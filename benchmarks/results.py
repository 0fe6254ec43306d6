"""results.json: the rows of a run, compact, one per line; and what they were measured on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bgn_lab.system.files import write

FILE = "results.json"
COLUMNS = ("min", "median", "rounds")
Results = dict[str, Any]  # about, rows, and whether all that was asked for was measured


def _pack(row: dict[str, Any]) -> dict[str, Any]:
    """Minimum, median and rounds as a list: their names stand once, at the top of the file."""
    packed = dict(row)
    for field in {"times", "memory"} & row.keys():
        packed[field] = {
            name: [float(f"{t['min']:.5g}"), float(f"{t['median']:.5g}"), t["rounds"]]
            for name, t in row[field].items()
        }
    return packed


def _unpack(row: dict[str, Any]) -> dict[str, Any]:
    for field in {"times", "memory"} & row.keys():
        row[field] = {n: dict(zip(COLUMNS, t, strict=True)) for n, t in row[field].items()}
    return row


def save(results: Results, folder: Path) -> None:
    """Write results.json, whole or not at all."""
    rest = {name: value for name, value in results.items() if name != "rows"}
    head = json.dumps({**rest, "columns": COLUMNS, "rows": []})
    lines = ",\n".join(json.dumps(_pack(row)) for row in results["rows"])
    write(folder / FILE, f"{head.removesuffix(']}')}\n{lines}\n]}}\n")


def load(folder: Path) -> Results:
    """The results in a folder; ValueError where there are none."""
    path = folder / FILE
    try:
        found: Results = json.loads(path.read_text())
        if tuple(found["columns"]) != COLUMNS:
            raise ValueError(f"columns {found['columns']}, not {COLUMNS}")
        found["rows"] = [_unpack(row) for row in found["rows"]]
    except OSError as error:
        raise ValueError(
            f"folder={str(folder)!r}: {path} cannot be read ({error.strerror}); accepted: a folder"
            " that `python -m benchmarks.run --out FOLDER` wrote"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"folder={str(folder)!r}: {path} is not a result of this version ({error}); measure"
            " again"
        ) from error
    return found

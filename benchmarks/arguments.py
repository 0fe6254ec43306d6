"""Types of command line arguments: errors name the value and what is accepted."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def seconds(text: str) -> float:
    """A time above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; accepted: a number above 0")
    return value


def folder(text: str) -> Path:
    """A folder to write to, which need not exist."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a file; accepted: a folder, new or old")
    return path

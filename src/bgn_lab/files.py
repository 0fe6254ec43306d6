"""Files that are there whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

DRAFT = ".part"  # how the name of a file ends that is not whole yet


def write(path: Path, content: str | bytes) -> None:
    """All of it or nothing: whoever reads meanwhile, and whoever comes after a crash, finds the old file or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        with draft.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """A value as JSON, for people to read too."""
    write(path, json.dumps(value, indent=2) + "\n")


def digest(path: Path, algorithm: str) -> str:
    """The hash of a file in hexadecimal, read in pieces."""
    found = hashlib.new(algorithm)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()

"""Check that a tag, the version and CHANGELOG.md agree, and print the notes of the release.

python tools/release.py v0.1.0 > notes.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]+)\)$", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def version(root: Path = ROOT) -> str:
    """The version of the package, without importing it."""
    text = (root / "src/bgn/_version.py").read_text()
    (found,) = re.findall(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    return str(found)


def notes(tag: str, root: Path = ROOT) -> str:
    """The changelog's part about the version of a tag."""
    own = version(root)
    if tag != f"v{own}":
        raise ValueError(f"tag={tag!r}; expected 'v{own}', as in src/bgn/_version.py")
    changelog = (root / "CHANGELOG.md").read_text()
    headings = list(HEADING.finditer(changelog))
    if not headings or headings[0]["version"] != own:
        raise ValueError(f"CHANGELOG.md has to begin with '## {own} (YYYY-MM-DD)'")
    if not DATE.fullmatch(headings[0]["date"]):
        raise ValueError(
            f"CHANGELOG.md: {own} is '{headings[0]['date']}'; expected its date, YYYY-MM-DD"
        )
    end = headings[1].start() if len(headings) > 1 else len(changelog)
    return changelog[headings[0].end() : end].strip() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/release.py TAG")
    try:
        print(notes(sys.argv[1]), end="")
    except ValueError as error:
        raise SystemExit(str(error)) from None

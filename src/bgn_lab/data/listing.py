"""What is in a folder of images, seen in one pass over its entries."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
LITTER = ("__MACOSX", "@eaDir", "lost+found")  # folders that systems leave behind


@dataclass(frozen=True)
class Seen:
    """The names in a folder in alphabetical order, but for hidden ones and litter."""

    path: Path
    folders: tuple[str, ...]
    images: tuple[str, ...]  # by their endings
    others: tuple[str, ...]
    broken: dict[str, str]  # images that cannot be read, and why; only where asked for

    @property
    def found(self) -> str:
        """What there is, in a few words."""
        kinds = {"folder": self.folders, "image": self.images, "other file": self.others}
        return ", ".join(some(kind, names) for kind, names in kinds.items() if names) or "nothing"

    @property
    def archives(self) -> tuple[str, ...]:
        """Among the other files."""
        return tuple(name for name in self.others if name.lower().endswith(ARCHIVES))


def look(path: Path, sizes: bool = False, most: int | None = None) -> Seen:
    """List a folder, or its first ``most`` entries. The kind of an entry comes with its name; its size is a call of its own."""
    folders: list[str] = []
    images: list[str] = []
    others: list[str] = []
    broken: dict[str, str] = {}
    try:
        with os.scandir(path) as entries:
            for entry in islice(entries, most):
                name = entry.name
                if name.startswith(".") or name in LITTER:
                    continue
                if entry.is_dir():
                    folders.append(name)
                elif name.lower().endswith(ENDINGS):
                    images.append(name)
                    if sizes and (reason := _unreadable(entry)):
                        broken[name] = reason
                else:
                    others.append(name)
    except OSError as error:
        raise type(error)(
            f"{path} cannot be read ({error.strerror}); expected a folder that exists and that you may list"
        ) from None
    return Seen(path, tuple(sorted(folders)), tuple(sorted(images)), tuple(sorted(others)), broken)


def some(kind: str, names: Sequence[str]) -> str:
    """How many there are of a kind, and the first of them."""
    return f"{len(names):,} {kind}{'s' if len(names) > 1 else ''} ({few(names)})"


def few(names: Iterable[str], most: int = 3) -> str:
    """The first of some names."""
    first = list(islice(names, most + 1))
    return ", ".join(first[:most] + ["..."] * (len(first) > most))


def _unreadable(entry: os.DirEntry[str]) -> str | None:
    try:
        return None if entry.stat().st_size else "of zero bytes"
    except FileNotFoundError:
        return "a link to nothing"
    except OSError as error:
        return f"out of reach ({error.strerror})"

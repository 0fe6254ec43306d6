"""Entries of a folder of images, seen in one pass."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bgn_lab.data.names import printable

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".tif", ".tiff")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
LITTER = ("__MACOSX", "@eaDir", "lost+found")  # folders that systems leave behind
UNREADABLE = -1  # in place of a size


@dataclass(frozen=True)
class Seen:
    """The names in a folder, without hidden ones and litter, in the order of their bytes."""

    path: Path
    folders: tuple[str, ...]
    images: tuple[str, ...]  # by their endings
    others: tuple[str, ...]
    sizes: tuple[int, ...]  # of the images in bytes, if they were requested
    broken: dict[str, str]  # images without content, and why; found with the sizes

    @property
    def found(self) -> str:
        """What there is, in a few words."""
        kinds = {"folder": self.folders, "image": self.images, "other file": self.others}
        return ", ".join(some(kind, names) for kind, names in kinds.items() if names) or "nothing"

    @property
    def archives(self) -> tuple[str, ...]:
        """The archives among the other files."""
        return tuple(name for name in self.others if name.lower().endswith(ARCHIVES))


def look(path: Path, sizes: bool = False, most: int | None = None) -> Seen:
    """List a folder, or its first ``most`` entries; with sizes, at the cost of a call per image."""
    folders: list[str] = []
    images: dict[str, int] = {}
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
                elif not name.lower().endswith(ENDINGS):
                    others.append(name)
                elif not sizes:
                    images[name] = UNREADABLE
                elif _is_special(entry):
                    others.append(name)
                else:
                    images[name], broken[name] = _size(entry)
    except OSError as error:
        raise type(error)(
            f"{printable(path)} cannot be read ({error.strerror}); "
            "expected a folder that exists and that you may list"
        ) from None
    names = _sorted(images)
    return Seen(
        path,
        _sorted(folders),
        names,
        _sorted(others),
        tuple(images[name] for name in names) if sizes else (),
        {name: reason for name, reason in broken.items() if reason},
    )


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    """The same order in every locale and on every file system."""
    return tuple(sorted(names, key=os.fsencode))


def some(kind: str, names: Sequence[str]) -> str:
    """How many there are of a kind, and the first of them."""
    return f"{len(names):,} {kind}{'s' if len(names) > 1 else ''} ({few(names)})"


def few(names: Iterable[str], most: int = 3) -> str:
    """The first of some names."""
    first = [printable(name) for name in islice(names, most + 1)]
    return ", ".join(first[:most] + ["..."] * (len(first) > most))


def _is_special(entry: os.DirEntry[str]) -> bool:
    """Whether reading would wait for somebody to write: pipes, sockets and devices."""
    try:
        return not stat.S_ISREG(entry.stat().st_mode)
    except OSError:  # a link to nothing
        return False


def _size(entry: os.DirEntry[str]) -> tuple[int, str]:
    """Size of a file, and what is wrong with it."""
    try:
        size = entry.stat().st_size
    except FileNotFoundError:
        return UNREADABLE, "a link to nothing"
    except OSError as error:
        return UNREADABLE, f"out of reach ({error.strerror})"
    return size, "" if size else "of zero bytes"

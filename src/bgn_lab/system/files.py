"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

from bgn_lab.system.printable import printable

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_held: set[int] = set()  # handles of locked folders
DRAFT = ".part"  # how the name of a file ends that is not whole yet


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: whole or not at all.

    Whoever reads meanwhile, or comes after a crash, finds the old file or the new one.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        draft.unlink(missing_ok=True)  # of a process of the same number
        with draft.open("xb") as file:  # new: through a link it would be a file elsewhere
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def append(path: Path, line: str) -> None:
    """A line at the end of a file, on disk when this returns; a crash may leave part of it.

    A link is refused: the line would go to a file elsewhere.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    try:
        with os.fdopen(os.open(path, flags, 0o666), "a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror}") from error


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{path} cannot be made a folder: {error.strerror}") from None


def is_draft(path: Path, *names: str) -> bool:
    """Whether a path is a leftover of :func:`write`, whose process was killed.

    With ``names`` it must be one of these files, else any.
    """
    return path.name.startswith(tuple(f".{name}." for name in names) or ".") and path.name.endswith(
        DRAFT
    )


def remove_drafts(folder: Path) -> None:
    """Remove what killed processes left; nobody may be writing there meanwhile."""
    for path in folder.iterdir():
        if is_draft(path):
            path.unlink()


def lock(folder: Path) -> int | None:
    """Keep others who lock the folder out of it, until :func:`unlock` or the end of the process."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(
            f"{folder} is being worked on by another process; wait for it or choose another --out"
        ) from None
    _held.add(handle)
    return handle


def is_free(folder: Path) -> bool:
    """Whether nobody holds the lock of a folder at this moment."""
    try:
        unlock(lock(folder))
    except ValueError:
        return False
    return True


def unlock(handle: int | None) -> None:
    """Let others in again."""
    if handle is not None:
        _held.discard(handle)
        os.close(handle)


def forget_locks() -> None:
    """Forget the locks in a forked process: they are its parent's, and shall end with that."""
    while _held:
        os.close(_held.pop())


def write_json(path: Path, value: Any) -> None:
    """A value as JSON, for people to read too."""
    write(path, json.dumps(value, indent=2) + "\n")


def render_figure(figure: Any, kind: str, **options: Any) -> bytes:
    """A figure of matplotlib as PNG, SVG, ...; its texts stand as they are.

    Names from data may hold ``$``, which matplotlib would take for mathematics, and fail where it
    is none.
    """
    import matplotlib as mpl
    from matplotlib.text import Text

    content = io.BytesIO()
    with mpl.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        for text in figure.findobj(Text):
            text.set_parse_math(False)
            text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
        figure.savefig(content, format=kind, **options)
    return content.getvalue()


def write_figure(
    path: Path, figure: Any, dpi: int = 130, metadata: dict[str, str] | None = None
) -> None:
    """A figure of matplotlib in the format that the name ends with."""
    write(path, render_figure(figure, path.suffix[1:], dpi=dpi, metadata=metadata))


def digest(path: Path, algorithm: str) -> str:
    """The hash of a file in hexadecimal, read in pieces."""
    found = hashlib.new(algorithm)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            found.update(piece)
    return found.hexdigest()

"""Fetch files: by a download that can be continued, or by the npm client."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bgn_lab.data.names import printable
from bgn_lab.system import files

Progress = Callable[[int, int], None]  # bytes so far, bytes in all (0: unknown)


def home() -> Path:
    """Folder of fetched data: $BGN_HOME, or in the user's cache folder."""
    if given := os.environ.get("BGN_HOME"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bgn"


def draft_of(path: Path) -> Path:
    """Where a file is until it is whole and its hash is known to be right."""
    return path.with_name(path.name + files.DRAFT)


def download(url: str, path: Path, progress: Progress, seconds: float = 30.0) -> None:
    """Download into ``path`` + ".part"; continue an interrupted download if the server can."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(path)
    have = draft.stat().st_size if draft.exists() else 0
    headers = {"User-Agent": "batch-group-norm", **({"Range": f"bytes={have}-"} if have else {})}
    try:
        answer = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=seconds
        )
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or not have:  # 416: there is nothing after what we have
            raise
        return
    with answer:
        if have and answer.status != 206:  # the server sends the whole file
            have = 0
        size = int(answer.headers.get("Content-Length") or 0)
        with draft.open("ab" if have else "wb") as file:
            done, total = have, have + size if size else 0
            while piece := answer.read(1 << 20):
                file.write(piece)
                done += len(piece)
                progress(done, total)
    if total and done != total:
        raise OSError(f"{url} ended after {done} of {total} bytes; the same command continues")


def pack(package: str, name: str, path: Path) -> None:
    """Let the npm client, as it is configured, fetch a package into ``path`` + ".part"."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError("npm is not installed")
    path.parent.mkdir(parents=True, exist_ok=True)
    # in an empty folder: no project's settings apply, and nothing is overwritten
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".npm-") as folder:
        command = [npm, "pack", package, "--ignore-scripts", "--silent"]
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode or not (Path(folder) / name).is_file():
            words = (done.stderr or done.stdout).decode(errors="replace").split("\n")
            why = printable(" ".join(line.strip() for line in words if line.strip())[-300:])
            raise OSError(f"npm pack failed with code {done.returncode}: {why or 'no message'}")
        os.replace(Path(folder) / name, draft_of(path))

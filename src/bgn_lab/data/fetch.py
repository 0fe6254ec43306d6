"""Fetch a data set: what can be reached, checked by its hash; otherwise say what to do by hand."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from bgn_lab.data import cifar10

Progress = Callable[[int, int], None]  # bytes so far, bytes in all (0: unknown)


def home() -> Path:
    """Where fetched data lies: $BGN_HOME, or the user's cache folder."""
    if own := os.environ.get("BGN_HOME"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bgn"


def download(url: str, path: Path, progress: Progress, seconds: float = 30.0) -> None:
    """Into ``path`` + ".part"; what an interrupted download left there is continued where the server allows it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".part")
    have = draft.stat().st_size if draft.exists() else 0
    request = urllib.request.Request(
        url,
        headers={"User-Agent": "batch-group-norm", **({"Range": f"bytes={have}-"} if have else {})},
    )
    try:
        answer = urllib.request.urlopen(request, timeout=seconds)
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
            done, all_of_it = have, have + size if size else 0
            while piece := answer.read(1 << 20):
                file.write(piece)
                done += len(piece)
                progress(done, all_of_it)
    if all_of_it and done != all_of_it:
        raise OSError(f"{url} ended after {done} of {all_of_it} bytes; the same command continues")


def get_cifar10(root: Path | None, progress: Progress) -> Path:
    """The folder with an archive of CIFAR-10, fetched unless it is there."""
    folder = root or home() / "cifar10"
    for archive in cifar10.ARCHIVES:
        if (folder / archive.name).is_file():
            cifar10.check(folder / archive.name, archive)
            return folder
    failures = []
    for archive in cifar10.ARCHIVES:
        path = folder / archive.name
        draft = path.with_name(path.name + ".part")
        try:
            download(archive.url, path, progress)
            cifar10.check(draft, archive)
        except ValueError as error:  # wrong bytes: continuing from them would never end well
            draft.unlink(missing_ok=True)
            failures.append(f"{archive.url}: {error}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{archive.url}: {error}")
        else:
            os.replace(draft, path)
            return folder
    tried = "\n  ".join(failures)
    raise OSError(
        f"CIFAR-10 could not be fetched:\n  {tried}\nGet one of these files elsewhere and put it into {folder}"
    )

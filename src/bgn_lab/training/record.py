"""The folder of a run: its recipe, data, sessions, metrics of every epoch, and result."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import bgn
from bgn_lab.data import sources
from bgn_lab.data.sources import Data
from bgn_lab.recipe import Recipe
from bgn_lab.system import cores, files, reading, schema
from bgn_lab.system.printable import shorten
from bgn_lab.training import workers
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.result import Result

RECIPE, ABOUT, METRICS, RESULT = "recipe.json", "about.json", "metrics.jsonl", "result.json"
DATA = "data.json"  # fingerprints of the data that a run began with
WARNINGS = "warnings.txt"  # what went wrong after training
PARTS = ("train", "validation", "test")


class Record:
    """The folder of one run: ``with Record(folder, recipe) as record:`` locks it meanwhile."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe

    def __enter__(self) -> Record:
        missing = not self.folder.exists()
        files.make_folder(self.folder)
        self._lock = files.lock(self.folder)
        try:
            self._claim()
        except BaseException:
            files.unlock(self._lock)
            if missing and not any(self.folder.iterdir()):
                self.folder.rmdir()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        files.unlock(self._lock)

    def _claim(self) -> None:
        """Refuse a folder of something else; begin a new one."""
        folder, known = self.folder, self.folder / RECIPE
        if known.exists():
            values = reading.read_json(known)
            if (kind := values.get("experiment", "classification")) != self.recipe.experiment:
                raise ValueError(
                    f"{folder} holds a run of bgn run {kind}, not {self.recipe.experiment}; "
                    "choose another --out"
                )
            with reading.naming(known):
                other = type(self.recipe).from_json(values).identity()
            if odd := reading.differences(other, self.recipe.identity()):
                raise ValueError(f"{folder} holds another run ({odd}); choose another --out")
            files.remove_drafts(folder)
        elif any(
            path.name != ABOUT and not files.is_draft(path, RECIPE, ABOUT)
            for path in folder.iterdir()
        ):
            raise ValueError(f"{folder} is not empty and holds no run; choose another --out")
        else:
            files.remove_drafts(folder)
            files.write_json(folder / ABOUT, about())
            files.write_json(known, self.recipe.to_json())

    def begin(self, data: Data) -> None:
        """Refuse other data than the run began with; add this session to about.json.

        The fields of the first session are also at the top level of about.json.
        """
        check_data(self.folder, data)
        if not (self.folder / DATA).exists():
            files.write_json(self.folder / DATA, _fingerprints(data))
        path = self.folder / ABOUT
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        session = {"time": now, **about()}
        known = read_about(self.folder) if path.exists() else {}
        sessions = known.get("sessions", [])
        with reading.naming(path):
            schema.check("sessions", sessions, list[dict[str, Any]])
        first = {} if sessions else session  # what is known, choices among it, stays
        files.write_json(path, {**known, **first, "sessions": [*sessions, session]})

    def result(self) -> Result | None:
        """Result of the run, if it is finished."""
        path = self.folder / RESULT
        if not path.exists():
            return None
        values = reading.read_json(path)
        with reading.naming(path):
            return Result.from_json(values)

    def choose(self, name: str, choice: Callable[[], bool]) -> bool:
        """A choice that depends on the machine: made once, and kept when the run is resumed."""
        path = self.folder / ABOUT
        known = reading.read_json(path) if path.exists() else {}
        if name not in known:
            known[name] = choice()
            files.write_json(path, known)
        return bool(known[name])

    def rewind(self, epoch: int) -> list[Metrics]:
        """Metrics of the first epochs; lines beyond the last checkpoint are removed."""
        path = self.folder / METRICS
        lines = reading.read_text(path).splitlines() if path.exists() else []
        kept = [line for line in lines[:epoch] if line]
        if len(kept) < epoch:
            raise ValueError(
                f"{path} has {len(kept)} epochs, the checkpoint {epoch}; "
                f"remove {self.folder} to begin this run anew"
            )
        with reading.naming(path):
            found = [Metrics.from_json(schema.parse(line)) for line in kept]
        if lines[epoch:]:
            files.write(path, "".join(line + "\n" for line in kept))
        return found

    def add(self, metrics: Metrics) -> None:
        """Append the metrics of an epoch."""
        # flushed to disk as checkpoints are: after a power failure there shall not be fewer lines
        # than epochs in the checkpoint
        files.append(self.folder / METRICS, json.dumps(metrics.to_json(), allow_nan=False) + "\n")

    def finish(self, result: Result) -> None:
        """Write the result; a run with one is finished."""
        files.write_json(self.folder / RESULT, result.to_json())


def read_recipe(folder: Path) -> dict[str, Any]:
    """Values of the recipe of the run in a folder."""
    if not (folder / RECIPE).is_file():
        raise FileNotFoundError(f"{folder} holds no run; expected a folder with {RECIPE}")
    return reading.read_json(folder / RECIPE)


def read_about(folder: Path) -> dict[str, Any]:
    """What the run in a folder ran on: the fields of its first session, and all ``sessions``."""
    return reading.read_json(folder / ABOUT)


def _fingerprints(data: Data) -> dict[str, Any]:
    """Fingerprints as data.json holds them: of all, and of each part to name what changed."""
    parts = {part: list(sources.fingerprint(getattr(data, part))) for part in PARTS}
    return {"fingerprint": data.fingerprint, **parts}


def check_data(folder: Path, data: Data) -> None:
    """Refuse to go on in the folder of a run whose data was another."""
    path = folder / DATA
    if not path.exists():
        return
    before, now = reading.read_json(path), _fingerprints(data)
    if before == now:
        return
    changed = [part for part in PARTS if before.get(part) != now[part]]
    names = {
        part: f"{part} ({_count(before.get(part))} images then, {now[part][0]} now)"
        for part in changed
    }
    what = " and ".join(names.values()) if changed else "the content of the images"
    raise ValueError(
        f"the data changed since the run in {folder} began: {what}; "
        "restore the data to resume this run, or choose another --out"
    )


def _count(known: Any) -> str:
    return shorten(str(known[0]), 20) if isinstance(known, list) and known else "no"


def about() -> dict[str, Any]:
    """Versions, machine, command and the state of the source tree."""
    info = bgn.info()
    return {
        "bgn": info.version,
        "backend": info.backend,
        "torch": torch.__version__,
        "safetensors": version("safetensors"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": cores.count(),
        "threads": torch.get_num_threads(),
        "processes": workers.world_size(),
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "bgn"), *sys.argv[1:]],
        "git": _git(),
    }


def other_versions(abouts: Iterable[Mapping[str, Any]], total: int) -> list[str]:
    """Lines that say how many of ``total`` runs were made with versions other than the present.

    ``abouts`` are the contents of their about.json; every session of a run counts.

    >>> other_versions([{"torch": "0.1", "bgn": bgn.__version__}], total=4)
    ['1 of 4 runs were made with torch 0.1']
    """
    present = {"torch": str(torch.__version__), "bgn": bgn.__version__, "commit": _commit(_git())}
    found: Counter[str] = Counter()
    for own in abouts:
        sessions = own.get("sessions") or [own]
        versions = {
            (name, str(s[name])) for s in sessions for name in ("torch", "bgn") if name in s
        }
        versions |= {("commit", commit) for s in sessions if (commit := _commit(s.get("git")))}
        found.update(
            f"{name} {value}"
            for name, value in versions
            if present[name] and value != present[name]
        )
    return [
        f"{count} of {total} runs were made with {what}" for what, count in sorted(found.items())
    ]


def _commit(git: Mapping[str, Any] | None) -> str:
    return str(git["commit"])[:12] if git else ""


def _git() -> dict[str, Any] | None:
    """Commit of the source tree of this package and whether it was changed; None outside of one."""
    here = Path(__file__).parent

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if not ask("ls-files", Path(__file__).name):  # installed inside of another project's tree
            return None
        return {
            "commit": ask("rev-parse", "HEAD"),
            "changed": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None

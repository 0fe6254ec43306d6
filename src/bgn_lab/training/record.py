"""What a run leaves behind: its recipe, what it ran on, metrics of every epoch, and its result."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import bgn
from bgn_lab.recipe import Recipe
from bgn_lab.system import files
from bgn_lab.training import workers

RECIPE, ABOUT, METRICS, RESULT = "recipe.json", "about.json", "metrics.jsonl", "result.json"


class Record:
    """The folder of one run: ``with Record(folder, recipe) as record:``, which keeps other processes out of it meanwhile."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        self.folder, self.recipe = folder, recipe

    def __enter__(self) -> Record:
        missing = not self.folder.exists()
        self.folder.mkdir(parents=True, exist_ok=True)
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
            values = _json(known)
            if (kind := values.get("experiment", "classification")) != self.recipe.experiment:
                raise ValueError(
                    f"{folder} holds a run of bgn run {kind}, not {self.recipe.experiment}; choose another --out"
                )
            other, mine = type(self.recipe).from_json(values).identity(), self.recipe.identity()
            odd = [
                f"{name}={other.get(name)!r} there, {mine[name]!r} here"
                for name in mine
                if mine[name] != other.get(name)
            ]
            if odd:
                raise ValueError(
                    f"{folder} holds another run ({'; '.join(odd)}); choose another --out"
                )
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

    def result(self) -> dict[str, Any] | None:
        """The result, if the run is over."""
        path = self.folder / RESULT
        return _json(path) if path.exists() else None

    def choose(self, name: str, choice: Callable[[], bool]) -> bool:
        """A choice that depends on the machine: made once, and kept when the run is resumed."""
        path = self.folder / ABOUT
        known = _json(path) if path.exists() else {}
        if name not in known:
            known[name] = choice()
            files.write_json(path, known)
        return bool(known[name])

    def rewind(self, epoch: int) -> list[dict[str, Any]]:
        """The metrics of the first epochs; what a killed run wrote beyond its last checkpoint is dropped."""
        path = self.folder / METRICS
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines[:epoch] if line]
        if len(kept) < epoch:
            raise ValueError(
                f"{path} has {len(kept)} epochs, the checkpoint {epoch}; remove {self.folder} to begin this run anew"
            )
        if lines[epoch:]:
            files.write(path, "".join(line + "\n" for line in kept))
        return [json.loads(line) for line in kept]

    def add(self, metrics: dict[str, Any]) -> None:
        """The metrics of one more epoch."""
        with (self.folder / METRICS).open("a") as file:
            file.write(json.dumps(metrics, allow_nan=False) + "\n")
            file.flush()
            os.fsync(
                file.fileno()
            )  # as checkpoints are: after a power failure there shall not be fewer lines than epochs

    def finish(self, result: dict[str, Any]) -> None:
        """The result; a run with one is over."""
        files.write_json(self.folder / RESULT, result)


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from None
    return found


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
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": workers.world_size(),
        "command": [Path(sys.argv[0]).name.replace("__main__.py", "bgn"), *sys.argv[1:]],
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """Commit of the tree that this package lies in, and whether it was changed; None outside of one."""
    here = Path(__file__).parent

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        if (
            ask("ls-files", Path(__file__).name) == ""
        ):  # installed somewhere inside another project's tree
            return None
        return {
            "commit": ask("rev-parse", "HEAD"),
            "changed": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return None

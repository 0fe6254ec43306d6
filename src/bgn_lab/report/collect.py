"""The runs below some folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bgn_lab import experiments
from bgn_lab.recipe import Recipe
from bgn_lab.training.record import ABOUT, METRICS, RECIPE, RESULT
from bgn_lab.training.run import FINISHED, NOT_CONVERGED


@dataclass(frozen=True)
class Run:
    """One run, perhaps unfinished."""

    folder: Path
    recipe: Recipe
    about: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]
    result: dict[str, Any] | None

    @property
    def command(self) -> list[str]:
        """That started it, with the names of files, but not where they lay: a report may be published."""
        return [_name(word) for word in self.about.get("command", [])]

    @property
    def failed(self) -> bool:
        """Whether it is over and did not converge."""
        return self.result is not None and self.result["status"] == NOT_CONVERGED

    def to_json(self) -> dict[str, Any]:
        """Plain values, with names of files as in the command."""
        recipe = {
            name: _name(value) if isinstance(value, str) else value
            for name, value in self.recipe.to_json().items()
        }
        about = {**self.about, **({"command": self.command} if self.command else {})}
        about.pop("sessions", None)  # whose commands name paths
        return {"folder": self.folder.name, "recipe": recipe, "result": self.result, "about": about}


def _name(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


def read(folder: Path) -> Run:
    """The run in a folder."""
    path = folder / RECIPE
    try:
        recipe = experiments.recipe(_object(path.read_text()))
        about = _object((path := folder / ABOUT).read_text())
        path = folder / METRICS
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        metrics = tuple(
            _object(line) for line in lines if line.endswith("\n")
        )  # a run that is killed may leave half a line
        path = folder / RESULT
        result = _object(path.read_text()) if path.exists() else None
        if result is not None and result.get("status") not in (FINISHED, NOT_CONVERGED):
            raise ValueError(
                f"status={result.get('status')!r}; expected {FINISHED!r} or {NOT_CONVERGED!r}"
            )
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    return Run(folder, recipe, about, metrics, result)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}; expected an object")
    return found


def collect(folders: Sequence[Path]) -> list[Run]:
    """All runs in and below the folders, by name."""
    found: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a folder; expected one with runs in it")
        for path in sorted(folder.rglob(RECIPE)):
            found.setdefault(path.parent.resolve(), read(path.parent))
    if not found:
        raise ValueError(
            f"no runs below {', '.join(map(str, folders))}; a run is a folder with {RECIPE}"
        )
    return list(found.values())

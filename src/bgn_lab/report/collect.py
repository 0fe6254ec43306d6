"""Runs below some folders, read with a check of every field that a report uses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bgn_lab import experiments, norms
from bgn_lab.data.sources import FINGERPRINT
from bgn_lab.recipe import TRAINING, Recipe
from bgn_lab.system import reading, schema
from bgn_lab.system.printable import printable, printable_values, shorten
from bgn_lab.system.reading import DAMAGE, LONGEST
from bgn_lab.system.schema import Positive, Share, Unbounded
from bgn_lab.training.metrics import NUMBERS, Metrics
from bgn_lab.training.record import ABOUT, DATA, METRICS, RECIPE, RESULT
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Result

LAYER = {
    "layer": str,
    "shape": list[Positive],
    "G": Positive,
    "instances": Positive,
    "acts_as": str,
}


@dataclass(frozen=True)
class Run:
    """One run, perhaps unfinished."""

    folder: Path
    recipe: Recipe
    about: dict[str, Any]
    metrics: tuple[Metrics, ...]
    result: Result | None
    data: str | None = None
    """Fingerprint of its data; None if it has not begun."""

    @property
    def command(self) -> list[str]:
        """The command that started it.

        It has names of files but not their folders, since a report may be published.
        """
        return [_name(word) for word in self.about.get("command") or []]

    @property
    def failed(self) -> bool:
        """Whether it is over and did not converge."""
        return self.result is not None and self.result.status == NOT_CONVERGED

    def settings(self) -> dict[str, Any]:
        """The recipe as plain printable values, with names of files as in the command."""
        return {
            name: shorten(_name(value), LONGEST) if isinstance(value, str) else value
            for name, value in self.recipe.to_json().items()
        }

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        recipe = {
            name: _name(value) if isinstance(value, str) else value
            for name, value in self.recipe.to_json().items()
        }
        about = {**self.about, **({"command": self.command} if self.command else {})}
        about.pop("sessions", None)  # whose commands name paths
        result = None if self.result is None else self.result.to_json()
        return {"folder": self.folder.name, "recipe": recipe, "result": result, "about": about}


def _name(word: str) -> str:
    return Path(word).name if Path(word).is_absolute() else word


@dataclass(frozen=True)
class Damaged:
    """A folder that was left out: the file of it that cannot be read, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return printable(f"{self.path} cannot be read: {self.reason}")

    def short(self) -> str:
        """Without the folders above: a report may be published."""
        return printable(f"{Path(self.path.parent.name, self.path.name)}: {self.reason}")


class _UnreadableError(Exception):
    """Carries what is damaged from where it is found."""

    def __init__(self, damaged: Damaged) -> None:
        super().__init__(str(damaged))
        self.damaged = damaged


def read(folder: Path) -> Run:
    """The run in a folder; a ValueError names the file that is damaged."""
    try:
        return _read(folder)
    except _UnreadableError as error:
        raise ValueError(str(error)) from None


def _read(folder: Path) -> Run:
    path = folder / RECIPE
    try:
        recipe = _recipe(_text(path))
        about = _about(_text(path := folder / ABOUT))
        path = folder / METRICS
        metrics = tuple(_metrics(_text(path), recipe)) if path.exists() else ()
        path = folder / RESULT
        result = _result(_text(path), recipe) if path.exists() else None
        path = folder / DATA
        data = _fingerprint(_text(path)) if path.exists() else None
    except OSError as error:
        raise _UnreadableError(Damaged(path, error.strerror or str(error))) from None
    except DAMAGE as error:  # a recipe checks itself, in ways that depend on the experiment
        raise _UnreadableError(Damaged(path, shorten(str(error), LONGEST))) from None
    return Run(folder, recipe, about, metrics, result, data)


def _text(path: Path) -> str:
    if why := reading.problem(path) or ("" if path.exists() else "it is missing"):
        raise ValueError(why)
    return path.read_text(encoding="utf-8")


def _recipe(text: str) -> Recipe:
    values = schema.parse(text)
    name = values.get("experiment", "classification")
    schema.check("experiment", name, str)
    if name in experiments.names():
        schema.check_fields(experiments.get(name).recipe, values)
    found = experiments.recipe(values)
    # what a report asks of it
    found.identity()
    _ = norms.label(found), found.measures, found.curves, found.place
    return found


def _about(text: str) -> dict[str, Any]:
    found: dict[str, Any] = printable_values(schema.parse(text))
    schema.check("command", found.get("command"), list[str] | None)
    git = found.get("git")
    schema.check("git", git, dict | None)
    if git is not None:
        schema.check("git: commit", git.get("commit"), str)
        schema.check("git: changed", git.get("changed"), bool)
    return found


def _fingerprint(text: str) -> str:
    found = schema.parse(text).get("fingerprint")
    schema.check("fingerprint", found, str)
    return shorten(str(found), FINGERPRINT)


def _metrics(text: str, recipe: Recipe) -> Iterator[Metrics]:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):  # a run that is killed may leave half a line
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            found: dict[str, Any] = printable_values(schema.parse(line))
            schema.check("epoch", found.get("epoch"), Positive)
            for name in NUMBERS:
                schema.check(name, found.get(name), Unbounded | None)
            for curve in (TRAINING, *recipe.curves):
                schema.check(curve.key, found.get(curve.key), Share | None)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        yield Metrics.from_json(found)


def _result(text: str, recipe: Recipe) -> Result:
    found: dict[str, Any] = printable_values(schema.parse(text))
    status = found.get("status")
    if status not in (FINISHED, NOT_CONVERGED):
        schema.check("status", status, str)
        raise ValueError(f"status={status!r}; expected {FINISHED!r} or {NOT_CONVERGED!r}")
    required = {
        "reason": str, "chance": Share, "floor": Share, "seconds": float, "images": dict,
        "parameters": int, "epochs": int, "classes": int, "image": list[int],
    }  # fmt: skip
    optional: dict[str, Any] = {
        "test_accuracy": Share, "train_accuracy": Share, "validation_accuracy": Share,
        "shard_accuracy": Share, "shard_images": int, "weights_sha256": str,
    }  # fmt: skip
    if "judged" in found:  # older versions lack it
        required["judged"] = str
    if recipe.experiment == "adaptation":
        required |= {"source": str, "target": str}
    else:
        _check_absent("source", found, recipe)
        _check_absent("target", found, recipe)
    for name, kind in required.items():
        schema.check(name, found.get(name), kind)
    for name, kind in optional.items():
        schema.check(name, found.get(name), kind | None)
    for part, kind in {"train": int, "validation": int, "test": Positive}.items():
        schema.check(f"images: {part}", found["images"].get(part), kind)
    schema.check("images", found["images"], dict[str, int])
    for i, measure in enumerate(recipe.measures):
        needed = i == 0 and status == FINISHED and recipe.test
        schema.check(measure.key, found.get(measure.key), Share if needed else Share | None)
    _check_episodes(found, recipe)
    _check_layers(found.get("layers"))
    found["reason"] = shorten(found["reason"], LONGEST)
    return Result.from_json(found)


def _check_episodes(result: dict[str, Any], recipe: Recipe) -> None:
    """Accuracies by episode: of all episodes, or none at all."""
    count = getattr(recipe, "episodes", None)
    if count is None:
        _check_absent("episodes", result, recipe)
        return
    schema.check("episodes", result.get("episodes"), dict)
    for measure in recipe.measures:
        name, values = f"episodes: {measure.key}", result["episodes"].get(measure.key)
        finished = result["status"] == FINISHED
        schema.check(name, values, list[Share] if finished else list[Share] | None)
        if values is not None and len(values) != count:
            raise ValueError(f"{name} has {len(values)} values; expected {count}")


def _check_absent(name: str, result: dict[str, Any], recipe: Recipe) -> None:
    """Refuse the result of another experiment."""
    if name in result:
        raise ValueError(f"it has {name}, which a result of {recipe.experiment} does not have")


def _check_layers(rows: Any) -> None:
    schema.check("layers", rows, list[dict[str, Any]])
    for number, row in enumerate(rows):
        for name, kind in LAYER.items():
            schema.check(f"layers[{number}]: {name}", row.get(name), kind)


def scan(folders: Sequence[Path]) -> tuple[list[Run], list[Damaged]]:
    """All runs in and below the folders, by name, and what cannot be read.

    If there is no folder of a run, that is an error.
    """
    runs: dict[Path, Run] = {}
    damaged: dict[Path, Damaged] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FileNotFoundError(
                printable(f"{folder} is not a folder; expected one with runs in it")
            )
        for place in _places(folder):
            key = place.resolve()
            if key in runs or key in damaged:
                continue
            try:
                runs[key] = _read(place)
            except _UnreadableError as error:
                damaged[key] = error.damaged
    if not runs and not damaged:
        where = printable(", ".join(map(str, folders)))
        raise ValueError(f"no runs below {where}; a run is a folder with {RECIPE}")
    return list(runs.values()), list(damaged.values())


def _places(folder: Path) -> list[Path]:
    """Folders that hold a run, or what is left of one that lost its recipe."""
    found = []
    for place, inside, files in os.walk(folder):
        names = {*inside, *files}
        if RECIPE in names or (ABOUT in names and names & {METRICS, RESULT}):
            found.append(Path(place))
    return sorted(found)


def collect(folders: Sequence[Path]) -> list[Run]:
    """All runs in and below the folders, by name; an error if one of them is damaged."""
    runs, damaged = scan(folders)
    if damaged:
        raise ValueError("; ".join(map(str, damaged)))
    return runs

"""Finished runs of a study as lines of one file, which travels with the code.

The folders of runs hold weights and paths, and stay where they were trained. The file has what a
report reads, so a study that one machine began goes on with the next.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bgn_lab import experiments
from bgn_lab.recipe import Recipe
from bgn_lab.report.collect import Run, read
from bgn_lab.system import files, reading, schema
from bgn_lab.system.printable import shorten
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.result import Result


def key(recipe: Recipe) -> str:
    """Name of a run: data of one's own counts by the name of its file.

    No file holds such names, for they change when recipes get a new option.
    """
    return recipe.key(_file(recipe))


def to_json(recipe: Recipe) -> dict[str, Any]:
    """Plain values, without the folder of the data."""
    return {**recipe.to_json(), "root": _file(recipe) or None}


def _file(recipe: Recipe) -> str:
    return "" if recipe.root is None or recipe.data == "cifar10" else recipe.root.name


class Ledger:
    """The runs in such a file; an empty one where there is no file yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = reading.read_text(path).splitlines() if path.exists() else []
        parsed = (_parsed(line, f"{path}, line {i}") for i, line in enumerate(lines, 1))
        self._lines = {key(_run(values).recipe): values for values in parsed}

    def __contains__(self, recipe: Recipe) -> bool:
        return key(recipe) in self._lines

    def __len__(self) -> int:
        return len(self._lines)

    def get(self, recipe: Recipe) -> Run | None:
        """The finished run of a recipe, if there is one."""
        values = self._lines.get(key(recipe))
        return None if values is None else _run(values)

    def add(self, folder: Path) -> None:
        """Add the finished run in a folder. Runs of one study must have seen the same images."""
        run = read(folder)
        if run.result is None:
            raise ValueError(f"{folder} holds a run that is not finished")
        for other in map(_run, self._lines.values()):
            if _place(other.recipe) == _place(run.recipe) and other.data != run.data:
                raise ValueError(
                    f"{folder} trained on other images than {key(other.recipe)} in {self.path}: "
                    f"data={run.data!r}, expected {other.data!r}"
                )
        values = run.to_json() | {
            "data": run.data,
            "metrics": [one.to_json() for one in run.metrics],
        }
        values.pop("folder")
        self._lines[key(run.recipe)] = values
        files.make_folder(self.path.parent)
        rows = (json.dumps(values) for values in self._lines.values())
        files.write(self.path, "".join(f"{row}\n" for row in rows))


def _parsed(line: str, place: str) -> dict[str, Any]:
    try:
        values = schema.parse(line)
        _run(values)
    except reading.DAMAGE as error:
        why = shorten(repr(error), reading.LONGEST)
        raise ValueError(f"{place}, is not a run: {why}") from None
    return values


def _place(recipe: Recipe) -> tuple[object, ...]:
    """What decides which images a recipe means."""
    return recipe.data, _file(recipe), recipe.limit, recipe.validation, recipe.image_size


def _run(values: dict[str, Any]) -> Run:
    recipe = experiments.recipe(values["recipe"])
    return Run(
        folder=Path(key(recipe)),
        recipe=recipe,
        about=values["about"],
        metrics=tuple(map(Metrics.from_json, values["metrics"])),
        result=Result.from_json(values["result"]),
        data=values["data"],
    )

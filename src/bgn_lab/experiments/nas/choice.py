"""The best of several searches, as in DARTS' paper (Liu et al. 2019, section 3.2).

What each search found is trained from scratch for a short time, on the half of the training images
that weights learned from in the search. The best on the other half is kept. Test images are not
evaluated: which search is best is chosen before anybody knows how well it does on them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from bgn_lab import experiments
from bgn_lab.experiments.nas import figure, genotype
from bgn_lab.experiments.nas.genotype import Genotype
from bgn_lab.experiments.nas.recipe import ManasRecipe, NasTrainRecipe, SearchRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.recipe import DataOptions, NormOptions, RuntimeOptions
from bgn_lab.system import files, reading
from bgn_lab.training.record import RECIPE
from bgn_lab.training.result import FINISHED, Result

CHOICE = "choice.json"
# the other options of a training are those of its preset
SHARED = tuple(
    own.name
    for part in (DataOptions, NormOptions, RuntimeOptions)
    for own in fields(part)
    if own.init
)


@dataclass(frozen=True)
class Candidate:
    """What a search found, and how well its short training did."""

    seed: int
    search: str
    """Folder of the search."""
    genotype: dict[str, Any] | None
    """None if the loss of the search was not finite."""
    training: str | None = None
    """Folder of the short training."""
    validation_accuracy: float | None = None
    """Accuracy of the short training; None if it did not converge."""


def plain(preset: str) -> NasTrainRecipe:
    """A preset of nas-train, or its defaults if the name is empty."""
    if not preset:
        return NasTrainRecipe()
    found = experiments.get(NasTrainRecipe.experiment).preset(preset).recipe
    assert isinstance(found, NasTrainRecipe)
    return found


def training(search: SearchRecipe, preset: str, found: str) -> NasTrainRecipe:
    """The training of what a search found: a preset with the data, normalizer and runtime of the
    search. A list of cells is trained in a network of as many."""
    base = plain(preset)
    cells = len(genotype.find(found).cells) or base.cells
    return replace(
        base, **{name: getattr(search, name) for name in SHARED}, genotype=found, cells=cells
    )


def short_training(search: SearchRecipe, preset: str, found: str, epochs: int) -> NasTrainRecipe:
    """The training that judges a genotype, on the halves of the search."""
    return replace(
        training(search, preset, found),
        epochs=epochs,
        median_of=1,
        validation=search.validation,
        test=False,
    )


def any_genotype(search: SearchRecipe) -> str:
    """A genotype of the kind that the search finds, to check its training beforehand."""
    many = f"-of-{search.cells}" if isinstance(search, ManasRecipe) else ""
    return f"{genotype.RANDOM}0{many}"


def text(found: dict[str, Any]) -> str:
    """A genotype as the option --genotype takes it, the same for equal ones."""
    return json.dumps(Genotype.from_json(found).to_json())


def judged(candidate: Candidate, result: Result) -> Candidate:
    """The candidate with the result of its short training."""
    accuracy = result.validation_accuracy if result.status == FINISHED else None
    return replace(candidate, validation_accuracy=accuracy)


def best(candidates: Sequence[Candidate]) -> Candidate | None:
    """The best on validation images, the first of equals; None if no training converged."""
    able = [c for c in candidates if c.validation_accuracy is not None]
    return max(able, key=lambda c: c.validation_accuracy or 0.0, default=None)


def claim(folder: Path, first: SearchRecipe, data: str) -> None:
    """Refuse a folder of something else; begin a new one.

    Args:
        folder: of all runs.
        first: recipe of the first search.
        data: fingerprint of its images.
    """
    if (folder / RECIPE).exists():
        raise ValueError(
            f"{folder} holds one run: --searches 1 resumes it; or choose another --out"
        )
    path = folder / CHOICE
    if not path.exists():
        if any(not files.is_draft(other, CHOICE) for other in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no searches; choose another --out")
        files.write_json(path, {"first": first.to_json(), "data": data})
        return
    known = reading.read_json(path)
    with reading.naming(path):
        other = {**experiments.recipe(known["first"]).identity(), "images": known["data"]}
    if odd := reading.differences(other, {**first.identity(), "images": data}):
        raise ValueError(f"{folder} holds other searches ({odd}); choose another --out")


def write(
    folder: Path,
    first: SearchRecipe,
    data: str,
    epochs: int,
    candidates: Sequence[Candidate],
    images: int,
) -> None:
    """choice.json, and of the best its genotype and cells, as a single search leaves them.

    Args:
        folder: of all runs.
        first: recipe of the first search.
        data: fingerprint of its images.
        epochs: of a short training.
        candidates: all of them.
        images: validation images that they were judged by.
    """
    chosen = best(candidates)
    found = {
        "first": first.to_json(),
        "data": data,
        "judged_by": {"validation_images": images, "epochs": epochs},
        "chosen_seed": None if chosen is None else chosen.seed,
        "candidates": [asdict(c) for c in candidates],
    }
    files.write_json(folder / CHOICE, found)
    if chosen is None:
        for name in (GENOTYPE, "cells.png", "cells.svg"):  # of an earlier choice
            (folder / name).unlink(missing_ok=True)
    else:
        assert chosen.genotype is not None
        files.write(folder / GENOTYPE, text(chosen.genotype))
        figure.write(Genotype.from_json(chosen.genotype), folder)


def command(search: SearchRecipe, preset: str, path: Path) -> str:
    """The command that trains a genotype to the end."""
    base, wanted = plain(preset), training(search, preset, any_genotype(search))
    words = ["bgn", "run", NasTrainRecipe.experiment, *(["--preset", preset] if preset else [])]
    for own in fields(wanted):
        value, name = getattr(wanted, own.name), own.name.replace("_", "-")
        if not own.init or own.name == "genotype" or value == getattr(base, own.name):
            continue
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            words += [f"--{name}", str(value)]
    return shlex.join([*words, "--genotype", str(path)])

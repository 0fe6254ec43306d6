"""The network of a finished run, and real images to check its exported form on."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

import bgn
from bgn.surgery.kinds import normalizers
from bgn_lab import experiments, norms
from bgn_lab.data.sources import Data
from bgn_lab.recipe import Recipe
from bgn_lab.report import collect
from bgn_lab.system import files
from bgn_lab.training import loop, record
from bgn_lab.training.run import WEIGHTS
from bgn_lab.training.task import Task


@dataclass(frozen=True)
class Finished:
    """A trained network in eval mode on the CPU, and images as it takes them."""

    model: nn.Module
    images: Tensor  # (M, C, H, W)
    labels: Tensor  # (M,), or (M, H, W) of pixels
    about: dict[str, str]
    """What a user of the file has to know: classes, mean, std, ..."""
    reason: str
    """Why the run did not converge; empty if it did."""


def load(folder: Path, images: int) -> Finished:
    """The network of the run in a folder, with as many images of its data.

    Args:
        folder: of a finished run, of an experiment that ends with one network.
        images: how many to check on; all where there are fewer.
    """
    if not (folder / record.RECIPE).exists():
        raise ValueError(f"run={folder} holds no run; expected the folder of a finished one")
    found = collect.read(folder)
    if found.result is None or not (folder / WEIGHTS).exists():
        raise ValueError(f"run={folder} is not finished; the command that started it resumes it")
    recipe = replace(found.recipe, device="cpu", channels_last=False)
    kind = experiments.get(recipe.experiment).task
    if not kind.ends_with_network:
        raise ValueError(
            f"run={folder} is one of {recipe.experiment}, which ends with a genotype and not with"
            " a network; expected a run of bgn run nas-train, which trains what was found"
        )
    task: Task = kind(recipe, kind.load(recipe))
    if found.data is not None and found.data != task.data.fingerprint:
        raise ValueError(
            f"run={folder}: the data is no longer that of the run ({recipe.data!r}); expected the"
            " same images, which the exported network is checked on"
        )
    model = task.build()
    _fill(model, folder / WEIGHTS, found.result.weights_sha256)
    x, y = loop.Prepare(task.data, recipe)(task.examples(images))
    return Finished(
        task.deployed(model.eval()), x, y, _about(task.data, recipe), found.result.reason
    )


def _fill(model: nn.Module, path: Path, expected: str | None) -> None:
    """Weights of the file, if they are those that the run wrote."""
    if expected is not None and files.digest(path, "sha256") != expected:
        raise ValueError(f"{path} is damaged: its SHA-256 is not the one in {record.RESULT}")
    try:
        model.load_state_dict(load_file(path))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} does not fit the run's network: {error}") from None


def _about(data: Data, recipe: Recipe) -> dict[str, str]:
    return {
        "classes": json.dumps(data.classes),
        "mean": json.dumps(data.mean),
        "std": json.dumps(data.std),
        "input": f"(N, {', '.join(map(str, data.shape))}), float32: (pixels / 255 - mean) / std",
        "normalizer": norms.label(recipe),
        "bgn": bgn.__version__,
    }


def folded(model: nn.Module, example: Tensor) -> tuple[nn.Module, list[str]]:
    """The model with its normalizers in its convolutions, and what was left as it is, and why."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = bgn.fold(model, example=example)
        except ValueError as error:
            return model, [str(error)]
    if not normalizers(made):
        return made, []
    return made, [str(warning.message) for warning in caught]

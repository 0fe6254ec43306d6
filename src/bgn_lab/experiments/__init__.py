"""The experiments by name. To add one: a folder with a descriptor, and a line here.

This module imports nothing heavy, so that `bgn --help` is fast; :func:`get` imports the descriptor.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bgn_lab.data.sources import Data
    from bgn_lab.experiments.experiment import Experiment
    from bgn_lab.recipe import Recipe
    from bgn_lab.training.result import Result
    from bgn_lab.training.run import Watcher
    from bgn_lab.training.task import Task
    from bgn_lab.training.workers import Workers


class Entry(NamedTuple):
    """A line of the registry."""

    descriptor: str
    """module:name"""
    summary: str
    examples: tuple[str, ...]


_HERE = "bgn_lab.experiments"
REGISTRY = {
    "classification": Entry(
        f"{_HERE}.classification.descriptor:EXPERIMENT",
        "one training run, resumable",
        (
            "bgn run classification --norm bgn --batch-size 2",
            "bgn run classification --data cifar10 --model resnet20 --norm gn --epochs 30"
            " --out runs/gn",
            "bgn run classification --model my_package.nets:small --norm my_package.norms:MyNorm",
            "bgn run classification --preset paper-imagenet --root imagenet --norm bgn"
            " --batch-size 2",
            "torchrun --nproc-per-node 8 -m bgn_lab run classification --preset paper-imagenet"
            " --root imagenet --norm bgn",
        ),
    ),
    "adversarial": Entry(
        f"{_HERE}.adversarial.descriptor:EXPERIMENT",
        "adversarial training, robust and clean accuracy",
        (
            "bgn run adversarial --norm bgn",
            "bgn run adversarial --preset paper --norm bgn --groups 512",
            "bgn run adversarial --preset laptop --data cifar10 --norm bn --attack-steps 0",
        ),
    ),
    "fewshot": Entry(
        f"{_HERE}.fewshot.descriptor:EXPERIMENT",
        "few-shot learning by imprinted weights",
        (
            "bgn run fewshot --norm bgn",
            "bgn run fewshot --preset laptop --data mini_imagenet84.npz --norm gn",
            "bgn run fewshot --preset paper --data mini-imagenet --norm bgn --activation swish",
        ),
    ),
    "adaptation": Entry(
        f"{_HERE}.adaptation.descriptor:EXPERIMENT",
        "domain adaptation with normalizers per domain",
        (
            "bgn run adaptation --preset laptop --norm bgn",
            "bgn run adaptation --preset laptop-office --data office31_128.npz --task da"
            " --weights mobilenet_v2.pth --norm bgn",
            "bgn run adaptation --preset paper --data office31 --task da --weights resnet50.pth"
            " --norm bgn",
            "bgn run adaptation --data office31 --task wd --model resnet18"
            " --weights runs/pretrained-gn --norm gn",
        ),
    ),
    "segmentation": Entry(
        f"{_HERE}.segmentation.descriptor:EXPERIMENT",
        "a class for every pixel, one to a few images at a time",
        (
            "bgn run segmentation --preset laptop --norm bgn",
            "bgn run segmentation --preset laptop-volumes --norm bgn --groups 1",
            "bgn run segmentation --preset camvid --data camvid_240.npz --weights mobilenet_v2.pth"
            " --norm bgn+renorm --groups 8 --batch-size 2",
            "bgn run segmentation --data VOCdevkit --model deeplab-resnet50 --weights resnet50.pth"
            " --image-size 320 --crop 320 320 --norm bn+frozen",
        ),
    ),
    "darts-search": Entry(
        f"{_HERE}.nas.descriptor:DARTS_SEARCH",
        "architecture search by gradients",
        (
            "bgn run darts-search --preset laptop --norm bgn --out runs/darts",
            "bgn run darts-search --preset laptop --norm bgn --searches 4 --out runs/best",
            "bgn run darts-search --preset paper --norm bgn --order second",
        ),
    ),
    "manas-search": Entry(
        f"{_HERE}.nas.descriptor:MANAS_SEARCH",
        "architecture search by agents",
        (
            "bgn run manas-search --preset laptop --norm bgn --out runs/manas",
            "bgn run manas-search --preset paper --norm bgn --credit weights",
        ),
    ),
    "nas-train": Entry(
        f"{_HERE}.nas.descriptor:NAS_TRAIN",
        "train the network of a genotype",
        (
            "bgn run nas-train --preset laptop --norm bgn",
            "bgn run nas-train --preset paper --genotype DARTS_V2 --norm bgn",
            "bgn run nas-train --preset laptop --genotype runs/found/genotype.json --norm gn",
        ),
    ),
}


def names() -> tuple[str, ...]:
    """All experiments."""
    return tuple(REGISTRY)


def get(name: str) -> Experiment:
    """The descriptor of an experiment.

    >>> get("adversarial").title
    'adversarial training'
    """
    from bgn import checks

    checks.one_of("experiment", name, names())
    module, _, attribute = REGISTRY[name].descriptor.partition(":")
    found: Experiment = getattr(importlib.import_module(module), attribute)
    return found


def task(recipe: Recipe, data: Data | None = None) -> Task:
    """The task of a recipe, with its data, which is loaded unless given."""
    kind = get(recipe.experiment).task
    return kind(recipe, kind.load(recipe) if data is None else data)


def run(
    recipe: Recipe, folder: Path, watcher: Watcher | None = None, workers: Workers | None = None
) -> Result:
    """Train in a folder, or resume training there; the result. See
    :func:`bgn_lab.training.run.run`."""
    from bgn_lab.training import run as running

    return running.run(task(recipe), folder, watcher, workers)


def recipe(values: dict[str, Any]) -> Recipe:
    """A recipe from plain values, the inverse of :meth:`bgn_lab.recipe.Recipe.to_json`."""
    return get(values.get("experiment", "classification")).recipe.from_json(values)

"""``bgn run``: one training run of an experiment."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bgn import checks
from bgn_lab import experiments, norms, paper
from bgn_lab.experiments.adaptation.task import AdaptationRecipe
from bgn_lab.experiments.adversarial.task import AdversarialRecipe
from bgn_lab.experiments.fewshot.task import FewShotRecipe
from bgn_lab.experiments.nas import genotype
from bgn_lab.experiments.nas.darts import DartsRecipe
from bgn_lab.experiments.nas.manas import ManasRecipe
from bgn_lab.experiments.nas.train import NasTrainRecipe
from bgn_lab.recipe import Recipe
from bgn_lab.system import signals
from bgn_lab.system.launch import launch
from bgn_lab.training import workers
from bgn_lab.training.run import Watcher, run

SHOWN = {  # of an epoch's metrics
    "train_accuracy": "train",
    "validation_accuracy": "validation",
    "validation_robust": "under attack",
    "choice_1": "1-shot of the classes for choosing",
    "test_accuracy": "test",
    "test_robust": "under attack",
    "test_1": "1-shot",
    "test_5": "5-shot",
}


@dataclass(frozen=True)
class _Run:
    """What all of them share."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    preset: str | None = None
    """other defaults"""
    out: Path | None = None
    """folder of the run; by default runs/ and a name made from the options"""
    processes: int = 1
    """processes on this machine, which share the workers; for several machines see torchrun"""
    restarts: int = 3
    """how often all processes begin again from the last checkpoint after one of them died"""

    PRESETS: ClassVar[dict[str, Recipe]] = {}

    def __call__(self, console: Console) -> int:
        """Train, say how it went."""
        checks.positive_int("processes", self.processes)
        if self.restarts < 0:
            raise ValueError(f"restarts={self.restarts} is negative; expected 0 or more")
        recipe = workers.resolve_workers(self.recipe, self.processes)
        if self.processes > 1 and not workers.is_launched():
            with signals.listening():
                if recipe.device == "cuda" and torch.cuda.device_count() < self.processes:
                    found = f"{torch.cuda.device_count()} devices; start fewer, with --simulate-workers for the rest"
                    raise ValueError(f"processes={self.processes} exceeds the {found}")
                here = replace(recipe, device="cpu")  # devices are for the processes
                experiments.task(here).check()  # here, where it is said once
            return launch(sys.argv[1:], self.processes, self.restarts, console)
        folder = self.out or Path("runs") / recipe.key()
        with signals.listening(), workers.connected(recipe) as own:
            return self._run(console if own.is_first else Console(quiet=True), recipe, folder, own)

    def _run(self, console: Console, recipe: Recipe, folder: Path, own: workers.Workers) -> int:
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("", epoch="...", total=None)
            steps = 1

            def begin(epochs: int, per_epoch: int) -> None:
                nonlocal steps
                steps = per_epoch
                progress.update(bar, total=epochs * per_epoch)

            def step(epoch: int, done: int) -> None:
                progress.update(bar, completed=epoch * steps + done, epoch=epoch + 1)

            def epoch(metrics: dict[str, Any]) -> None:
                progress.console.print(line(metrics), highlight=False, soft_wrap=True)

            said = f"{norms.label(recipe)}, batch {recipe.batch_size}{_workers(own)}: {folder}"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
            task = experiments.task(recipe)
            result = run(task, folder, Watcher(begin, step, epoch), own)
        if result["reason"]:
            console.print(
                f"[red]{result['status']}[/red]: {result['reason']}",
                highlight=False,
                soft_wrap=True,
            )
        else:
            console.print(
                f"{task.said(result)}, {result['seconds']:.0f} s", highlight=False, soft_wrap=True
            )
        return 0


@dataclass(frozen=True)
class Classification(_Run):
    """Train one network. Every epoch ends with a checkpoint; the same command goes on from the last one."""

    preset: str | None = None
    """other defaults: paper-imagenet, the paper's ResNet-50 on ImageNet with 8 workers"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "paper-imagenet": Recipe(
            data="imagenet", model="resnet50", simulate_workers=paper.WORKERS, epochs=paper.EPOCHS, schedule="steps",
            milestones=paper.MILESTONES, lr=paper.LEARNING_RATES[32] / paper.WORKERS, decay=paper.WEIGHT_DECAY, validation=0,
            median_of=paper.MEDIAN_EPOCHS, decoders=4,
        ),
    }  # fmt: skip


@dataclass(frozen=True)
class Adversarial(_Run):
    """Train one network on attacked images; robust and clean accuracy. The same command goes on from the last checkpoint."""

    recipe: Annotated[AdversarialRecipe, tyro.conf.arg(name="")] = field(
        default_factory=AdversarialRecipe
    )
    preset: str | None = None
    """other defaults: laptop (minutes on two cores, whatever the data), paper (CIFAR-10, 200 epochs)"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "laptop": AdversarialRecipe(stride=2, limit=10_000, strong_images=500),
        "paper": AdversarialRecipe(
            data="cifar10", epochs=200, milestones=(100, 150), strong_images=1000, strong_restarts=5
        ),
    }


@dataclass(frozen=True)
class FewShot(_Run):
    """Train features on base classes; accuracy on episodes of new ones. The same command goes on from the last checkpoint."""

    recipe: Annotated[FewShotRecipe, tyro.conf.arg(name="")] = field(default_factory=FewShotRecipe)
    preset: str | None = None
    """other defaults: laptop (minutes on two cores, whatever the data), paper (60 epochs of 1000 steps)"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "laptop": FewShotRecipe(
            width=16, batch_size=64, epochs=8, milestones=(4, 6, 7), limit=10_000, image_size=48
        ),
        "paper": FewShotRecipe(epochs=60, iterations=1000, milestones=(20, 40, 50), validation=0),
    }


@dataclass(frozen=True)
class Adaptation(_Run):
    """Adapt one network to images without labels; accuracy there. The same command goes on from the last checkpoint."""

    recipe: Annotated[AdaptationRecipe, tyro.conf.arg(name="")] = field(
        default_factory=AdaptationRecipe
    )
    preset: str | None = None
    """other defaults: laptop (for the two domains that ship with the package; minutes on two cores); the others need --data and
    --weights: laptop-office (MobileNetV2 at 112 pixels), paper (ResNet-50, settings as released), paper-table (with the other G
    for ad and aw), paper-text (with the optimizer of the paper's text)"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "laptop": AdaptationRecipe(stride=2, epochs=10, warm=4, lr=0.01, limit=2000, iterations=60),
        "laptop-office": AdaptationRecipe(
            model="mobilenet-v2", image_size=112, epochs=5, iterations=30, channels_last=True
        ),
        "paper": AdaptationRecipe(model="resnet50"),
        "paper-table": AdaptationRecipe(model="resnet50", printed="table"),
        "paper-text": AdaptationRecipe(model="resnet50", optimizer="adam", schedule="steps"),
    }


@dataclass(frozen=True)
class DartsSearch(_Run):
    """Search for a genotype by gradients; genotype.json in the run's folder is for nas-train. It goes on where it was stopped."""

    recipe: Annotated[DartsRecipe, tyro.conf.arg(name="")] = field(default_factory=DartsRecipe)
    preset: str | None = None
    """other defaults: laptop (5 cells, 8 channels, first order; half an hour on two cores), paper (CIFAR-10)"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "laptop": DartsRecipe(
            width=8, cells=5, epochs=4, limit=10_000, lr=0.1, arch_lr=3e-3, order="first"
        ),
        "paper": DartsRecipe(data="cifar10"),
    }


@dataclass(frozen=True)
class ManasSearch(_Run):
    """Search for a genotype by agents; genotype.json in the run's folder is for nas-train. It goes on where it was stopped."""

    recipe: Annotated[ManasRecipe, tyro.conf.arg(name="")] = field(default_factory=ManasRecipe)
    preset: str | None = None
    """other defaults: laptop (5 cells, 8 channels; minutes on two cores, whatever the data), paper (CIFAR-10, 8 cells),
    paper-20 (20 cells, 500 epochs: what the paper trained was found so)"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "laptop": ManasRecipe(width=8, cells=5, epochs=12, limit=10_000),
        "paper": ManasRecipe(data="cifar10"),
        "paper-20": ManasRecipe(data="cifar10", cells=20, epochs=500),
    }


@dataclass(frozen=True)
class NasTrain(_Run):
    """Train the network of a genotype, published or found by a search. The same command goes on from the last checkpoint."""

    recipe: Annotated[NasTrainRecipe, tyro.conf.arg(name="")] = field(
        default_factory=NasTrainRecipe
    )
    preset: str | None = None
    """other defaults: laptop (minutes on two cores, whatever the data), paper (CIFAR-10, all training images), paper-manas (the
    same with batches of 64, for the --genotype that `bgn run manas-search --preset paper-20` found)"""

    PRESETS: ClassVar[dict[str, Recipe]] = {
        "laptop": NasTrainRecipe(
            width=8, cells=5, epochs=10, limit=10_000, lr=0.1, drop_path=0.1, cutout=8
        ),
        "paper": NasTrainRecipe(data="cifar10", validation=0),
        "paper-manas": NasTrainRecipe(data="cifar10", validation=0, batch_size=64),
    }

    def __call__(self, console: Console) -> int:
        """Not 600 epochs of another network than the one that was meant."""
        assert isinstance(self.recipe, NasTrainRecipe)
        if self.preset == "paper-manas" and not genotype.find(self.recipe.genotype).cells:
            raise ValueError(
                f"preset='paper-manas' trains a list of cells, and genotype={self.recipe.genotype!r} is none; expected the "
                "genotype.json that bgn run manas-search --preset paper-20 leaves"
            )
        return super().__call__(console)


def _workers(own: workers.Workers) -> str:
    """
    >>> _workers(workers.Workers()), _workers(workers.Workers(8, 2))
    ('', ' for each of 8 workers, on 2 processes')
    """
    if own.count == 1:
        return ""
    return f" for each of {own.count} workers, on {'one process' if own.processes == 1 else f'{own.processes} processes'}"


def line(metrics: dict[str, Any]) -> str:
    """The metrics of an epoch in one line."""
    loss = "not finite" if metrics["train_loss"] is None else f"{metrics['train_loss']:.4f}"
    scores = [f"{name} {metrics[key]:.2%}" for key, name in SHOWN.items() if key in metrics]
    return "  ".join(
        [
            f"epoch {metrics['epoch']:>3}",
            f"loss {loss}",
            *scores,
            f"{metrics['images_per_second']:.0f} images/s",
        ]
    )


PRESETS = {
    "classification": Classification.PRESETS,
    "adversarial": Adversarial.PRESETS,
    "fewshot": FewShot.PRESETS,
    "adaptation": Adaptation.PRESETS,
    "darts-search": DartsSearch.PRESETS,
    "manas-search": ManasSearch.PRESETS,
    "nas-train": NasTrain.PRESETS,
}

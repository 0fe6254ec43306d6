"""``bgn run classification``: one training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bgn_lab import norms
from bgn_lab.experiments import classification
from bgn_lab.experiments.classification import Watcher
from bgn_lab.recipe import Recipe


@dataclass(frozen=True)
class Classification:
    """Train one network. Every epoch ends with a checkpoint; the same command goes on from the last one."""

    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    out: Path | None = None
    """folder of the run; by default runs/ and a name made from the options"""

    def __call__(self, console: Console) -> int:
        """Train, say how it went."""
        folder = self.out or Path("runs") / self.recipe.key()
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", epoch="...", total=None)
            steps = 1

            def begin(epochs: int, per_epoch: int) -> None:
                nonlocal steps
                steps = per_epoch
                progress.update(task, total=epochs * per_epoch)

            def step(epoch: int, done: int) -> None:
                progress.update(task, completed=epoch * steps + done, epoch=epoch + 1)

            def epoch(metrics: dict[str, Any]) -> None:
                progress.console.print(line(metrics), highlight=False, soft_wrap=True)

            said = f"{norms.label(self.recipe)}, batch {self.recipe.batch_size}: {folder}"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
            result = classification.run(self.recipe, folder, Watcher(begin, step, epoch))
        if result["reason"]:
            console.print(f"[red]{result['status']}[/red]: {result['reason']}", highlight=False, soft_wrap=True)
        else:
            images = result["images"]["test"]
            console.print(
                f"test accuracy {result['test_accuracy']:.2%} on {images} images, {result['seconds']:.0f} s", highlight=False
            )
        return 0


def line(metrics: dict[str, Any]) -> str:
    """The metrics of an epoch in one line."""
    loss = "not finite" if metrics["train_loss"] is None else f"{metrics['train_loss']:.4f}"
    scores = [
        f"{name} {metrics[f'{name}_accuracy']:.2%}" for name in ("train", "validation", "test") if f"{name}_accuracy" in metrics
    ]
    return "  ".join([f"epoch {metrics['epoch']:>3}", f"loss {loss}", *scores, f"{metrics['images_per_second']:.0f} images/s"])

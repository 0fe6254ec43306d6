"""``bgn resume``: the run of a folder, as its recipe describes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from bgn_lab import experiments
from bgn_lab.commands.run import Run
from bgn_lab.training import record


@dataclass(frozen=True)
class Resume:
    """Begin or resume the run of a folder, as its recipe.json describes it.

    Engines start runs by this command, on whatever machine. A run that is finished stays as it is.
    """

    folder: tyro.conf.Positional[Path]
    """folder of a run, with its recipe.json"""
    processes: int = 1
    """processes on this machine, which share the workers of the run"""
    restarts: int = 3
    """how often all processes begin again from the last checkpoint after one of them died"""

    def __call__(self, console: Console) -> int:
        """Train, print the result; the exit code."""
        recipe = experiments.recipe(record.read_recipe(self.folder))
        experiment = experiments.get(recipe.experiment)
        own = Run(experiment, recipe, None, self.folder, self.processes, self.restarts)
        return own(console)

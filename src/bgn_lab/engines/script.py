"""A job array for Slurm and a plain list of commands, for others to start."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from bgn_lab.engines import engine
from bgn_lab.engines.engine import Ended
from bgn_lab.engines.resources import Resources
from bgn_lab.engines.worker import Job
from bgn_lab.recipe import Recipe
from bgn_lab.system import files
from bgn_lab.system.signals import REQUEUE
from bgn_lab.training.record import RECIPE

FOLDER = "jobs"  # beside the runs: logs, and what clusters know them by
COMMANDS, ARRAY = "commands.txt", "array.sh"


def jobs_of(recipes: Mapping[str, Recipe], folder: Path, resources: Resources) -> dict[str, Job]:
    """Jobs for workers, with the recipes and a folder for logs in place."""
    here, found = folder.resolve(), {}
    for key, recipe in recipes.items():
        if recipe.simulate_workers % resources.processes:
            raise ValueError(
                f"processes={resources.processes} cannot share simulate_workers="
                f"{recipe.simulate_workers} of {key}; expected --simulate-workers"
                f" {resources.processes}, or a multiple of it"
            )
        devices = resources.processes if recipe.device == "cuda" else 0
        log, own = here / FOLDER / f"{key}.log", replace(resources, devices=devices)
        found[key] = Job(here / key, RECIPE, log, Path.cwd(), own)
    files.make_folder(here / FOLDER)
    engine.prepare(recipes, here)
    return found


class Script:
    """Writes commands and starts none of them."""

    note = ""

    def __init__(self, resources: Resources, jobs: int | None = None) -> None:
        self.resources, self.jobs = resources, jobs

    @property
    def pending(self) -> Collection[str]:
        """None: what is written is not ours to wait for."""
        return ()

    def submit(self, recipes: Mapping[str, Recipe], folder: Path) -> None:
        """Write the commands of all runs."""
        if not recipes:
            return
        found = list(jobs_of(recipes, folder, self.resources).values())
        place = folder / FOLDER
        commands, array = place / COMMANDS, place / ARRAY
        files.write(commands, "".join(f"{job.command()}\n" for job in found))
        files.write(array, array_script(found, place.resolve(), self.jobs))
        self.note = (
            f"{len(found)} runs wait to be started: sbatch {shlex.quote(str(array))}, or any of"
            f" the commands in {shlex.quote(str(commands))} on any machine that sees this folder."
            " Then run the same command again."
        )

    def poll(self) -> Iterable[Ended]:
        """Nothing is under way."""
        return ()

    def cancel(self) -> None:
        """Nothing is under way."""


def array_script(found: list[Job], logs: Path, parallel: int | None) -> str:
    """A job array for ``sbatch``: a task for each job, at most ``parallel`` at a time.

    A task that is stopped saves its run, and goes back into the queue. The commands stand in the
    script, which Slurm copies: what is written later does not change tasks that wait.
    """
    resources = found[0].resources
    options = {
        "job-name": "bgn",
        "array": f"0-{len(found) - 1}" + (f"%{parallel}" if parallel else ""),
        "cpus-per-task": str(resources.cores),
        "output": f"{logs}/%A_%a.log",
        "open-mode": "append",
        "signal": "TERM@120",
    }
    if resources.memory is not None:
        options["mem"] = f"{round(1000 * resources.memory)}M"
    if resources.hours is not None:
        options["time"] = str(max(1, round(60 * resources.hours)))
    if resources.partition is not None:
        options["partition"] = resources.partition
    if resources.devices:
        options["gpus-per-node"] = str(resources.devices)
    lines = [f"#SBATCH --{name}={shlex.quote(value)}" for name, value in options.items()]
    return "\n".join([
        "#!/bin/bash",
        *lines,
        "#SBATCH --requeue",
        "# Written by bgn. A task that ends with code 75 was stopped, and saved its run.",
        f"cd {shlex.quote(str(found[0].cwd))} || exit 1",
        "commands=(",
        *(f"  {shlex.quote(job.command())}" for job in found),
        ")",
        f'srun --cpus-per-task={resources.cores} bash -c "${{commands[SLURM_ARRAY_TASK_ID]}}"',
        "code=$?",
        f'[ $code -eq {REQUEUE} ] && scontrol requeue "$SLURM_JOB_ID"',
        "exit $code",
        "",
    ])  # fmt: skip

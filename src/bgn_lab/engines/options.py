"""The engine that a command line asks for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal, get_args

import tyro

from bgn import checks
from bgn_lab.engines.engine import Engine
from bgn_lab.engines.resources import Resources
from bgn_lab.recipe.part import above_zero, positive_ints

Name = Literal["local", "script", "slurm", "ray"]
_UNNAMED = tyro.conf.arg(help_behavior_hint="")  # the help says in words what the default is
_USED_BY = {
    "address": ("ray",),
    "processes": ("script", "slurm", "ray"),
    "cores": ("script", "slurm", "ray"),
    "memory": ("script", "slurm", "ray"),
    "job_hours": ("script", "slurm"),
    "partition": ("script", "slurm"),
}


@dataclass(frozen=True)
class EngineOptions:
    """Where runs run."""

    engine: Name = "local"
    """processes of this machine, a script for Slurm or other starters, a Slurm or a Ray cluster"""
    address: Annotated[str | None, _UNNAMED] = None
    """ray: the head of the cluster, such as 10.0.0.1:6379; by default that of this machine's"""
    processes: int = 1
    """on clusters: processes of each run, which share its workers"""
    cores: Annotated[int | None, _UNNAMED] = None
    """on clusters: cores of each run; by default one per process"""
    memory: Annotated[float | None, _UNNAMED] = None
    """on clusters: gigabytes for each run; by default what the cluster gives"""
    job_hours: Annotated[float | None, _UNNAMED] = None
    """on Slurm: hours of a job, by default 4; a run that takes longer is saved and queued again"""
    partition: Annotated[str | None, _UNNAMED] = None
    """on Slurm: partition of the jobs"""

    def __post_init__(self) -> None:
        checks.one_of("engine", self.engine, get_args(Name))
        for own in fields(self):
            value = getattr(self, own.name)
            if value != own.default and self.engine not in _USED_BY.get(own.name, get_args(Name)):
                accepted = " or ".join(_USED_BY[own.name])
                raise ValueError(
                    f"{own.name}={value!r} has no effect with engine={self.engine!r}; expected"
                    f" engine {accepted}"
                )
        positive_ints(self, "processes", "cores")
        for name in ("memory", "job_hours"):
            if getattr(self, name) is not None:
                above_zero(self, name)
        self._resources()

    def _resources(self) -> Resources:
        cores = self.processes if self.cores is None else self.cores
        return Resources(
            self.processes, cores, self.memory, hours=self.job_hours, partition=self.partition
        )

    def make(self, jobs: int | None = None) -> Engine:
        """The engine, for at most ``jobs`` runs at a time; by default as many as it has room for.

        >>> EngineOptions().make(jobs=2).jobs
        2
        """
        if jobs is not None:
            checks.positive_int("jobs", jobs)
        if self.engine == "local":
            from bgn_lab.engines.local import Local

            return Local(jobs)
        if self.engine == "script":
            from bgn_lab.engines.script import Script

            return Script(self._resources(), jobs)
        if self.engine == "slurm":
            from bgn_lab.engines.slurm import Slurm

            return Slurm(self._resources(), jobs)
        from bgn_lab.engines.ray import Ray

        return Ray(self._resources(), jobs, self.address)

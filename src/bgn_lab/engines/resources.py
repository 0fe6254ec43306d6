"""What one run may use on a cluster."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """Cores, memory, devices and time of one run, over all of its processes.

    >>> Resources(processes=2, cores=4).threads
    2
    """

    processes: int = 1
    cores: int = 1
    memory: float | None = None
    """Gigabytes; None leaves it to the cluster."""
    devices: int = 0
    hours: float | None = None
    """After which Slurm stops a run, at a checkpoint, and puts it back into its queue."""
    partition: str | None = None

    def __post_init__(self) -> None:
        if self.cores % self.processes:
            raise ValueError(
                f"cores={self.cores} cannot be spread evenly over {self.processes} processes;"
                f" expected a multiple of {self.processes}"
            )

    @property
    def threads(self) -> int:
        """Threads of each process."""
        return self.cores // self.processes

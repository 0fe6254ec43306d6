"""Runs as jobs of a Slurm cluster, submitted by submitit: an array for many, a job for one.

What Slurm knows is asked for with ``squeue``, which needs no accounting; what came of a job stands
in a file beside its log. Pickles that submitit writes are read on the machine that runs the job.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bgn_lab.engines.engine import Ended
from bgn_lab.engines.resources import Resources
from bgn_lab.engines.script import FOLDER, jobs_of
from bgn_lab.engines.worker import Attempt, Job
from bgn_lab.recipe import Recipe
from bgn_lab.system import files, signals
from bgn_lab.system.launch import PATIENCE

MISSING = "engine='slurm' needs the package submitit: pip install 'batch-group-norm[cluster]'"
IDS = "slurm.json"  # what Slurm calls the runs of a folder
EVERY = 2.0  # seconds between two questions to Slurm
GRACE = 120  # seconds between the signal that a job's time is over and its end
HOURS = 4.0  # of a job, unless the user says otherwise; submitit would say five minutes


@dataclass
class Submission:
    """What submitit calls on the machine of a job."""

    job: Job
    record: Path
    attempt: Attempt | None = field(default=None, repr=False)

    def __call__(self) -> None:
        """Run the job, and write down what came of it."""
        self.attempt = attempt = Attempt(self.job)
        signal.signal(signal.SIGTERM, lambda *_: attempt.ask())  # submitit ignores it
        code, reason = attempt.run()
        files.write_json(self.record, {"code": code, "reason": reason})

    def checkpoint(self) -> Any:
        """Called when the time of the job is over: save the run, and go back into the queue."""
        from submitit.helpers import DelayedSubmission

        if self.attempt is not None:
            self.attempt.stop()
        return DelayedSubmission(Submission(self.job, self.record))


class Slurm:
    """Jobs of a Slurm cluster, at most ``jobs`` of an array at a time.

    Jobs outlive the process that submitted them; the same command finds them again. ``cluster``
    may be "local": then submitit starts all runs at once, as processes of this machine.
    """

    note = ""

    def __init__(
        self, resources: Resources, jobs: int | None = None, cluster: str = "slurm"
    ) -> None:
        try:
            import submitit
        except ModuleNotFoundError:
            raise ValueError(MISSING) from None
        self.resources, self.jobs, self.cluster = resources, jobs, cluster
        self._submitit: Any = submitit
        self._ids: dict[str, str] = {}
        self._records: dict[str, Path] = {}
        self._folders: dict[str, Path] = {}
        self._jobs: dict[str, Any] = {}
        self._asked = 0.0

    @property
    def pending(self) -> Collection[str]:
        """Names of the runs that are not over."""
        return self._ids

    def submit(self, recipes: Mapping[str, Recipe], folder: Path) -> None:
        """Put runs into Slurm's queue, but for those that are there from before."""
        if not recipes:
            return
        executor = self._executor(folder)
        wanted = jobs_of(recipes, folder, self.resources)
        place = folder.resolve() / FOLDER
        self._records |= {key: place / f"{key}.json" for key in wanted}
        before, active = _read(place / IDS), self._active()
        known = {key: before[key] for key in wanted if active and before.get(key) in active}
        new = {key: job for key, job in wanted.items() if key not in known}
        for key in new:
            self._records[key].unlink(missing_ok=True)
        # a signal comes after it is noted what the jobs are called
        with signals.defer_signals():
            found: list[Any] = []
            if new:
                executor.update_parameters(**self._parameters(next(iter(new.values()))))
                with executor.batch():
                    for key, job in new.items():
                        found.append(executor.submit(Submission(job, self._records[key])))
            self._folders |= {key: job.folder for key, job in wanted.items()}
            self._jobs |= dict(zip(new, found, strict=True))
            self._ids |= known | {key: str(self._jobs[key].job_id) for key in new}
            if self.cluster == "slurm":
                files.write_json(place / IDS, {**before, **self._ids})

    def _executor(self, folder: Path) -> Any:
        place = folder.resolve() / FOLDER / "submitit"
        try:
            return self._submitit.AutoExecutor(
                place, cluster=self.cluster, slurm_max_num_timeout=10**6
            )
        except RuntimeError as error:
            raise ValueError(
                f"engine='slurm' needs a machine that submits to Slurm ({error}); expected sbatch,"
                " srun and squeue on the PATH"
            ) from None

    def _parameters(self, job: Job) -> dict[str, Any]:
        own = job.resources
        found: dict[str, Any] = {
            "name": "bgn",
            "cpus_per_task": own.cores,
            "timeout_min": max(1, round(60 * (own.hours or HOURS))),
            # srun does not read the option of sbatch any more
            "slurm_srun_args": [f"--cpus-per-task={own.cores}"],
            "slurm_signal_delay_s": GRACE,
        }
        if own.memory is not None:
            found["mem_gb"] = own.memory
        if own.devices:
            found["gpus_per_node"] = own.devices
        if own.partition is not None:
            found["slurm_partition"] = own.partition
        found["slurm_array_parallelism"] = self.jobs or 1000
        return found

    def _active(self) -> set[str] | None:
        """Names of the jobs that Slurm has not done with; None if it does not say."""
        if self.cluster != "slurm":
            return {str(job.job_id) for job in self._jobs.values() if not job.done()}
        words = ["squeue", "--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}"]
        try:
            asked = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError):  # busy, or begins anew
            return None
        return set(asked.stdout.split())

    def poll(self) -> Iterable[Ended]:
        """Jobs that ended."""
        time.sleep(0.25)
        if time.monotonic() - self._asked < EVERY:
            return []
        self._asked, active = time.monotonic(), self._active()
        if active is None:
            return []
        over = [key for key, job in self._ids.items() if job not in active]
        return [self._ended(key) for key in over]

    def _ended(self, key: str) -> Ended:
        del self._ids[key]
        try:
            found = json.loads(self._records[key].read_text())
            return Ended(key, int(found["code"]), str(found["reason"]))
        except (OSError, ValueError, KeyError, TypeError):
            return Ended(key, None, "its job ended without a word: killed, or its machine is gone")

    def cancel(self) -> None:
        """Stop the jobs, and wait until their runs are saved."""
        ids, self._ids = self._ids, {}
        if not ids:
            return
        with signals.defer_signals():
            if self.cluster != "slurm":
                for key in ids:
                    # its cancel() sends SIGINT, which is ignored in the background of a script
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(ids[key]), signal.SIGTERM)
                self._wait(lambda: self._gone(ids), PATIENCE)
                # who ended in a hurry may have left its run to save itself
                self._wait(lambda: all(files.is_free(self._folders[key]) for key in ids), PATIENCE)
                return
            for words, seconds in (
                (["--state=PENDING"], 0),
                (["--signal=TERM"], PATIENCE),  # they save their runs
                ([], 60),
            ):
                subprocess.run(["scancel", *words, *ids.values()], check=False, capture_output=True)
                self._wait(lambda: self._gone(ids), seconds)

    def _gone(self, ids: Mapping[str, str]) -> bool:
        active = self._active()
        return active is not None and not active & set(ids.values())

    def _wait(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.5)


def _read(path: Path) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, AttributeError):
        return {}

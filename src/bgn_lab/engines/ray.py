"""Runs as tasks of a Ray cluster: one remote call for each, which starts its process.

Ray finds a machine with room and says when a machine is gone. All else is in the run's folder,
which all machines must see. Ray's own retries are off: :func:`bgn_lab.engines.engine.run` decides.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from bgn_lab.engines.engine import Broken, Ended
from bgn_lab.engines.resources import Resources
from bgn_lab.engines.script import jobs_of
from bgn_lab.engines.worker import Attempt, Job
from bgn_lab.recipe import Recipe
from bgn_lab.system import signals
from bgn_lab.system.launch import PATIENCE

MISSING = "engine='ray' needs the package ray: pip install 'batch-group-norm[cluster]'"


def work(job: Job) -> tuple[int, str]:
    """Run a job where Ray has put it: the exit code, and what it said last."""
    return Attempt(job).run()


class Ray:
    """Tasks of a Ray cluster, at most ``jobs`` at a time.

    This machine must be one of the cluster. If this process dies, Ray ends its tasks; the runs save
    themselves, and the same command resumes them.
    """

    note = ""

    def __init__(
        self, resources: Resources, jobs: int | None = None, address: str | None = None
    ) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise ValueError(MISSING) from None
        self.resources, self.jobs, self.address = resources, jobs, address
        self._ray: Any = ray
        self._waiting: dict[str, Job] = {}
        self._running: dict[Any, str] = {}

    @property
    def pending(self) -> Collection[str]:
        """Names of the runs that are not over."""
        return [*self._running.values(), *self._waiting]

    def submit(self, recipes: Mapping[str, Recipe], folder: Path) -> None:
        """Give runs to the cluster."""
        if not recipes:
            return
        if not self._ray.is_initialized():
            self._connect()
        self._waiting |= jobs_of(recipes, folder, self.resources)
        self._start()

    def _connect(self) -> None:
        if self.address is not None:
            _check_reachable(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray replaces handlers of signals by its own
        before = {number: signal.getsignal(number) for number in signals.SIGNALS}
        try:
            self._ray.init(self.address or "auto", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "this machine" if self.address is None else f"address={self.address!r}"
            raise _unreachable(where, str(error)) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _start(self) -> None:
        while self._waiting and (self.jobs is None or len(self._running) < self.jobs):
            key = next(iter(self._waiting))
            job = self._waiting.pop(key)
            own = job.resources
            task = self._ray.remote(
                num_cpus=own.cores,
                num_gpus=own.devices or None,
                memory=None if own.memory is None else int(1e9 * own.memory),
                max_retries=0,
            )(work)
            self._running[task.options(name=f"bgn {key}").remote(job)] = key

    def poll(self) -> Iterable[Ended]:
        """Runs that ended."""
        self._start()
        over, _ = self._ray.wait(list(self._running), num_returns=1, timeout=0.25)
        found = []
        for task in over:
            key = self._running.pop(task)
            try:
                code, reason = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                found.append(Ended(key, None, _lost(error)))
            else:
                found.append(Ended(key, code, reason))
        if not self._ray.is_initialized():
            raise Broken("the Ray cluster is gone")
        return found

    def cancel(self) -> None:
        """Stop the tasks, wait until their runs are saved, and leave the cluster."""
        tasks, self._running, self._waiting = list(self._running), {}, {}
        if not self._ray.is_initialized():
            return
        try:
            with signals.defer_signals():
                for task in tasks:
                    self._ray.cancel(task, force=False)
                if tasks:
                    self._ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE)
        finally:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray itself would try for a minute."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"address={address!r} is not accepted; expected HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(f"address={address!r}", str(error)) from None


def _unreachable(where: str, why: str) -> ValueError:
    return ValueError(
        f"no Ray cluster was reached at {where} ({why.splitlines()[0]}); begin one with `ray start"
        " --head`, and join it with `ray start --address HEAD:6379`, on this machine too"
    )


def _lost(error: Exception) -> str:
    """
    >>> _lost(RuntimeError("the worker died\\nlong story"))
    'lost (RuntimeError: the worker died)'
    """
    said = (str(error).strip().splitlines() or [""])[0].partition(". ")[0]
    return f"lost ({type(error).__name__}: {said})"

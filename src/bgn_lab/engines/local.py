"""Many runs in processes of this machine, each in a folder of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from bgn import checks
from bgn_lab.engines.engine import Broken, Ended
from bgn_lab.recipe import Recipe
from bgn_lab.system import cores, memory, signals
from bgn_lab.system.launch import REFUSED
from bgn_lab.system.signals import Interrupted

# what a run on small images takes, roughly: torch itself, data, a network and its activations
RUN_MEMORY = 1e9


def jobs_for(wanted: int | None, device: str) -> int:
    """Number of runs side by side: as wanted, else as many as the machine has room for.

    That is one per core on the CPU and one per device elsewhere, and no more than memory holds.
    """
    if wanted is not None:
        checks.positive_int("jobs", wanted)
        return wanted
    places = cores.count() if device == "cpu" else max(1, len(devices(device)))
    available = memory.available_memory()
    return places if available is None else max(1, min(places, int(available / RUN_MEMORY)))


def devices(device: str) -> list[str]:
    """Names of the devices that runs on ``device`` can be spread over; none for the CPU.

    They are those that CUDA_VISIBLE_DEVICES admits, as it names them.
    """
    if device != "cuda":
        return []
    import torch

    count = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(count))) if visible is None else visible.split(",")
    return names[:count]


def _set_up(threads: int, places: Any) -> None:
    """Prepare a worker process: its share of cores and devices, and no life after its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent passes it on
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    if (place := places.get()) is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = place  # before CUDA is used
    import torch

    torch.set_num_threads(threads)


def _work(recipe: Recipe, folder: Path) -> None:
    """Run a recipe in a worker process. SIGTERM and SIGHUP save the run and end the process."""
    from bgn_lab import experiments

    try:
        with signals.handle_signals():
            experiments.run(recipe, folder)
    except Interrupted as stop:
        os._exit(stop.code)  # not to the next run; the parent knows, or learns that it is gone


class Local:
    """Processes of this machine, at most ``jobs`` runs at a time, by default :func:`jobs_for`.

    Ctrl-C while runs are stopped kills them. A run that fails is over like others. Where a process
    is killed, it is not known by what, or which run was its: the others stop at a checkpoint.
    """

    note = ""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs
        self._pool: ProcessPoolExecutor | None = None
        self._waiting: dict[Future[None], str] = {}
        self._others: set[BaseProcess] = set()  # children that are not ours

    @property
    def pending(self) -> Collection[str]:
        """Names of the runs that are not over."""
        return self._waiting.values()

    def submit(self, recipes: Mapping[str, Recipe], folder: Path) -> None:
        """Put runs in the queue."""
        if not recipes:
            return
        pool = self._pool or self._start(next(iter(recipes.values())).device)
        # processes inherit that, and ignore Ctrl-C from their first moment
        with signals.ignore_signals(signal.SIGINT):
            for key, recipe in recipes.items():
                self._waiting[pool.submit(_work, recipe, folder / key)] = key

    def _start(self, device: str) -> ProcessPoolExecutor:
        self.jobs = jobs_for(self.jobs, device)
        names = devices(device)
        self._others = set(multiprocessing.active_children())
        if hasattr(signal, "SIGHUP"):
            # Python's process that removes semaphores would die of it before the others are done
            with signals.ignore_signals(signal.SIGHUP):
                resource_tracker.ensure_running()
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
        places = context.SimpleQueue()
        for number in range(self.jobs):
            places.put(names[number % len(names)] if names else None)
        shared = cores.threads(self.jobs), places
        self._pool = ProcessPoolExecutor(self.jobs, context, _set_up, shared)
        return self._pool

    def poll(self) -> Iterable[Ended]:
        """Runs that ended; those that ended before a process was killed come first."""
        over = wait(self._waiting, timeout=0.25, return_when=FIRST_COMPLETED).done
        broken = {future for future in over if isinstance(future.exception(), BrokenProcessPool)}
        if broken and broken == over:
            hint = ": fewer --jobs need less" if self.jobs != 1 else ""
            raise Broken(f"a process was killed, perhaps for lack of memory{hint}")
        found = []
        for future in over - broken:
            key, error = self._waiting.pop(future), future.exception()
            failed = "" if error is None else f"{type(error).__name__}: {error}"
            found.append(Ended(key, REFUSED if failed else 0, failed))
        return found

    def cancel(self) -> None:
        """End the worker processes: they save their runs first, unless Ctrl-C comes again."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if not self._waiting:
            pool.shutdown(wait=True)
            return
        self._waiting = {}
        workers = set(multiprocessing.active_children()) - self._others
        try:
            with signals.defer_signals():
                for worker in workers:
                    worker.terminate()
                pool.shutdown(wait=True, cancel_futures=True)
        except Interrupted:  # they are saved
            raise
        except BaseException:
            for worker in workers:
                worker.kill()
            raise

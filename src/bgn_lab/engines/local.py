"""Many runs in processes of this machine, each in a folder of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from bgn import checks
from bgn_lab.recipe import Recipe
from bgn_lab.system import cores, signals
from bgn_lab.system.signals import Interrupted
from bgn_lab.training.result import Result


class Broken(Exception):
    """A worker process was killed: it is not known by what, or which run was its."""

    def __init__(self, jobs: int) -> None:
        hint = ": fewer --jobs need less" if jobs > 1 else ""
        super().__init__(f"a process was killed, perhaps for lack of memory{hint}")


@dataclass(frozen=True)
class Outcome:
    """A run that is over: its result, or why there is none."""

    key: str
    recipe: Recipe
    result: Result | None
    error: str = ""


def jobs_for(wanted: int | None, device: str) -> int:
    """Number of runs side by side: as wanted, else one per core on the CPU, one elsewhere."""
    if wanted is None:
        return cores.count() if device == "cpu" else 1
    checks.positive_int("jobs", wanted)
    return wanted


def _set_up(threads: int) -> None:
    """Prepare a worker process: its share of the cores, and no life after its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent passes it on
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _work(recipe: Recipe, folder: Path) -> Result:
    """Run a recipe in a worker process. SIGTERM and SIGHUP save the run and end the process."""
    from bgn_lab import experiments

    try:
        with signals.handle_signals():
            return experiments.run(recipe, folder)
    except Interrupted as stop:
        os._exit(stop.code)  # not to the next run; the parent knows, or learns that it is gone


def run(
    recipes: Mapping[str, Recipe],
    folder: Path,
    jobs: int,
    on_outcome: Callable[[Outcome], None],
    on_wait: Callable[[], None],
) -> None:
    """Run every recipe in ``folder/key``, at most ``jobs`` at a time, in the order given.

    ``on_outcome`` is called for each run that is over, ``on_wait`` about four times a second. An
    exception, such as that of a signal, stops the runs at a checkpoint and is raised again; the
    same call resumes them. A second Ctrl-C meanwhile kills them. A run that fails is an outcome
    like others; where a process is killed, the others stop at a checkpoint and :class:`Broken` is
    raised.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    waiting: dict[Future[Result], tuple[str, Recipe]] = {}
    others = set(multiprocessing.active_children())
    if hasattr(signal, "SIGHUP"):
        # Python's process that removes semaphores would die of it before the others are done
        with signals.ignore_signals(signal.SIGHUP):
            resource_tracker.ensure_running()
    with ProcessPoolExecutor(jobs, context, _set_up, (cores.threads(jobs),)) as pool:
        try:
            # processes inherit that, and ignore Ctrl-C from their first moment
            with signals.ignore_signals(signal.SIGINT):
                for key, recipe in recipes.items():
                    waiting[pool.submit(_work, recipe, folder / key)] = key, recipe
            while waiting:
                over = wait(waiting, timeout=0.25, return_when=FIRST_COMPLETED).done
                # runs that ended before a process was killed come first
                for future in sorted(
                    over, key=lambda future: isinstance(future.exception(), BrokenProcessPool)
                ):
                    key, recipe = waiting.pop(future)
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise Broken(jobs)
                    result = None if error is not None else future.result()
                    reason = "" if error is None else f"{type(error).__name__}: {error}"
                    on_outcome(Outcome(key, recipe, result, reason))
                on_wait()
        except BaseException:
            _stop(pool, set(multiprocessing.active_children()) - others)
            raise


def _stop(pool: ProcessPoolExecutor, workers: set[BaseProcess]) -> None:
    """End the worker processes: they save their runs first, unless Ctrl-C comes again."""
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

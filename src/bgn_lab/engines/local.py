"""Many runs: side by side in processes of their own, each in its own folder; what is done stays done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from bgn import checks
from bgn_lab.recipe import Recipe
from bgn_lab.system import cores
from bgn_lab.system.signals import ignore_signals

_stop: Event | None = None  # of a worker process


class Broken(Exception):
    """A worker process was killed: nobody can tell by whom, and what it was about."""


@dataclass(frozen=True)
class Outcome:
    """A run that is over: its result, or why there is none."""

    key: str
    recipe: Recipe
    result: dict[str, Any] | None
    error: str = ""


def _set_up(stop: Event, threads: int) -> None:
    """In a worker process: no reaction of its own to Ctrl-C, no life after its parent, its share of the cores."""
    global _stop
    _stop = stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def jobs_for(wanted: int | None, device: str) -> int:
    """Runs side by side: as wanted; otherwise one per core on the CPU, one on other devices."""
    if wanted is None:
        return cores.count() if device == "cpu" else 1
    checks.positive_int("jobs", wanted)
    return wanted


def _work(recipe: Recipe, folder: Path) -> dict[str, Any]:
    from bgn_lab import experiments
    from bgn_lab.system.signals import Interrupted
    from bgn_lab.training.run import Watcher

    def look(epoch: int = 0, step: int = 0) -> None:  # noqa: ARG001
        if _stop is not None and _stop.is_set():
            raise Interrupted

    look()
    return experiments.run(recipe, folder, Watcher(step=look))


def run(
    recipes: Mapping[str, Recipe],
    folder: Path,
    jobs: int,
    on_outcome: Callable[[Outcome], None],
    on_wait: Callable[[], None],
) -> None:
    """Run every recipe in ``folder/key``, at most ``jobs`` at a time, in the order given.

    ``on_outcome`` hears of each that is over, ``on_wait`` is called about four times a second. Ctrl-C stops the runs at their
    last checkpoints and is raised again; the same call goes on from there. A run that fails is reported and the others go on;
    where a process is killed, :class:`Broken` is raised.
    """
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    stop = context.Event()
    threads = max(1, cores.count() // jobs)
    waiting: dict[Future[dict[str, Any]], tuple[str, Recipe]] = {}
    with ProcessPoolExecutor(jobs, context, _set_up, (stop, threads)) as pool:
        try:
            with ignore_signals(signal.SIGINT):  # processes inherit that from their first moment
                for key, recipe in recipes.items():
                    waiting[pool.submit(_work, recipe, folder / key)] = key, recipe
            while waiting:
                over = wait(waiting, timeout=0.25, return_when=FIRST_COMPLETED).done
                for future in sorted(
                    over, key=lambda future: isinstance(future.exception(), BrokenProcessPool)
                ):
                    key, recipe = waiting.pop(future)
                    error = future.exception()
                    if isinstance(error, BrokenProcessPool):
                        raise error
                    result = None if error is not None else future.result()
                    on_outcome(
                        Outcome(
                            key,
                            recipe,
                            result,
                            "" if error is None else f"{type(error).__name__}: {error}",
                        )
                    )
                on_wait()
        except BrokenProcessPool:
            raise Broken from None
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise

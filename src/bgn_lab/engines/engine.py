"""What an engine is, and how runs are seen through with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bgn_lab.engines.worker import INVISIBLE
from bgn_lab.recipe import Recipe
from bgn_lab.system.launch import REFUSED
from bgn_lab.training import checkpoint
from bgn_lab.training.record import RECIPE, RESULT, Record
from bgn_lab.training.result import Result
from bgn_lab.training.run import is_finished

TRIES = 3  # attempts of a run without a later checkpoint


@dataclass(frozen=True)
class Ended:
    """An attempt at a run that is over: the exit code of its process, and what it said last.

    The code is None where nobody knows it: the machine is gone, or the process of a worker.
    """

    key: str
    code: int | None
    reason: str = ""


@dataclass(frozen=True)
class Outcome:
    """A run that is over: its result, or why there is none."""

    key: str
    recipe: Recipe
    result: Result | None
    error: str = ""


class Broken(Exception):
    """An engine cannot go on; the message says why, and perhaps what helps."""


class NotStarted(Exception):
    """Runs wait for somebody to start them; the message says how."""


class Engine(Protocol):
    """Runs recipes somewhere, each in a folder of its own that both sides see."""

    jobs: int | None
    """At most so many runs at a time; None for as many as there is room for."""
    note: str
    """What the user has to do for runs that it does not start; empty where it starts all."""

    @property
    def pending(self) -> Collection[str]:
        """Names of the runs that were submitted and are not over."""
        ...

    def submit(self, recipes: Mapping[str, Recipe], folder: Path) -> None:
        """Begin or resume each recipe in ``folder/key``, in the order given.

        It returns at once: the runs wait until there is room for them.
        """
        ...

    def poll(self) -> Iterable[Ended]:
        """Attempts that are over since the last call; waits for one, a quarter of a second at most.

        Raises :class:`Broken` if the engine cannot go on.
        """
        ...

    def cancel(self) -> None:
        """Stop what is pending at a checkpoint and wait for it; free what the engine holds.

        The engine can be used again.
        """
        ...


def run(
    engine: Engine,
    recipes: Mapping[str, Recipe],
    folder: Path,
    on_outcome: Callable[[Outcome], None],
    on_wait: Callable[[], None] = lambda: None,
    on_retry: Callable[[str], None] = lambda line: None,  # noqa: ARG005
) -> None:
    """See every recipe through in ``folder/key``, but for those that are finished.

    ``on_outcome`` is called for each run that is over, failed ones included, ``on_wait`` about four
    times a second, ``on_retry`` with a line when a run begins again. An exception, such as that of
    a signal, stops the runs at a checkpoint and is raised again; the same call resumes them.

    A run whose process died, or whose machine did, resumes from its checkpoint. It is given up
    after three attempts that brought no later checkpoint. Bad input is not tried again.
    """
    tries: Counter[str] = Counter()
    reached = {key: _reached(folder / key) for key in recipes}

    def finished(key: str) -> Outcome:
        return Outcome(key, recipes[key], Record(folder / key, recipes[key]).result())

    left = {key: recipe for key, recipe in recipes.items() if not is_finished(folder / key)}
    for key in recipes:
        if key not in left:
            on_outcome(finished(key))
    try:
        engine.submit(left, folder)
        while engine.pending:
            for ended in engine.poll():
                key, recipe = ended.key, recipes[ended.key]
                if ended.code == INVISIBLE:
                    raise ValueError(ended.reason)
                if ended.code == 0 and (folder / key / RESULT).exists():
                    on_outcome(finished(key))
                    continue
                now = _reached(folder / key)
                tries[key] = 1 if now != reached[key] else tries[key] + 1
                reached[key] = now
                reason = ended.reason or f"its process ended with code {ended.code}"
                if ended.code == REFUSED or tries[key] == TRIES:
                    after = "" if ended.code == REFUSED else f" ({TRIES} attempts)"
                    on_outcome(Outcome(key, recipe, None, reason + after))
                    continue
                on_retry(f"{key}: {reason}; it resumes from its last checkpoint")
                engine.submit({key: recipe}, folder)
            on_wait()
    finally:
        engine.cancel()


def _reached(folder: Path) -> int:
    """Something that changes whenever a run gets further."""
    path = folder / checkpoint.NAME
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def prepare(recipes: Mapping[str, Recipe], folder: Path) -> None:
    """Write each recipe into the folder of its run, where a worker elsewhere reads it."""
    for key, recipe in recipes.items():
        if not (folder / key / RECIPE).exists():
            with Record(folder / key, recipe):
                pass

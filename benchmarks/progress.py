"""How far a run is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

EVERY = 10.0  # seconds between lines


class Meter:
    """Counts work that is done, in any unit, and estimates the time that is left."""

    def __init__(self, console: Console, total: float) -> None:
        self.console, self.total, self.done = console, total, 0.0
        self.begin = self.told = time.monotonic()
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = (
                BarColumn(),
                TaskProgressColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.description}"),
            )
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("", total=total)

    def __enter__(self) -> Meter:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def start(self, what: str) -> None:
        """Name what runs next."""
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update(self.task, description=what)
        elif now - self.told >= EVERY and self.done:
            self.told = now
            left = (now - self.begin) * (self.total / self.done - 1)
            self.console.print(f"{self.done / self.total:.0%}, {left:.0f} s left: {what}")

    def advance(self, work: float) -> None:
        """Count work that is done."""
        self.done += work
        if self.bar is not None:
            self.bar.advance(self.task, work)

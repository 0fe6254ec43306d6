"""Progress of many runs: accuracies so far, runs done and time left."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn

from bgn_lab import norms
from bgn_lab.engines.engine import Outcome
from bgn_lab.recipe import Recipe
from bgn_lab.report import text
from bgn_lab.report.collect import Run
from bgn_lab.report.comparison import compare, named

PATIENCE = 20  # times as long as tables take to be made, they stay


def run_name(recipe: Recipe) -> str:
    """A run in words."""
    return f"{norms.label(recipe)}, {named(recipe.place)}, seed {recipe.seed}"


class RunsProgress:
    """On a terminal accuracies so far, runs done and time left, live; elsewhere a line per run."""

    def __init__(self, console: Console, recipes: dict[str, Recipe], done: dict[str, Run]) -> None:
        self.console, self.recipes, self.done = console, recipes, done
        # of an epoch, roughly: short steps are mostly overhead
        self.cost = {key: 1 + 4 / recipe.batch_size for key, recipe in recipes.items()}
        self.total = sum(self.cost.values())
        self.past = self.before = sum(self.cost[key] for key in done)
        self.begin = time.perf_counter()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.task = self.bar.add_task("", total=self.total, left="")
        self.stack = ExitStack()
        self.live: Live | None = None
        self.tables: list[text.Terminal] = []
        self.drawn = self.took = 0.0  # when the tables were made, and how long that took
        self.shown = -1  # how many runs were done then

    def __enter__(self) -> RunsProgress:
        if self.console.is_terminal and len(self.done) < len(self.recipes):
            self.live = self.stack.enter_context(
                Live(console=self.console, refresh_per_second=4, transient=True)
            )
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def left(self) -> str:
        """Time left, in words."""
        fresh = self.past - self.before
        if not fresh:
            return "time left: not known yet"
        seconds = (time.perf_counter() - self.begin) * (self.total - self.past) / fresh
        return f"about {seconds / 60:.1f} min left"

    def over(self, outcome: Outcome) -> None:
        """Show a run that is over."""
        self.past += self.cost[outcome.key]
        if self.live is None:
            r, result = outcome.recipe, outcome.result
            key = r.measures[0].key
            if result is None:
                outcome_line = outcome.error
            else:
                score = result.status if result.reason else f"{result.measure(key):.1%}"
                outcome_line = f"{score} in {result.seconds:.0f} s"
            count = f"[{len(self.done)}/{len(self.recipes)}]"
            line = f"{count} {run_name(r)}: {outcome_line}; {self.left()}"
            self.console.print(line, highlight=False, markup=False)

    def say(self, line: str) -> None:
        """A line above the table."""
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def refresh(self) -> None:
        """Draw the table again."""
        if self.live is not None:
            self.bar.update(
                self.task,
                completed=self.past,
                description=f"{len(self.done)}/{len(self.recipes)} runs",
                left=self.left(),
            )
            if self._is_stale():
                self._draw()
            # the bar first: a low terminal cuts off the end
            self.live.update(Group(self.bar, *self.tables))

    def _is_stale(self) -> bool:
        """Whether to make the tables anew: runs are over, and of the time little goes into that."""
        waited = time.perf_counter() - self.drawn
        return len(self.done) != self.shown and waited >= PATIENCE * self.took

    def _draw(self) -> None:
        begin, self.shown = time.perf_counter(), len(self.done)
        waiting = [
            Run(Path(key), recipe, {}, (), None)
            for key, recipe in self.recipes.items()
            if key not in self.done
        ]
        found = compare([*self.done.values(), *waiting])
        self.tables = [text.terminal(one) for one in found]
        self.drawn = time.perf_counter()
        self.took = self.drawn - begin

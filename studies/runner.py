"""Runs of a study: side by side, resumable, with the time left."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

from bgn_lab import norms
from bgn_lab.commands import parsing
from bgn_lab.engines import engine
from bgn_lab.engines.engine import Engine, Outcome
from bgn_lab.engines.options import EngineOptions
from bgn_lab.recipe import Recipe
from bgn_lab.training.record import RESULT
from studies.ledger import Ledger


def folder_name(recipe: Recipe) -> str:
    """Name of a run's folder. Data of one's own counts by its path, so that no study reads it to
    find its runs; a run whose data changed is refused."""
    return recipe.key("" if recipe.root is None else str(recipe.root))


def cost(recipe: Recipe) -> float:
    """Rough cost of a run: its images, where small batches cost more for each."""
    return recipe.epochs * (1 + 6 / recipe.batch_size)


def run(
    recipes: Iterable[Recipe],
    folder: Path,
    where: Engine,
    hours: float,
    ledger: Ledger | None = None,
) -> bool:
    """Run recipes that are not done yet, in the order given, for at most ``hours``.

    Returns whether that was enough. Test accuracies are not shown. Runs that are in ``ledger`` are
    done, and it is given every run that ends.
    """
    wanted = {folder_name(recipe): recipe for recipe in recipes}
    left = {}
    for name, recipe in wanted.items():
        if ledger is not None and recipe in ledger:
            continue
        if not (folder / name / RESULT).exists():
            left[name] = recipe
        elif ledger is not None:
            ledger.add(folder / name)
    total, past, begin = sum(map(cost, left.values())), 0.0, time.monotonic()
    print(f"{len(wanted) - len(left)} of {len(wanted)} runs are done", flush=True)

    def hear(outcome: Outcome) -> None:
        nonlocal past
        past += cost(outcome.recipe)
        if ledger is not None and outcome.result is not None:
            ledger.add(folder / outcome.key)
        minutes = (time.monotonic() - begin) / 60
        r, result = outcome.recipe, outcome.result
        said = (
            outcome.error
            if result is None
            else f"validation {result.measure(r.curves[0].key) or 0:.1%}, {result.seconds:.0f} s"
        )
        place = r.data if r.root is None else r.root.stem
        print(
            f"{place} {r.model} {norms.label(r)}, batch {r.batch_size}, lr {r.lr}, "
            f"{r.epochs} epochs, seed {r.seed}: {said}; "
            f"{minutes * (total - past) / past:.0f} min left",
            flush=True,
        )

    def watch() -> None:
        if time.monotonic() - begin > 3600 * hours:
            raise KeyboardInterrupt

    try:
        engine.run(where, left, folder, hear, watch, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("stopped; run the same command to resume", flush=True)
        return False
    if where.note:
        print(where.note, flush=True)
    return not where.note


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of a study that say where its runs run, as those of ``bgn compare``."""
    parser.add_argument("--jobs", type=int, help="runs side by side (default: 2 on this machine)")
    for own in parsing.options(EngineOptions):
        kind = {"whole": int, "number": float}.get(own.kind, str)
        usual = getattr(EngineOptions(), own.field)
        parser.add_argument(
            *own.names, type=kind, default=usual, choices=own.values or None, help=own.help
        )


def engine_of(chosen: argparse.Namespace) -> Engine:
    """The engine that these options ask for."""
    found = EngineOptions(**{own.name: getattr(chosen, own.name) for own in fields(EngineOptions)})
    usual = 2 if found.engine == "local" else None
    return found.make(usual if chosen.jobs is None else chosen.jobs)


def run_all(
    wanted: Callable[[], Iterable[Recipe]], folder: Path, where: Engine, end: float, ledger: Ledger
) -> bool:
    """Run what a stage wants until it wants no more: what is done decides what it wants next.

    ``end`` is a time of ``time.monotonic()``. Returns whether all is done.
    """
    while left := [recipe for recipe in wanted() if recipe not in ledger]:
        hours = (end - time.monotonic()) / 3600
        if hours <= 0 or not run(left, folder, where, hours, ledger):
            return False
        if all(recipe not in ledger for recipe in left):
            print("no run ended; the messages above say why", flush=True)
            return False
    return True

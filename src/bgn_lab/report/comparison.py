"""From runs to comparisons: which runs stand in one table, in one row, in one cell.

Runs of one cell differ in the seed, rows of a table in the normalizer and its groups, columns in
the batch size or the task. A difference in anything else that results depend on
(:meth:`Recipe.settings`) makes another table. Two settings of adaptation need more thought, because
they may differ within one experiment: ``trust``, whose default depends on the task, and
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from bgn_lab import norms, paper, partners
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.recipe import Measure, Recipe
from bgn_lab.report.cells import INCOMPLETE, cell
from bgn_lab.report.collect import Run
from bgn_lab.report.grid import MEAN, Column, Comparison, data_name, named
from bgn_lab.system.printable import shorten

__all__ = ["Comparison", "compare", "compared", "named"]

IN_TITLE = ("experiment", "data", "model", "width", "epochs", "simulate_workers")
BY_TASK = "as released, by task"  # trust that is the default of each task
BySeed = dict[tuple[str, int | str], dict[int, Run]]


def compared(recipe: Recipe) -> tuple[str, ...]:
    """Fields of a recipe that rows, columns and seeds differ in."""
    place = "batch_size" if isinstance(recipe.place, int) else "task"
    return ("norm", *partners.OPTIONS, "groups", "instances", "seed", "adapt", place)


def compare(runs: Iterable[Run]) -> list[Comparison]:
    """One comparison for each group of runs that agree in all that is not compared."""
    groups: list[tuple[dict[str, Any], list[Run]]] = []
    # unfinished runs come last: they join finished ones whatever images those saw,
    # and make way for finished ones of their recipe
    for run in sorted(runs, key=lambda run: run.result is None):
        setting = _setting(run)
        own = next((own for other, own in groups if setting.items() <= other.items()), None)
        if own is None:
            groups.append((setting, own := []))
        own.append(run)
    tables = [
        ({**setting, **extra}, part) for setting, own in groups for extra, part in _by_trust(own)
    ]
    differences = _differences([setting for setting, _ in tables])
    return [_one(own, difference) for (_, own), difference in zip(tables, differences, strict=True)]


def _setting(run: Run) -> dict[str, Any]:
    """What results depend on, without what is compared."""
    recipe = run.recipe
    without = {*compared(recipe), "trust", "weights"}
    found = {name: value for name, value in recipe.settings().items() if name not in without}
    found |= {"experiment": recipe.experiment, "data": data_name(recipe)}
    if hasattr(recipe, "weights"):
        found["pretrained"] = recipe.weights is not None
    if run.result is not None and isinstance(recipe.place, int):  # tasks have their own images
        # data sets of one name may differ, such as a part of it and the whole
        found["images"] = asdict(run.result.images)
        if run.data is not None:  # files may have changed from run to run
            found["content"] = run.data
    return found


def _by_trust(runs: list[Run]) -> list[tuple[dict[str, Any], list[Run]]]:
    """Divide runs into tables in each of which ``trust`` follows one rule.

    The rule is the default of each task, or one value for all.

    A run may follow both rules, and then is in both tables.
    """
    if not isinstance(runs[0].recipe, AdaptationRecipe):
        return [({}, runs)]
    values, usual = {}, []
    for run in runs:
        assert isinstance(run.recipe, AdaptationRecipe)
        values[id(run)] = run.recipe.trust_limit
        if run.recipe.trust_limit == replace(run.recipe, trust=None).trust_limit:
            usual.append(run)
    regular = {id(run) for run in usual}
    unusual = dict.fromkeys(value for run, value in values.items() if run not in regular)
    tables: list[tuple[dict[str, Any], list[Run]]] = [({"trust": BY_TASK}, usual)]
    tables += [
        ({"trust": value}, [run for run in runs if values[id(run)] == value]) for value in unusual
    ]
    members = [{id(run) for run in own} for _, own in tables]
    return [
        table
        for table, own in zip(tables, members, strict=True)
        if own and not any(own < other for other in members)
    ]


def _differences(settings: list[dict[str, Any]]) -> list[str]:
    """What each differs in from the others, beyond its title."""
    names = sorted({name for setting in settings for name in setting if name not in IN_TITLE})
    differing = [
        name
        for name in names
        if len({str(setting[name]) for setting in settings if name in setting}) > 1
    ]
    data = {setting["data"] for setting in settings}
    if len(data) == len({(setting["data"], setting.get("root")) for setting in settings}):
        differing = [name for name in differing if name != "root"]  # its last part is in the title
    return [
        "".join(f", {name} {_value(setting[name])}" for name in differing if name in setting)
        for setting in settings
    ]


def _value(value: Any) -> str:
    if isinstance(value, str) and value.startswith("{"):  # a genotype
        return f"found {_code(value)}"
    if isinstance(value, dict):
        return " + ".join(f"{n:,} {part}" for part, n in value.items() if isinstance(n, int))
    return shorten(str(value), 120)


def _code(value: Any) -> str:
    """A short name for a value of JSON, different for values that differ."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def _order(run: Run) -> tuple[int, list[int], int, str, bool, int, int, str]:
    """Sort key of a row: rows without partners in the paper's order, then those with partners.

    Rows with the same partners stand together, again in the paper's order: BN + WS, BGN + WS,
    BN + renorm. BGN's default comes before G from the largest to 1, a variant after what it varies.
    """
    r = run.recipe
    own = [list(partners.PARTNERS).index(word) for word in partners.of(r)]
    return (
        len(own),
        own,
        [*paper.NORMALIZERS, r.norm].index(r.norm),
        r.norm,
        r.groups is not None,
        r.instances or 0,
        -r.groups if isinstance(r.groups, int) else 0,
        r.variant,
    )


def _one(runs: list[Run], difference: str) -> Comparison:
    runs = sorted(runs, key=_order)
    weights = _weights(runs)
    rows = {id(run): ", ".join(filter(None, (norms.label(run.recipe), own)))
            for run, own in zip(runs, weights, strict=True)}  # fmt: skip
    labels = tuple(dict.fromkeys(rows.values()))
    rivals = _rivals(runs, rows)
    places = tuple(sorted({run.recipe.place for run in runs}, key=_rank))
    by_seed: BySeed = {(label, place): {} for label in labels for place in places}
    for run in runs:  # a recipe that was run twice counts once
        by_seed[rows[id(run)], run.recipe.place].setdefault(run.recipe.seed, run)
    columns = _columns(runs[0].recipe.measures, (*places, *_average(by_seed, labels, places)))
    cells = {}
    for label, column in product(labels, columns):
        baseline = by_seed.get((rivals.get(label, ""), column.place), {})
        found = cell(by_seed[label, column.place], baseline, column.measure.key)
        begun = any(run.result for place in places for run in by_seed[label, place].values())
        if column.place == MEAN and begun:
            found = replace(found, missing=INCOMPLETE)
        cells[label, column] = found
    return Comparison(
        runs[0].recipe, labels, places, cells, difference, _about_weights(runs, weights), rivals
    )


def _weights_of(run: Run) -> Any:
    """What stands for the pretrained weights in the identity; None without."""
    return run.recipe.identity().get("weights_code")


def _weights(runs: Sequence[Run]) -> list[str]:
    """What to add to the label of each run: the weights, where its normalizer has several."""
    by_norm: dict[str, dict[str, str]] = defaultdict(dict)
    for run in runs:
        if (found := _weights_of(run)) is not None:
            by_norm[partners.name(run.recipe)][_code(found)] = _file_name(run)
    added = []
    for run in runs:
        names = by_norm[partners.name(run.recipe)]
        if len(names) < 2:
            added.append("")
            continue
        code = _code(_weights_of(run))
        name = names[code]
        unique = list(names.values()).count(name) == 1
        added.append(f"weights {name}" if unique else f"weights {name} {code}")
    return added


def _file_name(run: Run) -> str:
    return shorten(Path(str(getattr(run.recipe, "weights", ""))).name, 40)


def _about_weights(runs: Sequence[Run], shown: Sequence[str]) -> str:
    """A sentence about pretrained weights that differ by normalizer, and are not in the labels."""
    found = {_code(w): None for run in runs if (w := _weights_of(run)) is not None}
    if len(found) < 2 or any(shown):
        return ""
    names = {
        partners.with_labels(
            paper.NORMALIZERS.get(run.recipe.norm, run.recipe.norm), run.recipe
        ): _file_name(run)
        for run in runs
    }
    listed = ", ".join(f"{norm} {name}" for norm, name in names.items())
    return f" Pretrained weights differ by normalizer: {listed}."


def _rivals(runs: Sequence[Run], rows: Mapping[int, str]) -> dict[str, str]:
    """The row of BN that each row is compared with: of the same variant and the same weights,
    without partners.

    Weights may differ where BN's are for BN alone, so that each normalizer has its own.
    """
    users: dict[str, set[str]] = defaultdict(set)
    baselines: dict[tuple[str, str], str] = {}
    for run in runs:
        code = _code(_weights_of(run))
        users[code].add(name := partners.name(run.recipe))
        if name == "bn":
            baselines[run.recipe.variant, code] = rows[id(run)]
    found = {}
    for run in runs:
        label, variant = rows[id(run)], run.recipe.variant
        same = baselines.get((variant, _code(_weights_of(run))))
        of_kind = {code: row for (kind, code), row in baselines.items() if kind == variant}
        (only, row) = next(iter(of_kind.items())) if len(of_kind) == 1 else ("", None)
        rival = same or (row if len(users[only]) == 1 else None)
        if rival is not None and partners.name(run.recipe) != "bn":
            found[label] = rival
    return found


def _accuracy(run: Run) -> float:
    assert run.result is not None
    assert run.result.test_accuracy is not None
    return run.result.test_accuracy


def _average(by_seed: BySeed, labels: Sequence[str], places: Sequence[int | str]) -> list[str]:
    """Add the mean over tasks, for seeds that finished all of them; the name of its column."""
    tasks = [place for place in places if isinstance(place, str)]
    if len(tasks) < 2:
        return []
    for label in labels:
        own = [
            {
                seed: run
                for seed, run in by_seed[label, task].items()
                if run.result and not run.failed
            }
            for task in tasks
        ]
        by_seed[label, MEAN] = {
            seed: replace(
                run,
                folder=Path(MEAN),
                result=run.result and replace(run.result, test_accuracy=statistics.mean(values)),
            )
            for seed, run in own[0].items()
            if len(values := [_accuracy(found[seed]) for found in own if seed in found])
            == len(tasks)
        }
    return [MEAN]


def _rank(place: int | str) -> tuple[int, str]:
    """Batch sizes by size, tasks in the paper's order."""
    if isinstance(place, int):
        return place, ""
    known = list(paper.ADAPTATION_GROUPS)
    return known.index(place) if place in known else len(known), place


def _columns(measures: tuple[Measure, ...], places: tuple[int | str, ...]) -> list[Column]:
    """Columns, with titles of what they differ in.

    >>> [c.title for c in _columns((Measure("test_accuracy", "test accuracy"),), (2, 8))]
    ['batch 2', 'batch 8']
    >>> [c.title for c in _columns((Measure("a", "robust"), Measure("b", "clean")), (128,))]
    ['robust', 'clean']
    """
    made = []
    for place, measure in product(places, measures):
        parts = [measure.name] if len(measures) > 1 else []
        parts += [named(place)] if len(places) > 1 or not parts else []
        made.append(Column(place, measure, ", ".join(parts)))
    return made

"""A plan as tables and words for the terminal, 80 columns wide."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from bgn_lab import norms
from bgn_lab.planning.costs import Cost, Setting, makespan
from bgn_lab.planning.devices import BASELINE, TRAINING_TO_TEST, Device

GUESS = "~"


def number(value: float, exact: bool = True) -> str:
    """Three digits, or all before the decimal point; three alone of what is a guess.

    >>> [number(x) for x in (0.00625, 3.14159, 31.4159, 314.159, 31415.9)], number(31415.9, False)
    (['0.00625', '3.14', '31.4', '314', '31,416'], '~31,400')
    """
    if not exact:
        return GUESS + number(float(f"{value:.3g}"))
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.3g}" if 0 < value < 1 else f"{value:,.{decimals}f}"


def count(value: int, word: str) -> str:
    """A number of things.

    >>> count(1, "run"), count(67, "process")
    ('1 run', '67 processes')
    """
    return f"{value:,} {word}" + ("" if value == 1 else "es" if word.endswith("s") else "s")


def span(hours: float) -> str:
    """Hours in a unit that one can imagine.

    >>> span(0.05), span(5), span(100), span(20000)
    ('3.00 minutes', '5.00 hours', '4.17 days', '2.28 years')
    """
    for size, unit in ((24 * 365.25, "years"), (24, "days"), (1, "hours")):
        if hours >= (2 * size if size > 1 else size):
            return f"{number(hours / size)} {unit}"
    return f"{number(60 * hours)} minutes"


def _table(title: str, first: str, header: Sequence[str]) -> Table:
    made = Table(
        title=Text(title, style="bold"), box=box.SIMPLE_HEAD, title_justify="left",
        pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    made.add_column(first, no_wrap=True)
    for name in header:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def sizes(device: Device, costs: Sequence[Cost], decode_rate: float | None) -> Table:
    """By batch size: steps, hours, and the images that have to come."""
    rows = [one.row for one in costs]
    row = BASELINE if BASELINE in rows else rows[0]
    header = ["runs", "steps an\nepoch", "step,\nms", "hours\na run", "images/s\na run"]
    header += ["decoding\ncores"] if decode_rate else []
    name = norms.label(next(one.recipe for one in costs if one.row == row))
    made = _table(f"A run with {name} on {device.name}", "batch size", header)
    for b in sorted({one.recipe.batch_size for one in costs}, reverse=True):
        own = [one for one in costs if one.recipe.batch_size == b]
        some = next((one for one in own if one.row == row), own[0])
        words = [str(b), str(len(own)), f"{some.steps:,}", number(1e3 * some.step, some.exact)]
        words += [number(some.hours, some.exact), number(some.images_per_second, some.exact)]
        if decode_rate:
            cores = math.ceil(some.images_per_second / decode_rate)
            words.append(f"{'' if some.exact else GUESS}{cores:,}")
        made.add_row(*words)
    return made


def sums(device: Device, costs: Sequence[Cost]) -> Table:
    """By normalizer and in all."""
    priced = device.price is not None
    header = ["step\nto BN's", "runs", "device-\nhours", *(["cost"] if priced else [])]
    made = _table(f"All runs on {device.name}", "", header)

    def add(name: str, ratio: str, found: Sequence[Cost]) -> None:
        exact = all(one.exact for one in found)
        words = [name, ratio, str(len(found)), number(sum(o.device_hours for o in found), exact)]
        words += [number(sum(one.price or 0 for one in found), exact)] if priced else []
        made.add_row(*words)

    for row in dict.fromkeys(one.row for one in costs):
        own = [one for one in costs if one.row == row]
        known = row == BASELINE or row in device.ratios
        name = norms.label(own[0].recipe).partition(",")[0]
        add(name, f"{device.ratios.get(row, 1.0):.2f}{'' if known else '?'}", own)
    made.add_section()
    add("in all", "", costs)
    return made


def notes(
    device: Device, setting: Setting, costs: Sequence[Cost], decode_rate: float | None
) -> list[str]:
    """Where the times come from, what is counted, and what is not."""
    line = f"{number(1e3 * device.overhead)} ms + b / ({number(device.rate)} images/s)"
    said = [f"{device.name} ({device.about}): a worker's step takes {line}"]
    if device.seconds:
        said[0] += f", or as known at {', '.join(map(str, device.seconds))} images"
    said[0] += "."
    if not all(one.exact for one in costs):
        said.append(f"{GUESS}: not known at this size, taken from that line.")
    rows = dict.fromkeys(one.row for one in costs)
    if unknown := [row for row in rows if row != BASELINE and row not in device.ratios]:
        said.append(f"?: taken to be as fast as BN for want of a figure ({', '.join(unknown)}).")
    first = costs[0].recipe
    said.append(
        f"Counted: {first.epochs} epochs of {setting.images:,} images, {setting.validation:,} for"
        f" validation after each, {setting.test:,} for tests after the last"
        f" {first.median_of if first.median_of > 1 else 'one'}, {TRAINING_TO_TEST} times as fast;"
        f" {count(first.simulate_workers, 'worker')} in {count(setting.processes, 'process')}."
    )
    if setting.processes > 1:
        said.append(
            f"Gradients of {setting.parameters:,} parameters are counted in full, though most of"
            " their way is hidden behind the backward pass."
            if setting.link.known
            else "Traffic is not counted without --latency-us and --bandwidth-gb."
        )
    if decode_rate:
        said.append(f"Decoding: {number(decode_rate)} images/s a core; a run waits for images.")
    said.append("Left out: start-up, checkpoints, failures, and whether a batch fits memory.")
    return said


def summary(device: Device, setting: Setting, costs: Sequence[Cost], jobs: int) -> str:
    """One sentence."""
    exact = all(one.exact for one in costs)
    hours = sum(one.device_hours for one in costs)
    wall = makespan([one.hours for one in costs], jobs)
    devices = count(jobs * setting.processes, "device")
    line = (
        f"{device.name}: {count(len(costs), 'run')}, {number(hours, exact)} device-hours,"
        f" {'' if exact else 'about '}{span(wall)} on {devices}"
    )
    line += f" with {count(jobs, 'job')} of {count(setting.processes, 'process')}"
    if device.price is None:
        return line
    return f"{line}; cost {number(hours * device.price, exact)} at {number(device.price)} an hour"

"""A plan as tables and words for the terminal, 80 columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from bgn_lab import paper
from bgn_lab.planning.costs import Cost, Setting, Total, total
from bgn_lab.planning.devices import BASELINE, TRAINING_TO_TEST, Device
from bgn_lab.planning.grid import Grid, Run

MEGA = 1e6
GUESS = "~"


def number(value: float) -> str:
    """Three digits, or all before the decimal point; millions have a unit.

    >>> [number(x) for x in (0.00625, 3.14159, 31.4159, 314.159, 31415.9, 31415926.5)]
    ['0.00625', '3.14', '31.4', '314', '31,416', '31.4M']
    """
    if value >= MEGA:
        return f"{value / MEGA:,.3g}M" if value < 1e9 else f"{value / MEGA:,.0f}M"
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.3g}" if 0 < value < 1 else f"{value:,.{decimals}f}"


def count(value: int, word: str) -> str:
    """A number of things.

    >>> count(1, "run"), count(67, "run")
    ('1 run', '67 runs')
    """
    return f"{value} {word}" + ("" if value == 1 else "s")


def span(hours: float) -> str:
    """Hours in a unit that one can imagine.

    >>> span(5), span(100), span(20000)
    ('5.00 hours', '4.17 days', '2.28 years')
    """
    for size, unit in ((24 * 365.25, "years"), (24, "days")):
        if hours >= 2 * size:
            return f"{number(hours / size)} {unit}"
    return f"{number(hours)} hours"


def _guess(value: float, exact: bool) -> str:
    """What is not exact has three digits and no more."""
    return number(value) if exact else GUESS + number(float(f"{value:.3g}"))


def _table(
    title: str, first: str, header: Iterable[str], justify: JustifyMethod = "right"
) -> Table:
    made = Table(
        title=Text(title, style="bold"),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    made.add_column(first, no_wrap=True, justify=justify)
    for name in header:
        made.add_column(name, justify="right", no_wrap=True)
    return made


def _by_size(costs: Sequence[Cost]) -> dict[int, list[Cost]]:
    sizes = sorted({one.run.batch_size for one in costs}, reverse=True)
    return {size: [one for one in costs if one.run.batch_size == size] for size in sizes}


def shown_norm(runs: Iterable[Run]) -> str:
    """Whose times stand in the tables by batch size: BN's where it is in the grid."""
    found = {run.norm for run in runs}
    return (
        BASELINE if BASELINE in found else next(norm for norm in paper.NORMALIZERS if norm in found)
    )


def times(device: Device, setting: Setting, costs: Sequence[Cost]) -> Table:
    """A table by batch size: steps, and what a run takes."""
    norm = shown_norm(one.run for one in costs)
    grouped = any(one.run.G is not None for one in costs)
    priced = device.price is not None
    header = [
        *(["G of\nBGN"] if grouped else []),
        "learning\nrate",
        "steps an\nepoch",
        "step,\nms",
        "runs",
        "hours\na run",
    ]
    header += ["device-hours\na run", *(["cost\na run"] if priced else [])]
    made = _table(
        f"Time on {device.name}, a step and a run with {paper.NORMALIZERS[norm]}", "batch", header
    )
    for size, own in _by_size(costs).items():
        G = sorted({one.run.G for one in own if one.run.G is not None})
        some = next((one for one in own if one.run.norm == norm), own[0])
        row = [
            str(size),
            *(
                [" " if not G else str(G[0]) if len(G) == 1 else f"{G[0]} to {G[-1]}"]
                if grouped
                else []
            ),
        ]
        row += [
            f"{setting.rate(size):.6g}",
            f"{some.steps:,}",
            _guess(1e3 * some.step, some.exact),
            str(len(own)),
        ]
        row += [_guess(some.hours, some.exact), _guess(some.device_hours, some.exact)]
        made.add_row(*row, *([_guess(some.price, some.exact)] if some.price is not None else []))
    return made


def images(device: Device, setting: Setting, costs: Sequence[Cost], decode_rate: float) -> Table:
    """A table by batch size: the images that have to come."""
    norm = shown_norm(one.run for one in costs)
    made = _table(
        f"Images for {device.name}",
        "batch",
        ["images/s\nin all", "images/s\na device", "decoding\ncores in all"],
    )
    for size, own in _by_size(costs).items():
        some = next((one for one in own if one.run.norm == norm), own[0])
        speed, exact = some.images_per_second, some.exact
        cores = f"{'' if exact else GUESS}{math.ceil(speed / decode_rate):,}"
        made.add_row(str(size), _guess(speed, exact), _guess(speed / setting.devices, exact), cores)
    return made


def traffic(setting: Setting, costs: Sequence[Cost], device: Device | None = None) -> Table:
    """Table by batch size of what a device sends in a step.

    With a class of devices it also has the share of the step.
    """
    kinds = {one.run.norm for one in costs if setting.network.synchronized(one.run)}
    synced = [kind for kind in paper.NORMALIZERS if kind in kinds]
    share = ["% of\nstep"] if device else []
    header = ["gradients,\nMB", *share]
    for kind in synced:
        header += [f"{'' if setting.sync else '+ '}sync\n{paper.NORMALIZERS[kind]}, MB", *share]
    made = _table("Traffic of a step" + (f" on {device.name}" if device else ""), "batch", header)
    for size, own in _by_size(costs).items():
        some = own[0]
        row = [
            str(size),
            number(setting.gradients().bytes / MEGA),
            *([_percent(some.gradients, some.step)] if device else []),
        ]
        for kind in synced:
            mine = [one for one in own if one.run.norm == kind]
            if not mine:
                row += ["", *([""] if device else [])]
                continue
            most = max(mine, key=lambda one: one.run.G or 0)
            row.append(number(setting.statistics(most.run).bytes / MEGA))
            if device:
                row.append(
                    _percent(most.statistics, most.step + (0 if setting.sync else most.statistics))
                )
        made.add_row(*row)
    return made


def _percent(part: float, whole: float) -> str:
    percent = 100 * part / whole
    return f"{percent:.2f}" if percent < 1 else number(percent)


def sums(device: Device, setting: Setting, grid: Grid, costs: Sequence[Cost]) -> Table:
    """A table by normalizer, by part of the grid, and in all."""
    priced = device.price is not None
    header = [
        "step\nto BN's",
        "runs",
        "device-\nhours",
        f"hours on\n{count(setting.devices, 'device')}",
        *(["cost"] if priced else []),
    ]
    made = _table(f"Sum on {device.name}", "", header, "left")

    def add(name: str, ratio: str, found: Total) -> None:
        row = [
            name,
            ratio,
            str(found.runs),
            _guess(found.device_hours, found.exact),
            _guess(found.hours, found.exact),
        ]
        made.add_row(*row, *([_guess(found.price, found.exact)] if found.price is not None else []))

    for norm, name in paper.NORMALIZERS.items():
        own = [one for one in costs if one.run.norm == norm]
        if own:
            known = norm == BASELINE or norm in device.ratios
            add(name, f"{device.ratio(norm):.2f}" if known else "1.00?", total(own))
    made.add_section()
    if len(grid) > 1:
        by_run = {one.run: one for one in costs}
        for part, runs in grid.items():
            add(part, "", total(by_run[run] for run in runs))
        shared = sum(map(len, grid.values())) - len(costs)
        made.add_row("  in both", "", f"-{shared}")
        made.add_section()
    add("in all", "", total(costs))
    return made


def summary(device: Device, setting: Setting, costs: Sequence[Cost]) -> str:
    """One sentence."""
    found = total(costs)
    hours, device_hours = (
        value if found.exact else float(f"{value:.3g}")
        for value in (found.hours, found.device_hours)
    )
    how = ", run after run" if found.runs > 1 else ""
    wall = f"{span(hours)} on {count(setting.devices, 'device')}{how}"
    price = (
        ""
        if found.price is None
        else f"; cost {_guess(found.price, found.exact)} "
        f"at {number(device.price or 0)} a device-hour"
    )
    about = "" if found.exact else "about "
    return (
        f"{device.name}: {count(found.runs, 'run')}, {about}{number(device_hours)} device-hours, "
        f"{wall}{price}"
    )


def origin(device: Device, costs: Sequence[Cost]) -> str:
    """Where the times of a device class come from."""
    line = f"t(b) = {number(1e3 * device.overhead)} ms + b / ({number(device.rate)} images/s)"
    sentences = [f"{device.name} ({device.about})."]
    if device.seconds:
        sentences.append(f"Step times are known at {', '.join(map(str, device.seconds))} images.")
        if not total(costs).exact:
            sentences.append(
                f"{GUESS}: not known at this size, taken from the line fitted to those, {line}."
            )
    else:
        sentences.append(f"A worker's step: {line}.")
    norms = {one.run.norm for one in costs} - {BASELINE}
    unknown = [
        paper.NORMALIZERS[norm]
        for norm in paper.NORMALIZERS
        if norm in norms and norm not in device.ratios
    ]
    if device.ratios and device.ratios_at:
        sentences.append(
            f"Other normalizers: their ratio to BN at {device.ratios_at} images, "
            "for all batch sizes."
        )
    if unknown:
        sentences.append(
            f"?: taken to be as fast as BN for want of a figure ({', '.join(unknown)})."
        )
    rate = device.test_rate or TRAINING_TO_TEST * device.rate
    how = "" if device.test_rate else ", assumed: a third of the time of training"
    sentences.append(f"Tests at {number(rate)} images/s{how}.")
    return " ".join(sentences)


def notes(setting: Setting, decode_rate: float, measured: bool) -> list[str]:
    """What is counted and what is not."""
    W, P, net = setting.workers, setting.devices, setting.network
    validation = (
        f"validation on {setting.validation_images:,} after each, "
        if setting.validation_images
        else ""
    )
    last = "the last epoch" if setting.median_of == 1 else f"each of the last {setting.median_of}"
    sentences = [
        f"Counted: {setting.epochs} epochs of {setting.images:,} images, {validation}tests on "
        f"{setting.test_images:,} after {last}; {net.model}, {net.parameters():,} parameters, "
        f"{net.image_size} pixels; {count(W, 'worker')} on {count(P, 'device')}"
        + (f", {W // P} on each, one after the other." if W > P else ".")
    ]
    if P == 1:
        sentences.append("Traffic: none on one device.")
    else:
        layers = len(net.synchronized(Run(BASELINE, None, 2)))
        how = "counted in the step" if setting.sync else "what --sync would add"
        times = (
            "Gradients are counted in full, though most of their way is hidden behind the backward "
            "pass."
            if setting.link.known
            else "No time is counted for it: give --latency-us and --bandwidth-gb."
        )
        sentences.append(
            "Traffic: MB that a device sends in a step. Gradients go in "
            f"{setting.gradients().collectives} collectives; statistics ({how}; with the largest "
            f"of BGN's G) in {setting.turns * 2 * layers} more, two a layer. {times}"
        )
    where = "measured with JPEGs of 500x375" if measured else "as given"
    sentences.append(
        f"Decoding: {number(decode_rate)} images/s a core ({where}); "
        "a run waits if images come more slowly."
    )
    sentences.append(
        "Left out: start-up, checkpoints, waiting for images, failures and runs that are repeated; "
        "whether a batch fits memory."
    )
    return sentences

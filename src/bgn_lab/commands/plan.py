"""``bgn plan``: what a grid of runs would cost, before machines are rented."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from bgn import checks
from bgn.factory import NAMES
from bgn_lab import paper
from bgn_lab.planning import devices, show, steps
from bgn_lab.planning.costs import FORMULAS, PAPER_LR, Cost, Setting, cost, total
from bgn_lab.planning.devices import Device
from bgn_lab.planning.grid import Grid, Run, distinct, own_grid, paper_grid
from bgn_lab.planning.measure import Machine, decoding, measure
from bgn_lab.planning.network import Network
from bgn_lab.planning.traffic import Link
from bgn_lab.system import files
from bgn_lab.system.signals import INTERRUPTED

DEVICE = (
    "a class of devices as NAME:KEY=VALUE,... with the time of a step of one worker with BN: rate"
    " (images/s) and overhead (ms a step), or ms by batch size, as in 2=25,32=55,128=150; optional"
    " are price (an hour of one device), test (images/s without backward), and ratios of other"
    " normalizers to BN, as in gn=1.1"
)


def _shown(default: str) -> Any:
    return tyro.conf.arg(help_behavior_hint=f"(default: {default})")


@dataclass(frozen=True)
class Plan:
    """Count what a grid of training runs would take: steps, hours, traffic, decoding cores, cost.

    Without options it counts the paper's ImageNet runs: ResNet-50 with 7 normalizers at 7 batch
    sizes and BGN with 10 G at two of them, on 8 devices like this machine, whose step times it
    measures in about a minute. With --norms, --batch-sizes or --groups it counts a grid of your
    own; all other options change either grid.
    """

    norms: Annotated[tuple[str, ...], _shown("all")] = ()
    """normalizers of a grid of your own: bn in ln gn pn gbgn bgn, without partners such as +ws"""
    batch_sizes: Annotated[tuple[int, ...], _shown("the paper's seven")] = ()
    """batch sizes of a grid of your own: images that a worker normalizes together"""
    groups: Annotated[tuple[str, ...], _shown("paper")] = ()
    """G of BGN in a grid of your own: numbers, or paper for the paper's G of each batch size"""
    seeds: int = 1
    """runs of each kind"""
    model: str = paper.MODEL
    """resnet8 14 20 32 44 56 110 (small images) or resnet10 18 34 50 101 (as torchvision's)"""
    width: int | None = None
    """channels of the first stage; by default 16 for small images, 64 for large ones"""
    stride: int | None = None
    """stride of the first convolution; by default 1 for small images, 2 for large ones"""
    image_size: int = paper.IMAGE_SIZE
    """pixels of a side"""
    classes: int = paper.CLASSES
    """outputs of the network"""
    images: int = paper.TRAINING_IMAGES
    """training images, without those held out for validation"""
    validation_images: int = 0
    """validation images, which are evaluated after every epoch"""
    test_images: int = paper.TEST_IMAGES
    """test images, which are evaluated after each of the last --median-of epochs"""
    epochs: int = paper.EPOCHS
    """passes over the training images"""
    median_of: int | None = None
    """how many of the last epochs are tested; by default 5, as in the paper"""
    workers: int = paper.WORKERS
    """W, workers in all: each normalizes batches of its own, gradients are averaged"""
    lr: float = PAPER_LR
    """learning rate at 32 images a step over all workers, scaled in proportion (0.1 at 256)"""
    device: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]],
        tyro.conf.arg(metavar="NAME:KEY=VALUE,...", help=DEVICE),
    ] = ()
    devices: int | None = None
    """P, devices of a run; each runs W / P workers in turn; by default as many as workers"""
    steps: Annotated[tuple[Path, ...], _shown("none")] = ()
    """files of step times, from --save"""
    measure: bool = False
    """measure this machine too, where --device or --steps is given"""
    seconds: float = 50.0
    """seconds that measuring takes, about"""
    on: str = "auto"
    """where to measure: cpu, cuda, cuda:1, mps; auto is cuda where there is one, else cpu"""
    amp: bool = False
    """measure in mixed precision"""
    channels_last: bool = False
    """measure in channels_last memory format"""
    price: float | None = None
    """price of an hour of one device that was measured, here or in the files of --steps"""
    save: Path | None = None
    """file for the measured step times, for --steps elsewhere"""
    sync: bool = False
    """count statistics across devices (bgn.convert_sync) into the step, not only show them"""
    latency_us: float | None = None
    """microseconds that a collective between the devices takes, however small"""
    bandwidth_gb: float | None = None
    """GB/s that a device sends to others"""
    decode_rate: float | None = None
    """images/s that one core decodes; measured unless given"""
    out: Path | None = None
    """file for every number as JSON; in a folder, plan.json"""

    def __call__(self, console: Console) -> int:
        """Measure where needed, then count."""
        grid, setting, machine, classes = self._checked()
        runs = distinct(grid)
        parts = " and ".join(f"{part} ({len(own)})" for part, own in grid.items())
        self._say(console, show.count(len(runs), "run") + (f" in {parts}" if len(grid) > 1 else ""))
        if machine is not None:
            try:
                classes.append(self._measured(console, runs, setting.network, machine))
            except KeyboardInterrupt:
                self._say(console, "interrupted: nothing is kept of what was measured")
                return INTERRUPTED
        rate = self.decode_rate or next(
            (found.decode_rate for found in classes if found.decode_rate), None
        )
        if rate is None:
            rate = decoding(setting.network.image_size)
        console.print()
        found = {device.name: [cost(run, device, setting) for run in runs] for device in classes}
        several = setting.devices > 1
        for device in classes:
            own = found[device.name]
            tables = [show.times(device, setting, own), show.images(device, setting, own, rate)]
            if several and setting.link.known:
                tables.append(show.traffic(setting, own, device))
            for table in (*tables, show.sums(device, setting, grid, own)):
                console.print(table)
            console.print(Text(show.origin(device, own) + "\n", style="dim"))
        if several and not setting.link.known:
            console.print(show.traffic(setting, found[classes[0].name]))
        for note in show.notes(setting, rate, self.decode_rate is None):
            console.print(Text(note, style="dim"))
        console.print()
        for device in classes:
            console.print(Text(show.summary(device, setting, found[device.name]), style="bold"))
        if self.out is not None:
            self._write(self._file(), grid, setting, classes, found, rate)
            self._say(console, f"all numbers: {self._file()}")
        return 0

    def _checked(self) -> tuple[Grid, Setting, Machine | None, list[Device]]:
        """Everything that can be refused before anything is measured."""
        if self.norms or self.batch_sizes or self.groups:
            sizes = self.batch_sizes or paper.BATCH_SIZES
            grid = own_grid(self.norms or NAMES, sizes, self.groups or ("paper",), self.seeds)
        else:
            grid = paper_grid(self.seeds)
        for name in ("seconds", "price", "latency_us", "bandwidth_gb", "decode_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} is out of range; expected a number above 0")
        checks.positive_int("epochs", self.epochs)
        network = Network(self.model, self.width, self.stride, self.image_size, self.classes)
        link = Link(
            None if self.latency_us is None else self.latency_us * 1e-6,
            None if self.bandwidth_gb is None else self.bandwidth_gb * 1e9,
        )
        setting = Setting(
            network, self.images, self.validation_images, self.test_images, self.epochs,
            min(paper.MEDIAN_EPOCHS, self.epochs) if self.median_of is None else self.median_of,
            self.workers, self.workers if self.devices is None else self.devices, self.lr,
            self.sync, link,
        )  # fmt: skip
        classes = [devices.parse(spec) for spec in self.device]
        classes += [devices.priced(steps.load(path, network), self.price) for path in self.steps]
        names = [found.name for found in classes]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"device={name!r} is there {names.count(name)} times; "
                    "expected names that differ"
                )
        measuring = self.measure or not classes
        if self.save is not None and not measuring:
            raise ValueError(f"save={self.save} without anything measured; add --measure")
        if self.price is not None and not measuring and not self.steps:
            raise ValueError(
                f"price={self.price} is for measured devices; expected it in --device, "
                f"as in ...,price={self.price:g}"
            )
        for option, path in (("save", self.save), ("out", self.out)):
            if path is not None and not path.parent.is_dir():
                raise ValueError(
                    f"{option}={path} cannot be written: {path.parent} is not a folder"
                )
        for run in distinct(grid):  # groups that do not fit a layer, batches that exceed the images
            cost(run, Device("any", 1.0), setting)
        machine = Machine(_usable(self.on), self.amp, self.channels_last) if measuring else None
        if (
            machine is not None
            and self.channels_last
            and machine.on == "cpu"
            and (self.width or 8) < 8
        ):
            raise ValueError(
                f"width={self.width} with channels_last: torch's convolutions crash there on the "
                "CPU; expected at least 8"
            )
        return grid, setting, machine, classes

    def _measured(
        self, console: Console, runs: list[Run], network: Network, machine: Machine
    ) -> Device:
        columns = (
            TextColumn("measuring"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=console, transient=True, refresh_per_second=2) as progress:
            task = progress.add_task("", total=self.seconds)
            begin = time.perf_counter()

            def hear(what: str) -> None:
                progress.update(task, completed=time.perf_counter() - begin, description=what)

            try:
                device = measure(network, runs, machine, self.seconds, hear)
            except RuntimeError as error:
                problem = str(error).splitlines()[0]
                raise ValueError(
                    f"on={machine.on!r} cannot take steps of {network.model}: {problem}"
                ) from error
            hear("decoding")
            rate = decoding(network.image_size) if self.decode_rate is None else None
        device = replace(device, price=self.price, decode_rate=rate)
        if self.save is not None:
            steps.save(self.save, device, network)
            self._say(console, f"step times: {self.save}")
        return device

    def _file(self) -> Path:
        assert self.out is not None
        return self.out / "plan.json" if self.out.is_dir() else self.out

    def _write(
        self,
        path: Path,
        grid: Grid,
        setting: Setting,
        classes: list[Device],
        found: dict[str, list[Cost]],
        rate: float,
    ) -> None:
        def entry(one: Cost) -> dict[str, Any]:
            sent = setting.statistics(one.run)
            return {
                **asdict(one), "learning_rate": setting.rate(one.run.batch_size),
                "worker_step": one.compute / setting.turns,
                "statistics_bytes": sent.bytes, "statistics_collectives": sent.collectives,
                "decoding_cores": math.ceil(one.images_per_second / rate),
            }  # fmt: skip

        files.write_json(
            path,
            {
                "formulas": FORMULAS,
                "grid": {part: [asdict(run) for run in runs] for part, runs in grid.items()},
                "setting": {
                    **asdict(setting),
                    "parameters": setting.network.parameters(),
                    "decode_rate": rate,
                },
                "gradients": asdict(setting.gradients()),
                "devices": [
                    {
                        **asdict(device),
                        "runs": [entry(one) for one in found[device.name]],
                        "total": asdict(total(found[device.name])),
                    }
                    for device in classes
                ],
            },
        )

    @staticmethod
    def _say(console: Console, text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _usable(on: str) -> str:
    """The name of a device that is there."""
    if on == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=on)
        known = torch.device(on).type in ("cpu", "cuda", "mps")
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"on={on!r} cannot be used: {str(error).splitlines()[0]}") from None
    if not known:
        raise ValueError(f"on={on!r} cannot be used; expected cpu, cuda or mps")
    return on

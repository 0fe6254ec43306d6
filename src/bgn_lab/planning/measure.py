"""Step times of this machine: real steps of the real network for a bounded time.

The smallest batches come first.
"""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from bgn_lab import paper
from bgn_lab.data.folders.decode import cropped
from bgn_lab.planning.devices import BASELINE, Device, fit
from bgn_lab.planning.grid import Run
from bgn_lab.planning.network import CHANNELS, Network
from bgn_lab.training import loop

LEAST, MOST = 3, 30  # steps that are timed at one batch size
ENOUGH = 1.5  # seconds for them
LINE = 0.4  # share of the time for BN at several batch sizes; the rest is for the others' ratios
# share of the time that threads have a processor, at least, where nothing else is at work
UNDISTURBED = 0.85
DECODING = 1.5  # seconds

Hear = Callable[[str], None]  # what is being measured now


@dataclass(frozen=True)
class Machine:
    """Where and how steps are taken."""

    on: str = "cpu"
    amp: bool = False
    channels_last: bool = False

    def about(self) -> str:
        """The machine in words."""
        kind = torch.device(self.on).type
        what = (
            torch.cuda.get_device_name(self.on)
            if kind == "cuda"
            else f"{kind}, {torch.get_num_threads()} threads"
        )
        how = [
            what,
            *(["mixed precision"] if self.amp else []),
            *(["channels_last"] if self.channels_last else []),
        ]
        return f"measured: {', '.join(how)}, torch {torch.__version__}"

    def wait(self) -> None:
        """Until everything that was started is done."""
        kind = torch.device(self.on).type
        if kind == "cuda":
            torch.cuda.synchronize(self.on)
        elif kind == "mps":
            torch.mps.synchronize()


class Attention:
    """How much of the processor this process had in ``with`` blocks.

    ``least`` is the smallest share of all blocks, where 1 is all of its threads' time.
    """

    least = 1.0

    def __enter__(self) -> None:
        self.begin = time.perf_counter(), time.process_time()

    def __exit__(self, *error: object) -> None:
        wall, used = time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]
        self.least = min(self.least, used / wall / torch.get_num_threads())


class Trainer:
    """A network that takes steps on one batch again and again."""

    def __init__(self, network: Network, run: Run, machine: Machine) -> None:
        self.machine, self.network = machine, network
        self.recipe = network.recipe(
            run, device=machine.on, amp=machine.amp, channels_last=machine.channels_last
        )
        self.format = torch.channels_last if machine.channels_last else torch.contiguous_format
        model = network.build(run).to(machine.on)
        self.model = model.to(memory_format=self.format)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), 1e-3, self.recipe.momentum, weight_decay=self.recipe.decay
        )
        self.scaler = torch.amp.GradScaler(enabled=machine.amp and machine.on.startswith("cuda"))
        self.onednn: dict[int, bool] = {}  # by batch size

    def batch(self, b: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(b, 3, H, W) noise, (b,) labels."""
        size, on = self.network.image_size, self.machine.on
        x = torch.randn(b, CHANNELS, size, size, device=on).contiguous(memory_format=self.format)
        return x, torch.randint(self.network.classes, (b,), device=on)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """Forward, backward, optimizer; seconds."""
        begin = time.perf_counter()
        self.model.train()
        with self._convolutions(len(x)):
            with loop.autocast(self.recipe)():
                loss = F.cross_entropy(self.model(x), y)
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.machine.wait()
        return time.perf_counter() - begin

    @torch.no_grad()
    def test(self, x: torch.Tensor) -> float:
        """Forward in eval mode; seconds."""
        begin = time.perf_counter()
        self.model.eval()
        with self._convolutions(len(x)), loop.autocast(self.recipe)():
            self.model(x)
        self.machine.wait()
        return time.perf_counter() - begin

    def _convolutions(self, b: int) -> AbstractContextManager[None]:
        if b not in self.onednn:
            size = self.network.image_size
            shape = (b, CHANNELS, size, size)
            self.onednn[b] = loop.onednn_is_faster(self.model, self.recipe, shape)
        return loop.convolutions(self.onednn[b])


def candidates(sizes: Iterable[int]) -> list[int]:
    """Batch sizes to measure, as far as time allows.

    These are the grid's, and powers of two below, since a line needs several points.

    >>> candidates([12, 24])
    [2, 4, 8, 12, 16, 24]
    """
    wanted = set(sizes)
    powers = {2**i for i in range(1, max(wanted).bit_length()) if 2**i < max(wanted)}
    return sorted(wanted | powers)


def measure(
    network: Network, runs: Sequence[Run], machine: Machine, seconds: float, hear: Hear
) -> Device:
    """Measure this machine: BN at growing batch sizes, the ratios of other normalizers, testing.

    BN is measured while time allows, the ratios at one of its batch sizes. Of equal steps the
    shortest counts: other programs may be at work on this machine, but not on a rented one.
    """
    end, attention = time.perf_counter() + seconds, Attention()
    base = Trainer(network, Run(BASELINE, None, 2), machine)
    times: dict[int, float] = {}
    for b in candidates(run.batch_size for run in runs):
        if times:
            last = max(times)
            if (1 + LEAST) * times[last] * b / last > end - (
                1 - LINE
            ) * seconds - time.perf_counter():
                break
        hear(f"{paper.NORMALIZERS[BASELINE]} at {b} images")
        try:
            with attention:
                times[b] = _steady(base, b)
        except RuntimeError as error:
            if "memory" not in str(error) or not times:
                raise
            break
    overhead, rate = fit(times)
    others = {run.norm for run in runs} - {BASELINE}
    pairs = len(others) * (1 + 2 * LEAST)
    b = max(
        (b for b, t in times.items() if pairs * t < end - time.perf_counter()), default=min(times)
    )
    hear("testing")
    x, y = base.batch(b)
    base.test(x)
    test_rate = b / min(base.test(x) for _ in range(LEAST))
    ratios: dict[str, float] = {}
    for i, norm in enumerate(sorted(others, key=list(paper.NORMALIZERS).index)):
        if time.perf_counter() > end:  # the machine is slower than it seemed
            break
        hear(f"{paper.NORMALIZERS[norm]} at {b} images")
        nearest = min(
            (run for run in runs if run.norm == norm),
            key=lambda run: abs(math.log(run.batch_size / b)),
        )
        until = time.perf_counter() + (end - time.perf_counter()) / (len(others) - i)
        try:
            other = Trainer(network, nearest, machine)
            with attention:
                ratios[norm] = _ratio(other, base, x, y, until)
        except RuntimeError as error:
            if "memory" not in str(error):
                raise
    about = machine.about()
    if machine.on == "cpu" and attention.least < UNDISTURBED:
        about += (
            f"; at times its threads had a processor for {attention.least:.0%} of the time: "
            "was something else at work?"
        )
    return Device("this machine", rate, overhead, times, ratios, b, test_rate, about=about)


def _steady(trainer: Trainer, b: int) -> float:
    """Seconds of a step, after a first one."""
    x, y = trainer.batch(b)
    trainer.step(x, y)
    times: list[float] = []
    while len(times) < LEAST or (sum(times) < ENOUGH and len(times) < MOST):
        times.append(trainer.step(x, y))
    return min(times)


def _ratio(one: Trainer, other: Trainer, x: torch.Tensor, y: torch.Tensor, until: float) -> float:
    """Ratio of both steps' times, taken in turns, so that noise of the machine hits both alike.

    There is at least one turn.
    """
    one.step(x, y)
    turns: list[tuple[float, float]] = []
    while not turns or (time.perf_counter() < until and len(turns) < MOST):
        turns.append((one.step(x, y), other.step(x, y)))
    return min(mine for mine, _ in turns) / min(its for _, its in turns)


def decoding(size: int) -> float:
    """Images per second that one core decodes here.

    They are JPEGs of 500x375 pixels, a random part of each cut to size x size.
    """
    from PIL import Image

    draws = torch.Generator().manual_seed(
        0
    )  # smooth noise takes about as many bytes as a photograph
    noise = F.interpolate(
        torch.rand(1, 3, 94, 125, generator=draws), (375, 500), mode="bicubic"
    ).clamp(0, 1)[0]
    file = io.BytesIO()
    Image.fromarray((255 * noise).byte().permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
    seeds, count, begin = random.Random(0), 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < DECODING or not count:
        with Image.open(io.BytesIO(file.getvalue())) as image:
            cropped(image, size, seeds.getrandbits(62))
        count += 1
    return count / spent

"""Step times of this machine: real runs of the real recipes, for some steps each."""

from __future__ import annotations

import contextlib
import io
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bgn_lab import experiments, paper, partners
from bgn_lab.data.folders.decode import MEAN, STD, cropped
from bgn_lab.data.sources import Batch, Data
from bgn_lab.experiments.classification.recipe import ClassificationRecipe
from bgn_lab.planning.devices import BASELINE, Device, fit
from bgn_lab.recipe import Recipe
from bgn_lab.system.signals import Interrupted
from bgn_lab.training.run import Watcher, run

LEAST, MOST = 3, 30  # steps that are timed at one batch size
ENOUGH = 1.5  # seconds for them
LINE = 0.5  # share of the time for BN at several batch sizes; the rest is for the others' ratios
DECODING = 1.5  # seconds


@dataclass(frozen=True)
class Noise:
    """A source of so many images that are not there: noise, drawn when it is needed."""

    count: int
    shape: tuple[int, ...]  # (C, H, W)
    classes: int
    fingerprint = "noise"

    def __len__(self) -> int:
        return self.count

    @property
    def y(self) -> Tensor:
        """Labels (M,)."""
        return torch.arange(self.count) % self.classes

    def training(
        self, batch_size: int, seed: int, epoch: int, wanted: Sequence[int] | None = None
    ) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        draws = torch.Generator().manual_seed(seed + epoch)
        for _ in range(len(self) // batch_size) if wanted is None else wanted:
            x = torch.randint(256, (batch_size, *self.shape), generator=draws, dtype=torch.uint8)
            yield x, torch.randint(self.classes, (batch_size,), generator=draws)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        """See :class:`bgn_lab.data.sources.Source`."""
        return self.training(min(batch_size, len(self)) or 1, 0, 0)

    def check(self) -> None:
        """See :class:`bgn_lab.data.sources.Source`."""

    def part(self, index: Tensor) -> Noise:
        """See :class:`bgn_lab.data.sources.Source`."""
        return replace(self, count=len(index))


def imagenet(recipe: Recipe) -> Data:
    """What takes the place of ImageNet where it is not there: noise in its numbers and sizes."""
    size = recipe.image_size or paper.IMAGE_SIZE
    shape, classes = (3, size, size), paper.CLASSES
    held = round(recipe.validation * (recipe.limit or paper.TRAINING_IMAGES))
    counts = (recipe.limit or paper.TRAINING_IMAGES) - held, held, paper.TEST_IMAGES
    train, validation, test = (Noise(count, shape, classes) for count in counts)
    names = tuple(str(k) for k in range(classes))
    return Data(recipe.data, names, shape, MEAN, STD, train, validation, test, 1 / classes)


def candidates(sizes: Iterable[int]) -> list[int]:
    """Batch sizes to measure, as far as time allows: a line needs several points.

    >>> candidates([12, 24])
    [2, 4, 8, 12, 16, 24]
    """
    wanted = set(sizes)
    powers = {2**i for i in range(1, max(wanted).bit_length()) if 2**i < max(wanted)}
    return sorted(wanted | powers)


def measure(
    recipes: Sequence[ClassificationRecipe],
    data: Data,
    processes: int,
    seconds: float,
    say: Callable[[str], None],
) -> Device:
    """Measure BN at growing batch sizes while time allows, and the others' ratios at one of them.

    Args:
        recipes: of the grid.
        data: the images; few of them are looked at.
        processes: of each run; this one takes the part of one of them.
        seconds: for measuring, about.
        say: hears what is being measured.
    """
    end, begin = time.perf_counter() + seconds, recipes[0]
    share = begin.simulate_workers // processes
    few = replace(data, validation=data.validation.part(torch.arange(0)),
                  test=data.test.part(torch.arange(min(1, len(data.test)))))  # fmt: skip

    def timed(recipe: ClassificationRecipe, b: int) -> float:
        say(f"{partners.name(recipe)} at {b} images")
        return _step(replace(recipe, batch_size=b, simulate_workers=share), few) / share

    base = replace(begin, **partners.row(BASELINE), groups=None)
    times: dict[int, float] = {}
    for b in candidates(recipe.batch_size for recipe in recipes):
        last = max(times, default=0)
        needed = (1 + LEAST) * share * times[last] * b / last if times else 0.0
        if time.perf_counter() + needed > end - (1 - LINE) * seconds:
            break
        try:
            times[b] = timed(base, b)
        except RuntimeError as error:
            if "memory" not in str(error) or not times:
                raise
            break
    overhead, rate = fit(times)
    others = {partners.name(recipe): recipe for recipe in recipes}
    others.pop(BASELINE, None)
    fitting = (end - time.perf_counter()) / ((1 + LEAST) * share * max(len(others), 1))
    b = max((b for b, t in times.items() if t < fitting), default=min(times))
    ratios: dict[str, float] = {}
    for row in others:
        if ratios and time.perf_counter() > end:  # the machine is slower than it seemed
            break
        own = [recipe for recipe in recipes if partners.name(recipe) == row]
        nearest = min(own, key=lambda recipe: abs(math.log(recipe.batch_size / b)))
        ratios[row] = timed(nearest, b) / times[b]
    about = f"measured at {b} images: {torch.get_num_threads()} threads, torch {torch.__version__}"
    return Device("this-machine", rate, overhead, times, ratios, about=about)


def _step(recipe: ClassificationRecipe, data: Data) -> float:
    """Seconds of a step of a real run, the shortest of some after a first one.

    Other programs may be at work on this machine, but not on a rented one.
    """
    ends: list[float] = []

    def step(epoch: int, step: int) -> None:  # noqa: ARG001
        if recipe.device.startswith("cuda"):
            torch.cuda.synchronize(recipe.device)
        ends.append(time.perf_counter())
        spent = ends[-1] - ends[0]
        if len(ends) > MOST or (len(ends) > LEAST and spent > ENOUGH):
            raise Interrupted

    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Interrupted):
        run(experiments.task(recipe, data), Path(folder) / "run", Watcher(step=step))
    if len(ends) < 2:
        raise ValueError(f"batch_size={recipe.batch_size} leaves {len(ends)} steps; expected two")
    return min(after - before for before, after in pairwise(ends))


def decoding(size: int) -> float:
    """Images a second that one core decodes here.

    They are JPEGs of 500x375 pixels, a random part of each cut to size x size.
    """
    from PIL import Image

    draws = torch.Generator().manual_seed(0)
    # smooth noise takes about as many bytes as a photograph
    noise = F.interpolate(
        torch.rand(1, 3, 94, 125, generator=draws), (375, 500), mode="bicubic"
    ).clamp(0, 1)[0]
    file = io.BytesIO()
    Image.fromarray((255 * noise).byte().permute(1, 2, 0).numpy()).save(file, "JPEG", quality=90)
    seeds, count, begin = random.Random(0), 0, time.process_time()  # other programs do not count
    while (spent := time.process_time() - begin) < DECODING or not count:
        with Image.open(io.BytesIO(file.getvalue())) as image:
            cropped(image, size, seeds.getrandbits(62))
        count += 1
    return count / spent

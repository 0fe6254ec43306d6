"""One epoch of training, and the accuracy on a set of images."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from bgn_lab.data.sources import Batch, Data
from bgn_lab.recipe import Recipe
from bgn_lab.training.workers import FirstWorker, Workers, statistics_in_blocks

# images; normalizers use running statistics or each image's own, so any number gives the same
EVALUATION_BATCH = 250


@dataclass(frozen=True)
class Score:
    """Sum of the losses, and how many of some images were right."""

    total: float = 0.0
    right: int = 0
    images: int = 0

    @property
    def loss(self) -> float:
        """The mean."""
        return self.total / max(self.images, 1)

    @property
    def accuracy(self) -> float:
        """The share that was right."""
        return self.right / max(self.images, 1)


class Prepare:
    """Turn batches of bytes into the network's input.

    That is on the device, normalized per channel, in the memory format.
    """

    def __init__(self, data: Data, recipe: Recipe) -> None:
        self.device = torch.device(recipe.device)
        spatial = [1] * (len(data.shape) - 1)
        mean, std = (
            torch.tensor(values, device=self.device).view(1, -1, *spatial)
            for values in (data.mean, data.std)
        )
        self.scale, self.shift = (
            1 / (255 * std),
            -mean / std,
        )  # (x / 255 - mean) / std = x * scale + shift
        self.format = torch.channels_last if recipe.channels_last else torch.contiguous_format

    def __call__(self, batch: Batch) -> Batch:
        x, y = (t.to(self.device, non_blocking=True) for t in batch)
        return torch.addcmul(self.shift, x.to(self.scale.dtype), self.scale).contiguous(
            memory_format=self.format
        ), y


@contextlib.contextmanager
def convolutions(onednn: bool) -> Iterator[None]:
    """Within the context, convolutions on the CPU are oneDNN's, or torch's plain ones."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(onednn and before)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


ROUNDS, SECONDS = 7, 1.0  # at most, to time convolutions in
LONG = 0.2  # seconds of a step above which setting up a convolution is a small part of it
MARGIN = 1.1  # how many times faster plain ones must be: runs to be compared shall choose alike


def onednn_is_faster(
    model: nn.Module,
    recipe: Recipe,
    shape: tuple[int, ...],
    forward: Callable[[nn.Module, Tensor], Any] = lambda model, x: model(x),
) -> bool:
    """Whether oneDNN's convolutions beat plain ones for a batch of this shape, (N, C, H, W).

    Setting up oneDNN's takes longer than plain ones take in all where images are few and small;
    how few depends on the CPU. So both are timed, forward and backward, on a copy of the model.
    ``forward`` calls it. Random state and model stay as they are. Where the plain ones are no
    alternative, it is True without timing: on other devices than the CPU, in mixed precision, in a
    compiled network.
    """
    if recipe.onednn is not None:
        return recipe.onednn
    if recipe.device != "cpu" or recipe.amp or recipe.compile:
        return True
    model = copy.deepcopy(model).train()
    format = torch.channels_last if recipe.channels_last else torch.contiguous_format
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = x.contiguous(memory_format=format)

    def step(onednn: bool) -> float:
        begin = time.perf_counter()
        with convolutions(onednn):
            outputs = [t for t in tree_leaves(forward(model, x)) if isinstance(t, Tensor)]
            torch.autograd.backward([t.sum() for t in outputs])
        model.zero_grad()
        return time.perf_counter() - begin

    with torch.random.fork_rng(devices=[]):
        begin, times = time.perf_counter(), {True: [step(True)], False: []}
        if step(True) > LONG:
            return True
        step(False)  # the first one of each is slower
        while len(times[False]) < ROUNDS and time.perf_counter() - begin < SECONDS:
            for onednn, found in times.items():
                found.append(step(onednn))
    return not times[False] or min(times[True]) <= MARGIN * min(times[False])


def autocast(recipe: Recipe) -> Callable[[], Any]:
    """A context for the network's forward pass."""
    if not recipe.amp:
        return contextlib.nullcontext
    kind = torch.device(recipe.device).type
    return lambda: torch.autocast(kind, torch.float16 if kind == "cuda" else torch.bfloat16)


Learned = tuple[
    Tensor, Tensor, Tensor
]  # the loss, and logits and labels of the images that accuracy is about


def classify(network: nn.Module, batch: Batch) -> Learned:
    """The cross-entropy of a batch."""
    x, y = batch
    logits = network(x)
    return F.cross_entropy(logits, y), logits, y


def train(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    recipe: Recipe,
    learn: Callable[[nn.Module, Batch], Learned],
    rate: Callable[[int], float],
    scaler: torch.amp.GradScaler,
    on_step: Callable[[int, Callable[[], Score]], None],
    workers: Workers | None = None,
    before: Score | None = None,
    clip: float | None = None,
    before_step: Callable[[Batch], None] | None = None,
    per_pass: int = 1,
) -> Score:
    """Train for one epoch, or for the rest of one.

    Args:
        batches: those of this process' workers in turn, ``per_pass`` workers' in each.
        learn: gives the loss of a batch, a mean over its images if ``per_pass`` is above 1.
        rate: the learning rate of a step, which an optimizer's groups may have a factor for.
        on_step: called after each step; may raise.
        before: what loss and accuracy are added to. They are those of the moment, in training mode,
            summed on the device, and read once or when ``on_step`` asks for them.
        clip: the largest norm of the gradients.
        before_step: called before each step with its first batch.
    """
    network.train()
    workers, before, context = workers or Workers(), before or Score(), autocast(recipe)
    passes = workers.per_process // per_pass
    K = recipe.accumulate * passes  # batches for one step
    total = torch.tensor(before.total, device=recipe.device)
    right, images = torch.tensor(before.right, device=recipe.device), before.images
    first_worker = FirstWorker(network, passes, workers)

    def score() -> Score:
        return Score(float(total), int(right), images)

    with statistics_in_blocks(network, per_pass):
        for number, batch in enumerate(batches):
            last = (number + 1) % K == 0
            if before_step is not None and number % K == 0:
                before_step(batch)
            first_worker.before(number)
            with workers.no_sync(network, not last):
                with context():
                    loss, logits, y = learn(network, batch)
                scaled = scaler.scale(loss / K if K > 1 else loss)
                scaled.backward()  # type: ignore[no-untyped-call]
            first_worker.after(number)
            with torch.no_grad():
                total += loss.detach() * len(y)
                right += (logits.argmax(1) == y).sum()
                images += len(y)
            if not last:
                continue
            lr = rate(number // K)
            for settings in optimizer.param_groups:
                settings["lr"] = lr * settings.get("factor", 1.0)
            if clip is not None:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(
                    [p for group in optimizer.param_groups for p in group["params"]], clip
                )
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            on_step(number // K + 1, score)
    return score()


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    recipe: Recipe,
    view: Callable[[nn.Module, Batch], Batch] | None = None,
) -> Score:
    """Loss and accuracy in eval mode, of the images as they are or as a view of them shows them."""
    model.eval()
    context = autocast(recipe)
    total, right, images = 0.0, 0, 0
    for batch in batches:
        x, y = batch if view is None else view(model, batch)
        with context():
            logits: Tensor = model(x).float()
        total += float(F.cross_entropy(logits, y, reduction="sum"))
        right += int((logits.argmax(1) == y).sum())
        images += len(y)
    return Score(total, right, images)

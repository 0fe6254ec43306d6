"""One epoch of training, and the accuracy on a set of images."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab.data.sources import Batch, Data
from bgn_lab.recipe import Recipe

EVALUATION_BATCH = 250  # images; the normalisers use running statistics or each image's own, so any number gives the same result


class Interrupted(Exception):
    """Somebody asked to stop; the last checkpoint stands."""


@dataclass(frozen=True)
class Score:
    """Mean loss and accuracy over some images."""

    loss: float
    accuracy: float
    images: int


class Prepare:
    """Batches of bytes as the network takes them: on the device, normalised per channel, in the memory format."""

    def __init__(self, data: Data, recipe: Recipe) -> None:
        self.device = torch.device(recipe.device)
        mean, std = (torch.tensor(values, device=self.device).view(1, -1, 1, 1) for values in (data.mean, data.std))
        self.scale, self.shift = 1 / (255 * std), -mean / std  # (x / 255 - mean) / std = x * scale + shift
        self.format = torch.channels_last if recipe.channels_last else torch.contiguous_format

    def __call__(self, batch: Batch) -> Batch:
        x, y = (t.to(self.device, non_blocking=True) for t in batch)
        return torch.addcmul(self.shift, x.float(), self.scale).contiguous(memory_format=self.format), y


FEW_PIXELS = 4096  # in a batch; below, setting up oneDNN's convolutions takes longer than plain ones take in all


@contextlib.contextmanager
def convolutions(recipe: Recipe, data: Data) -> Iterator[None]:
    """A context with the convolutions that the recipe asks for, or that are faster."""
    _, H, W = data.shape
    wanted = recipe.onednn if recipe.onednn is not None else recipe.amp or recipe.batch_size * H * W > FEW_PIXELS
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(wanted and before)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def autocast(recipe: Recipe) -> Callable[[], Any]:
    """A context for the network's forward pass."""
    if not recipe.amp:
        return contextlib.nullcontext
    kind = torch.device(recipe.device).type
    return lambda: torch.autocast(kind, torch.float16 if kind == "cuda" else torch.bfloat16)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Batch],
    recipe: Recipe,
    rate: Callable[[int], float],
    scaler: torch.amp.GradScaler,
    on_step: Callable[[int], None],
) -> Score:
    """One epoch: ``rate`` gives the learning rate of a step, ``on_step`` hears of each and may raise :class:`Interrupted`.

    The batches come in multiples of ``recipe.accumulate``. Loss and accuracy are those of the moment, in training mode; they
    are added up on the device and read once.
    """
    model.train()
    context, K = autocast(recipe), recipe.accumulate
    total, right, images = torch.zeros((), device=recipe.device), torch.zeros((), device=recipe.device), 0
    for number, (x, y) in enumerate(batches):
        with context():
            logits = model(x)
            loss = F.cross_entropy(logits, y)
        scaler.scale(loss / K if K > 1 else loss).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            total += loss.detach() * len(y)
            right += (logits.argmax(1) == y).sum()
            images += len(y)
        if (number + 1) % K:
            continue
        lr = rate(number // K)
        for settings in optimizer.param_groups:
            settings["lr"] = lr
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        on_step(number // K + 1)
    return Score(float(total) / max(images, 1), float(right) / max(images, 1), images)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[Batch], recipe: Recipe) -> Score:
    """Loss and accuracy in eval mode."""
    model.eval()
    context = autocast(recipe)
    total, right, images = 0.0, 0, 0
    for x, y in batches:
        with context():
            logits: Tensor = model(x).float()
        total += float(F.cross_entropy(logits, y, reduction="sum"))
        right += int((logits.argmax(1) == y).sum())
        images += len(y)
    return Score(total / max(images, 1), right / max(images, 1), images)

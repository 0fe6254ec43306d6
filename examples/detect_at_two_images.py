"""Fine-tune a detector at one and two images: frozen BN, GN, and BGN with renormalization.

    python examples/detect_at_two_images.py

The images are made up: clothes of Fashion-MNIST before textures, with boxes. A small single-stage
detector (a class for every cell of a map at stride 4, and the distances to the sides of the box)
is trained with BN at 16 images. Then its normalizers are frozen, or converted to GN, or to BGN
with renormalization, and it goes on with other scenes, one and two images at a time. Printed: the
loss of the first and of the last fifty steps, and AP at an overlap of 0.5 on test scenes. This
shows that training works, on a toy, and with which calls; it does not say which normalizer is
best. Minutes on a core.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn_lab import models
from bgn_lab.data.segmentation import scenes
from bgn_lab.data.segmentation.scenes import Scene
from bgn_lab.models.segmentation.heads import FPN
from bgn_lab.models.segmentation.pyramid import pyramid

STRIDE, CLASSES, WIDTH = 4, len(scenes.CLASSES) - 1, 32
INNER = 0.5  # share of a box, around its center, whose cells answer for it
Found = tuple[Tensor, Tensor, Tensor]  # boxes (n, 4), classes (n,), scores (n,)


class Detector(nn.Module):
    """For every cell: a score of each class, and the distances to the four sides of the box."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.backbone = pyramid(models.network("resnet10", norm, 1, width=16))
        self.head = FPN(self.backbone.channels, CLASSES + 4, WIDTH, norm)
        assert self.head.classify.bias is not None
        nn.init.constant_(self.head.classify.bias[:CLASSES], -3.0)  # cells without a box prevail

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.head(self.backbone(x))
        return y[:, :CLASSES], y[:, CLASSES:].clamp(-4, 4).exp() * 8


def inputs(batch: Sequence[Scene]) -> Tensor:
    return torch.stack([scene.x for scene in batch]).float() / 64 - 2


def targets(scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    """(K, h, w) of classes, (4, h, w) of distances, (h, w): where there is a box."""
    side = scenes.SIZE // STRIDE
    at = (torch.arange(side) + 0.5) * STRIDE
    y, x = torch.meshgrid(at, at, indexing="ij")
    classes, distances = torch.zeros(CLASSES, side, side), torch.ones(4, side, side)
    for (left, top, right, bottom), kind in zip(
        scene.boxes.tolist(), scene.kinds.tolist(), strict=True
    ):  # later items hide earlier ones
        cx, cy, w, h = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        inner = ((x - cx).abs() < INNER * w / 2) & ((y - cy).abs() < INNER * h / 2)
        classes[:, inner] = 0
        classes[kind - 1, inner] = 1
        own = torch.stack([x - left, y - top, right - x, bottom - y])
        distances[:, inner] = own[:, inner]
    return classes, distances, classes.sum(0) > 0


def loss_of(model: nn.Module, batch: Sequence[Scene]) -> Tensor:
    """Focal loss of the classes (Lin et al. 2017), and 1 - IoU of the boxes."""
    scores, sides = model(inputs(batch))
    classes, distances, inside = (
        torch.stack(own) for own in zip(*map(targets, batch), strict=True)
    )
    count = inside.sum().clamp(min=1)
    p = scores.sigmoid()
    focus = torch.where(classes > 0, 1 - p, p) ** 2
    entropy = F.binary_cross_entropy_with_logits(scores, classes, reduction="none")
    both = torch.minimum(sides, distances)
    overlap = (both[:, 0] + both[:, 2]) * (both[:, 1] + both[:, 3])
    areas = [(d[:, 0] + d[:, 2]) * (d[:, 1] + d[:, 3]) for d in (sides, distances)]
    iou = overlap / (areas[0] + areas[1] - overlap)
    return (focus * entropy).sum() / count + ((1 - iou) * inside).sum() / count


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """(n, m): intersection over union."""
    low = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = (high - low).clamp(min=0).prod(2)
    a, b = ((own[:, 2:] - own[:, :2]).prod(1) for own in (boxes, others))
    return both / (a[:, None] + b[None, :] - both)


@torch.no_grad()
def detect(model: nn.Module, scene: Scene, least: float = 0.05, most: float = 0.5) -> Found:
    """Boxes of cells with a score, without those that overlap a better one of their class."""
    scores, sides = model(inputs([scene]))
    scores, kinds = scores[0].sigmoid().max(0)
    rows, columns = (scores > least).nonzero(as_tuple=True)
    x, y = (columns + 0.5) * STRIDE, (rows + 0.5) * STRIDE
    left, top, right, bottom = sides[0][:, rows, columns]
    boxes = torch.stack([x - left, y - top, x + right, y + bottom], 1)
    own_scores, own_kinds = scores[rows, columns], kinds[rows, columns] + 1
    kept: list[int] = []
    for i in own_scores.argsort(descending=True).tolist():
        same = [k for k in kept if own_kinds[k] == own_kinds[i]]
        if not same or float(overlaps(boxes[i : i + 1], boxes[same]).max()) < most:
            kept.append(i)
    return boxes[kept], own_kinds[kept], own_scores[kept]


def average_precision(found: Sequence[Found], truth: Sequence[Scene], least: float = 0.5) -> float:
    """Mean over the classes of the area below precision against recall, in %."""
    areas = []
    for kind in range(1, CLASSES + 1):
        answers: list[tuple[float, bool]] = []
        total = 0
        for (boxes, kinds, scores), scene in zip(found, truth, strict=True):
            own = scene.boxes[scene.kinds == kind]
            total += len(own)
            free = torch.ones(len(own), dtype=torch.bool)
            for i in (kinds == kind).nonzero().flatten().tolist():  # the best first
                near = overlaps(boxes[i : i + 1], own)[0] * free
                hit = bool(len(own)) and float(near.max()) >= least
                if hit:
                    free[near.argmax()] = False
                answers.append((float(scores[i]), hit))
        hits = torch.tensor([hit for _, hit in sorted(answers, reverse=True)]).cumsum(0)
        precision = hits / torch.arange(1, len(hits) + 1)
        recall = hits / max(total, 1)
        best = precision.flip(0).cummax(0).values.flip(0) if len(hits) else precision
        steps = torch.diff(recall, prepend=torch.zeros(1)) if len(hits) else recall
        areas.append(float((best * steps).sum()))
    return 100 * statistics.mean(areas)


def train(
    model: nn.Module, data: Sequence[Scene], n: int, epochs: int, rate: float, seed: int = 0
) -> list[float]:
    """Train with n images at a time; the loss of every step."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], rate)
    steps = epochs * (len(data) // n)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draws, losses = torch.Generator().manual_seed(seed), []
    for _ in range(epochs):
        order = torch.randperm(len(data), generator=draws).tolist()
        for k in range(0, len(data) - n + 1, n):
            loss = loss_of(model, [data[i] for i in order[k : k + n]])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            falling.step()
            losses.append(float(loss.detach()))
    return losses


def frozen(model: nn.Module) -> nn.Module:
    return bgn.freeze(model)


def to_gn(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only weight and bias are carried over
        return bgn.convert(model, "gn")


def to_bgn(model: nn.Module) -> nn.Module:
    return bgn.convert(model, num_groups=8, renorm=True)


METHODS = {"BN, frozen": frozen, "GN": to_gn, "BGN, G = 8, renorm": to_bgn}


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Any]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pretraining", type=int, default=16, help="epochs with BN at 16 images")
    parser.add_argument("--epochs", type=int, default=3, help="of the fine-tuning")
    parser.add_argument("--tested", type=int, default=200, help="test scenes")
    options = parser.parse_args(arguments)
    every = scenes.load(None)
    half = len(every["train"]) // 2
    first, second = every["train"][:half], every["train"][half:]
    test = every["test"][: options.tested]
    torch.manual_seed(0)
    pretrained = Detector(nn.BatchNorm2d)
    train(pretrained, first, 16, options.pretraining, 3e-3)
    pretrained.eval()
    AP = average_precision([detect(pretrained, scene) for scene in test], test)
    print(f"pretrained with BN at 16 images: AP {AP:.1f}\n")
    print("| images | method | loss, first and last 50 steps | AP |\n|---|---|---|---|")
    results: dict[str, dict[str, Any]] = {"pretrained": {"AP": AP}}
    for n in (1, 2):
        for name, change in METHODS.items():
            model = change(copy.deepcopy(pretrained))
            losses = train(model, second, n, options.epochs, 5e-4 * n**0.5)
            model.eval()
            AP = average_precision([detect(model, scene) for scene in test], test)
            ends = statistics.mean(losses[:50]), statistics.mean(losses[-50:])
            results[f"{name}, {n}"] = {"AP": AP, "losses": ends}
            print(f"| {n} | {name} | {ends[0]:.2f}, {ends[1]:.2f} | {AP:.1f} |", flush=True)
    return results


if __name__ == "__main__":
    main()

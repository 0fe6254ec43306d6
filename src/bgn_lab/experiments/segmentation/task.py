"""Semantic segmentation: a class for every pixel, learned from windows of a few images at a time.

Scores are counted exactly, over all pixels of all images together. Every process of several
evaluates all images.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn.surgery.freeze import Frozen
from bgn.surgery.kinds import normalizers
from bgn_lab import models, norms
from bgn_lab.data import segmentation as data_sets
from bgn_lab.data.segmentation import windows
from bgn_lab.data.segmentation.pairs import SegmentationData, constant_iou
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.data.sources import Batch
from bgn_lab.experiments.segmentation import figure
from bgn_lab.experiments.segmentation.confusion import Scores
from bgn_lab.experiments.segmentation.evaluate import evaluate
from bgn_lab.experiments.segmentation.recipe import SegmentationRecipe
from bgn_lab.models import pretrained, segmentation
from bgn_lab.norms import Norm
from bgn_lab.recipe import Recipe
from bgn_lab.training import loop
from bgn_lab.training.loop import Learned
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.result import Result, Summary
from bgn_lab.training.task import Scoring, Task

LEARNED = 0.05
"""Share of the way from a constant answer to a perfect one that a run must exceed."""
FEWEST = 10
"""Validation images to judge a run by: each has thousands of pixels."""


class Segmentation(Task):
    """Cross-entropy of the pixels that have a class."""

    recipe: SegmentationRecipe
    data: SegmentationData

    @staticmethod
    def load(recipe: Recipe) -> SegmentationData:
        """Images and labels."""
        assert isinstance(recipe, SegmentationRecipe)
        return data_sets.load(recipe)

    def network(self) -> nn.Module:
        """A U-Net, or a head on a backbone."""
        r, data = self.recipe, self.data
        channels, classes = data.shape[0], len(data.classes)
        norm = norms.constructor(r, data.spatial)
        _, backbone = segmentation.parts(r.model)
        if not backbone:
            return segmentation.unet(norm, classes, channels, data.spatial, r.width)

        def build(norm: Norm) -> nn.Module:
            return models.network(backbone, norm, 1, channels)

        made = build(norm)
        if r.weights is not None:
            head = f"{models.head(backbone)}."
            made = pretrained.load(Path(r.weights), build, r, head, exact=False)
        return segmentation.segmenter(r.model, made, classes, norm, r.width)

    def initial_network(self) -> nn.Module:
        """The network, with the momentum of renormalization where there is one."""
        model = super().initial_network()
        for layer in model.modules():
            if getattr(layer, "renorm", None) is not None:
                layer.momentum = self.recipe.renorm_momentum  # type: ignore[assignment]
        return model

    def check(self) -> None:
        """Refuse what networks or normalizers cannot do with volumes."""
        r, data = self.recipe, self.data
        if data.spatial == 3:
            if r.model != segmentation.UNET:
                raise ValueError(
                    f"model={r.model!r} is for images, and data={r.data!r} has volumes; expected"
                    f" model={segmentation.UNET!r}"
                )
            if r.channels_last:
                raise ValueError(
                    f"channels_last=True is for images, and data={r.data!r} has volumes; expected"
                    " channels_last=False"
                )
        super().check()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Layers without pretrained weights learn faster."""
        r = self.recipe
        groups: list[dict[str, Any]] = [{"params": [], "factor": 1.0}]
        if r.weights is not None:
            groups.append({"params": [], "factor": r.head_factor})
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                groups[-1 if name.startswith("head.") else 0]["params"].append(parameter)
        return torch.optim.SGD(
            groups, r.rate, r.momentum, weight_decay=r.decay, nesterov=r.nesterov
        )

    @cached_property
    def class_weights(self) -> Tensor | None:
        """(K,): of the classes in the loss; None for equal ones."""
        if self.recipe.class_weights == "none":
            return None
        return balanced(self.data.train.counts.sum(0))

    def loss(self, network: nn.Module, batch: Batch) -> Learned:
        """The mean over the pixels of each worker, and then over the workers."""
        x, y = batch
        logits, y = network(x), y.long()
        n = self.recipe.batch_size
        workers = zip(torch.split(logits, n), torch.split(y, n), strict=True)
        losses = [self._mean(*own) for own in workers]
        known = y != IGNORED
        return torch.stack(losses).mean(), logits.movedim(1, -1)[known], y[known]

    def _mean(self, logits: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of a worker's pixels; 0 where none has a class."""
        weights = self.class_weights
        weights = None if weights is None else weights.to(logits.device)
        total = F.cross_entropy(logits, y, weights, ignore_index=IGNORED, reduction="sum")
        known = y[y != IGNORED]
        count = len(known) if weights is None else float(weights[known].sum())
        return total / max(count, 1e-12)

    def measure(
        self,
        history: list[Metrics],
        model: nn.Module,
        score: Scoring,  # noqa: ARG002
    ) -> Measured:
        """Validation images after every epoch, test images after the last."""
        r, last = self.recipe, len(history) == self.recipe.epochs - 1
        metrics = Measured()
        own: dict[str, float] = {}
        details: dict[str, Any] = {}
        if len(self.data.validation):
            found = self._scores(model, "validation")
            own["validation_iou"] = found.mean_iou
            metrics = Measured(validation_loss=found.loss, validation_accuracy=found.accuracy)
        if last and r.test:
            found = self._scores(model, "test")
            own["test_iou"] = found.mean_iou
            details["class_iou"] = dict(zip(self.data.classes, found.ious, strict=True))
            details["confusion"] = found.matrix.tolist()
            metrics = replace(
                metrics,
                test_loss=found.loss,
                test_accuracy=found.accuracy,
                test_images=len(self.data.test),
            )
        if last and r.recalibrate and (exact := self._recalibrated(model)) is not None:
            parts = ["validation"] if len(self.data.validation) else []
            for part in [*parts, *(["test"] if r.test else [])]:
                own[f"{part}_iou_recalibrated"] = self._scores(exact, part).mean_iou
        return replace(metrics, measures=own, details=details)

    def _scores(self, model: nn.Module, part: str) -> Scores:
        r = self.recipe
        window = self.data.shape[1:] if r.evaluation == "sliding" else None
        prepare = loop.Prepare(self.data, r)
        return evaluate(model, getattr(self.data, part), prepare, window, loop.autocast(r))

    def _recalibrated(self, model: nn.Module) -> nn.Module | None:
        """A copy with the statistics of all training windows of one more epoch, normalized as in
        training; None where no layer has running statistics that move."""
        r = self.recipe
        tracked = [
            layer
            for layer in normalizers(model).values()
            if getattr(layer, "running_mean", None) is not None and not isinstance(layer, Frozen)
        ]
        if not tracked:
            return None
        prepare, own = loop.Prepare(self.data, r), copy.deepcopy(model)
        steps = self.images() // r.batch_size
        inputs = (prepare(batch)[0] for batch in self.batches(r.epochs, range(steps)))
        with loop.autocast(r)():
            return bgn.recalibrate(own, inputs, progress=False)

    @property
    def judged(self) -> str:
        """Part of the data by which a run counts as converged or not."""
        return "validation" if len(self.data.validation) >= FEWEST else "train"

    def guessing(self) -> float:
        """What a constant answer reaches: mean IoU of validation images, or share of the training
        pixels."""
        counts = getattr(self.data, self.judged).counts.sum(0)
        if self.judged == "validation":
            return constant_iou(counts)
        return float(counts.max() / counts.sum())

    def floor(self) -> float:
        """A share of the way from there to 100 %."""
        return self.guessing() + LEARNED * (1 - self.guessing())

    def failure(self, history: list[Metrics]) -> str:
        """Why a run did not converge."""
        key = "validation_iou" if self.judged == "validation" else "train_accuracy"
        reached = history[-1].value(key) if history else None
        if reached is None or reached > self.floor():
            return ""
        what = "mean IoU" if key == "validation_iou" else "pixel accuracy"
        return (
            f"{what} {reached:.2%} of the {JUDGED[self.judged]} images; a constant answer reaches"
            f" {self.guessing():.2%}, and {self.floor():.2%} counts as learned"
        )

    def summary(self, history: list[Metrics]) -> Summary:
        """Scores of the last epoch."""
        last = history[-1]
        return replace(
            super().summary(history),
            measures={
                key: last.value(key) for key in KEYS if key == "test_iou" or key in last.measures
            },
            details=dict(last.details),
        )

    def examples(self, count: int) -> Batch:
        """The middle of test images, at the size of a training window."""
        test, size = self.data.test, self.data.test.crops.size
        index = torch.arange(min(count, len(test))) * len(test) // min(count, len(test))
        pairs = ((test.x[i], test.labels[i]) for i in index.tolist())
        cut = [windows.cut(x, y, windows.middle(y.shape, size), size, test.fill) for x, y in pairs]
        return torch.stack([x for x, _ in cut]), torch.stack([y for _, y in cut])

    def illustrate(self, model: nn.Module, folder: Path) -> None:
        """Some test images with their labels and the network's answers."""
        window = self.data.shape[1:] if self.recipe.evaluation == "sliding" else None
        shown = figure.answers(
            model.cpu(), self.data, loop.Prepare(self.data, self._on_cpu), window
        )
        figure.store(shown, folder)
        figure.picture(shown, self.data, norms.label(self.recipe), folder)

    @property
    def _on_cpu(self) -> SegmentationRecipe:
        return replace(self.recipe, device="cpu")

    def result_line(self, result: Result) -> str:
        """Mean IoU and pixel accuracy."""
        if result.test_accuracy is None:
            found = result.measure("validation_iou")
            return super().result_line(result) if found is None else f"validation IoU {found:.2%}"
        said = (
            f"mean IoU {result.measures['test_iou'] or 0:.2%} and pixel accuracy"
            f" {result.test_accuracy:.2%} on {result.images.test} test images"
        )
        exact = result.measure("test_iou_recalibrated")
        return said if exact is None else f"{said}; recalibrated, mean IoU {exact:.2%}"


JUDGED = {"validation": "validation", "train": "training"}
KEYS = ("test_iou", "validation_iou", "test_iou_recalibrated", "validation_iou_recalibrated")


def balanced(counts: Tensor) -> Tensor:
    """Weights of classes by the pixels of each: the median share over the own (Eigen and Fergus).

    A class without pixels has the weight of the rarest one.

    >>> balanced(torch.tensor([80, 10, 10, 0])).tolist()
    [0.125, 1.0, 1.0, 1.0]
    """
    shares = counts / counts.sum()
    present = shares[shares > 0]
    return present.median() / shares.clamp(min=float(present.min()))

"""What an experiment decides about a training run.

How a run is carried out, resumed and shared: :mod:`bgn_lab.training.run`.
"""

from __future__ import annotations

import importlib.util
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

import bgn
from bgn_lab import data as data_sets
from bgn_lab import norms, partners
from bgn_lab.data.sources import Batch, Data, Source, chance
from bgn_lab.recipe import MomentumOptions, Recipe, ScheduleOptions, SGDOptions
from bgn_lab.training import loop, schedule
from bgn_lab.training.loop import Learned, Score
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.result import Images, Layer, Result, Summary

View = Callable[[nn.Module, Batch], Batch]  # of a prepared batch, by the network as it stands
Scoring = Callable[
    [Source, View | None], tuple[Score, Score]
]  # of images, seen so: on all, on the first worker's

ENOUGH = 50  # validation images to judge a run by


class Task:
    """Classification, where an experiment does not say otherwise."""

    clip: float | None = None  # the largest norm of the gradients

    def __init__(self, recipe: Recipe, data: Data) -> None:
        self.recipe, self.data = recipe, data
        self.plan: dict[
            str, Tensor
        ] = {}  # for the epoch under way: what `begin` found out; checkpoints have it

    @staticmethod
    def load(recipe: Recipe) -> Data:
        """The images."""
        return data_sets.load(recipe)

    def network(self) -> nn.Module:
        """The network, with weights drawn from torch's generator."""
        raise NotImplementedError

    def initial_network(self) -> nn.Module:
        """The network with its first weights."""
        torch.manual_seed(self.recipe.seed)
        model = norms.resolve_groups(self.network(), self.recipe, self.data.shape)
        return norms.with_partners(model, self.recipe, self.steps())

    def build(self) -> nn.Module:
        """The same as the recipe wants it trained."""
        recipe, model = self.recipe, self.initial_network()
        if recipe.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model.to(recipe.device)

    def description(self) -> list[Layer]:
        """What each normalizer amounts to in this network: :func:`bgn.describe`."""
        if ":" in self.recipe.norm:  # a class that the library does not know
            return []
        found = bgn.describe(self.initial_network(), self.data.shape, self.recipe.batch_size)
        return [Layer(r.layer, tuple(r.shape), r.G, r.instances, r.acts_as) for r in found]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of all parameters."""
        recipe = self.recipe
        assert isinstance(recipe, MomentumOptions)
        return torch.optim.SGD(
            model.parameters(),
            recipe.rate,
            recipe.momentum,
            weight_decay=recipe.decay,
            nesterov=isinstance(recipe, SGDOptions) and recipe.nesterov,
            fused=fused(recipe),
        )

    def extra_optimizers(
        self,
        model: nn.Module,  # noqa: ARG002
    ) -> dict[str, torch.optim.Optimizer]:
        """Further optimizers that checkpoints keep, by names that begin with "optimizer".

        The task itself takes their steps.
        """
        return {}

    def begin(self, epoch: int, model: nn.Module) -> None:
        """Plan an epoch with the network as it is, where its training depends on that.

        ``plan`` is still the one of the epoch before.
        """

    def over(self) -> bool:
        """Whether, as planned, there is nothing left to learn."""
        return False

    def images(self) -> int:
        """Number of images that an epoch of training sees, as planned."""
        return len(self.data.train)

    def steps(self) -> int:
        """Optimizer steps of the whole run, if all epochs are as planned."""
        recipe = self.recipe
        return self.images() // recipe.batch_size // recipe.batches * recipe.epochs

    def batches(self, epoch: int, numbers: Sequence[int]) -> Iterator[Batch]:
        """The wanted batches of an epoch, as bytes."""
        return self.data.train.training(self.recipe.batch_size, self.recipe.seed, epoch, numbers)

    def example(self, model: nn.Module, batch: Batch) -> Batch:  # noqa: ARG002
        """What the network learns from, made from a prepared batch."""
        return batch

    def before_step(self, model: nn.Module, batch: Batch) -> None:
        """What comes before an optimizer step, given the first example of that step."""

    def supports_one_pass(self, model: nn.Module) -> bool:
        """Whether the examples of several workers may be one batch.

        So they may if the loss is a mean over the images, if a batch's example does not depend on
        the workers before it, and if every layer either treats images one by one without drawing
        random numbers or knows blocks of them. Nobody knows that of people's own classes.
        """
        if ":" in self.recipe.norm or ":" in self.recipe.model:
            return False
        return not any(
            isinstance(m, _BatchNorm) or (isinstance(m, _DropoutNd) and m.p > 0)
            for m in model.modules()
        )

    def forward(self, model: nn.Module, x: Tensor) -> Any:
        """A forward pass as in training, to be timed."""
        return model(x)

    def loss(self, network: nn.Module, batch: Batch) -> Learned:
        """Shape of an example."""
        return loop.classify(network, batch)

    def rate(self, epoch: int, step: int, steps: int) -> float:
        """The learning rate of a step of an epoch that has so many."""
        assert isinstance(self.recipe, ScheduleOptions)
        return schedule.rate(self.recipe, epoch + step / steps)

    def measure(
        self,
        history: list[Metrics],
        model: nn.Module,  # noqa: ARG002
        score: Scoring,
    ) -> Measured:
        """Metrics after an epoch: on validation images always, on test images at the end."""
        metrics = self.validation(score)
        if self.recipe.test and len(history) >= self.recipe.epochs - self.recipe.median_of:
            tested, part = score(self.data.test, None)
            metrics = metrics.with_test(tested)
            if part.images < tested.images:  # which is what the paper's figures seem to be
                metrics = replace(metrics, shard_accuracy=part.accuracy, shard_images=part.images)
        return metrics

    def validation(self, score: Scoring) -> Measured:
        """Loss and accuracy on the images that are held out, if there are any."""
        if not len(self.data.validation):
            return Measured()
        held, _ = score(self.data.validation, None)
        return Measured(validation_loss=held.loss, validation_accuracy=held.accuracy)

    @property
    def judged(self) -> str:
        """Part of the data by which a run counts as converged or not: never the test images.

        Validation images, if there are enough of them; otherwise training images.
        """
        return "validation" if len(self.data.validation) >= ENOUGH else "train"

    def guessing(self) -> float:
        """Accuracy of guessing the most frequent class of the judged images."""
        y: Tensor = getattr(self.data, self.judged).y
        return chance(y)

    def floor(self) -> float:
        """Accuracy on the judged images that a run must exceed to count as converged."""
        return floor(self.guessing(), len(getattr(self.data, self.judged)))

    def failure(self, history: list[Metrics]) -> str:
        """Why a run did not converge; empty if it did, or if there is nothing to judge by."""
        accuracy = history[-1].value(f"{self.judged}_accuracy") if history else None
        if accuracy is None or accuracy > self.floor():
            return ""
        images = {"validation": "validation", "train": "training"}[self.judged]
        return (
            f"{accuracy:.2%} of the {images} images right, guessing reaches {self.guessing():.2%}"
            f", by chance up to {self.floor():.2%}"
        )

    def summary(self, history: list[Metrics]) -> Summary:
        """Accuracies of a finished run."""
        last = history[-1]
        tested = next((m for m in reversed(history) if m.test_accuracy is not None), Measured())
        images = len(self.data.test) if tested.test_images is None else tested.test_images
        return Summary(
            test_accuracy=median(m.test_accuracy for m in history),
            shard_accuracy=median(m.shard_accuracy for m in history),
            shard_images=tested.shard_images,
            train_accuracy=last.train_accuracy,
            validation_accuracy=last.validation_accuracy,
            chance=self.data.chance,
            judged=self.judged,
            floor=self.floor(),
            classes=len(self.data.classes),
            images=Images(len(self.data.train), len(self.data.validation), images),
            image=tuple(self.data.shape),
        )

    def illustrate(self, model: nn.Module, folder: Path) -> None:
        """Draw what is worth a look, into the folder of a run that is over."""

    ends_with_network = True
    """Whether a finished run has one network to deploy."""

    def deployed(self, model: nn.Module) -> nn.Module:
        """The trained network as others run it: from prepared images to logits."""
        return model

    def examples(self, count: int) -> Batch:
        """As many images and labels as there are, spread evenly, to check a deployed network on.

        They are such as it gives its logits for: test images, as bytes.
        """
        return some(self.data.test, count)

    def result_line(self, result: Result) -> str:
        """One line on a run that converged."""
        if result.test_accuracy is None:
            return f"{self.judged} accuracy {result.measure(f'{self.judged}_accuracy'):.2%}"
        line = f"test accuracy {result.test_accuracy:.2%} on {result.images.test} images"
        if result.shard_images is not None:
            line += f" ({result.shard_accuracy:.2%} on the first worker's {result.shard_images})"
        return line

    def check(self) -> None:
        """Refuse what would fail after minutes."""
        recipe, data = self.recipe, self.data
        if self.images() < recipe.batch_size * recipe.batches:
            raise ValueError(
                f"batch_size={recipe.batch_size} times simulate_workers={recipe.simulate_workers} "
                f"times accumulate={recipe.accumulate} exceeds the {self.images()} training images"
            )
        if not len(data.test):
            raise ValueError(f"data={recipe.data!r} has no test images")
        try:
            torch.empty(0, device=recipe.device)
            known = torch.device(recipe.device).type in ("cpu", "cuda", "mps")
        except (RuntimeError, AssertionError) as error:
            raise ValueError(
                f"device={recipe.device!r} cannot be used: {str(error).splitlines()[0]}"
            ) from None
        if not known:
            raise ValueError(f"device={recipe.device!r} cannot be used; expected cpu, cuda or mps")
        if (
            recipe.channels_last
            and torch.device(recipe.device).type == "cpu"
            and (recipe.width or 8) < 8
        ):
            raise ValueError(
                f"width={recipe.width} with channels_last: torch's convolutions crash there on the "
                "CPU; expected at least 8"
            )
        if recipe.tensorboard and importlib.util.find_spec("tensorboard") is None:
            raise ValueError(
                "tensorboard=True needs the package tensorboard: pip install tensorboard"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.description()  # groups that do not fit a layer raise here
            if ":" in recipe.norm and partners.of(recipe):
                self.initial_network()  # a partner may not know people's own classes


def some(source: Source, count: int) -> Batch:
    """Images and labels of a source as bytes, spread evenly over it."""
    count = min(count, len(source))
    index = torch.arange(count) * len(source) // max(count, 1)
    batches = list(source.part(index).evaluation(loop.EVALUATION_BATCH))
    return torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])


def fused(recipe: Recipe) -> bool:
    """Whether torch has optimizers of one pass for the device."""
    return recipe.device.startswith(("cpu", "cuda"))


def floor(chance: float, images: int) -> float:
    """The accuracy that a run must exceed to count as converged.

    It is three standard errors above guessing, but at most half-way from there to 100 %.
    """
    return min(chance + 3 * math.sqrt(chance * (1 - chance) / max(images, 1)), (1 + chance) / 2)


def median(values: Iterable[float | None]) -> float | None:
    """Median of a metric over the epochs in which it was measured; None if there are none.

    >>> median([None, 0.5, 0.75, 1.0]), median([None])
    (0.75, None)
    """
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None

"""Few-shot learning: learn base classes, recognize new ones from a few images.

The paper does this on miniImageNet. A ResNet-12 with a classifier by cosines learns the base
classes. A new class gets as its weights the mean direction of the features of its few labeled
images (imprinting, Qi et al. 2018); nothing is trained anew. Accuracy is the mean over episodes:
some ways (classes), and for each of them a few shots (labeled images) and some queries.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bgn_lab import norms
from bgn_lab.data import few_shot
from bgn_lab.data.few_shot import FewShotData
from bgn_lab.data.sources import Batch, InMemory, generator
from bgn_lab.experiments.fewshot import figure
from bgn_lab.experiments.fewshot.recipe import SHOTS, FewShotRecipe
from bgn_lab.models.resnet12 import FewShotNetwork, ResNet12, imprint
from bgn_lab.recipe import Recipe
from bgn_lab.training import loop
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.result import Result, Summary
from bgn_lab.training.task import Scoring, Task, some

PICTURE, SHOWN = "episode.png", 10  # queries of each class in the picture


class FewShot(Task):
    """Classification of the base classes in training; episodes of new ones in testing."""

    recipe: FewShotRecipe
    data: FewShotData

    @staticmethod
    def load(recipe: Recipe) -> FewShotData:
        """The data with the classes divided."""
        assert isinstance(recipe, FewShotRecipe)
        return few_shot.load(recipe, recipe.classes)

    def network(self) -> nn.Module:
        """Features and classifier."""
        r, data = self.recipe, self.data
        features = ResNet12(
            norms.constructor(r), data.shape[0], r.width or 64, r.activation, not r.negative
        )
        return FewShotNetwork(features, len(data.classes))

    def images(self) -> int:
        """Number of images of an epoch."""
        r = self.recipe
        return (
            len(self.data.train)
            if r.iterations is None
            else r.iterations * r.batch_size * r.batches
        )

    def batches(self, epoch: int, numbers: Sequence[int]) -> Iterator[Batch]:
        """Batches of one pass, or of images drawn with replacement."""
        r, train = self.recipe, self.data.train
        if r.iterations is not None:
            assert isinstance(train, InMemory)
            train = replace(train, drawn=self.images())
        return train.training(r.batch_size, r.seed, epoch, numbers)

    def measure(self, history: list[Metrics], model: nn.Module, score: Scoring) -> Measured:
        """Accuracy over episodes of the new classes and of the classes for choosing.

        The new classes are tested in the last epoch, and whenever episodes of the classes for
        choosing go better than before.
        """
        metrics = self.validation(score)
        own: dict[str, float] = {}
        episodes: dict[str, list[float]] = {}
        before = max((m.measures.get("choice_1", -1.0) for m in history), default=-1.0)
        if self.data.choice is not None:
            own["choice_1"] = statistics.mean(self._episodes(model, self.data.choice)[1])
        last = len(history) == self.recipe.epochs - 1
        if self.recipe.test and (last or own.get("choice_1", -1.0) > before):
            for shots, accuracies in self._episodes(model, self.data.test).items():
                own[f"test_{shots}"] = statistics.mean(accuracies)
                if last:
                    episodes[f"episodes_{shots}"] = accuracies
        return replace(metrics, measures=own, details=episodes)

    def summary(self, history: list[Metrics]) -> Summary:
        """Result of the last epoch, and of the one that was best on the classes for choosing."""
        last = history[-1]
        best = max(
            (m for m in history if {"choice_1", "test_1"} <= m.measures.keys()),
            key=lambda m: m.measures["choice_1"],
            default=last,
        )
        found = {f"test_{shots}": last.measures.get(f"test_{shots}") for shots in SHOTS}
        chosen = {f"best_test_{shots}": best.measures.get(f"test_{shots}") for shots in SHOTS}
        return replace(
            super().summary(history),
            test_accuracy=found["test_1"],
            episodes={f"test_{shots}": last.details.get(f"episodes_{shots}") for shots in SHOTS},
            measures={**found, **chosen, "best_epoch": best.epoch},
        )

    def result_line(self, result: Result) -> str:
        """Means over episodes, with 95 % intervals."""
        if result.measures["test_1"] is None:
            return super().result_line(result)
        r = self.recipe
        found = [
            f"{shots}-shot {interval(result.episodes[f'test_{shots}'] or ())}" for shots in SHOTS
        ]
        how = ", transductive" if r.transductive else ""
        return f"{', '.join(found)} ({r.classes}-way{how}, {r.episodes} episodes, 95 % intervals)"

    def examples(self, count: int) -> Batch:
        """Of the base classes, which logits are for; new classes have episodes."""
        data = self.data
        return some(data.validation if len(data.validation) else data.train, count)

    def check(self) -> None:
        """Refuse what would fail after minutes."""
        super().check()
        r = self.recipe
        for what, source in {"new": self.data.test, "choice": self.data.choice}.items():
            if (
                source is not None
                and (least := int(source.y.bincount().min())) < max(SHOTS) + r.queries
            ):
                raise ValueError(
                    f"queries={r.queries} and {max(SHOTS)} shots exceed the {least} images of "
                    f"a {what} class"
                )

    @torch.no_grad()
    def illustrate(self, model: nn.Module, folder: Path) -> None:
        """The first episode with one labeled image of each class."""
        r, data, prepare = self.recipe, self.data, loop.Prepare(self.data, self.recipe)
        assert isinstance(model, FewShotNetwork)
        if not r.test:
            return
        index = next(draw(data.test.y, r.classes, 1 + r.queries, 1))
        alone = features(model, data.test.part(index.flatten()), prepare).view(*index.shape, -1)
        f = _together(model, prepare, data.test, index) if r.transductive else alone
        names = [data.new_classes[k] for k in data.test.y[index[:, 0]].tolist()]
        shown = min(r.queries, SHOWN)
        train = data.train
        assert isinstance(train, InMemory)
        figure.picture(
            figure.choose(train.x, train.y, data.classes), data.test.x[index[:, :1]],
            data.test.x[index[:, 1 : 1 + shown]], predict(f, 1)[:, :shown], names,
            f"One episode, {r.classes}-way 1-shot, {norms.label(r)}", folder / PICTURE,
        )  # fmt: skip

    @torch.no_grad()
    def _episodes(self, model: nn.Module, source: InMemory) -> dict[int, list[float]]:
        """The accuracy of every episode, by shots."""
        r, prepare = self.recipe, loop.Prepare(self.data, self.recipe)
        network = getattr(model, "_orig_mod", model)  # of a compiled one
        assert isinstance(network, FewShotNetwork)
        alone = None if r.transductive else features(network, source, prepare)
        found: dict[int, list[float]] = {shots: [] for shots in SHOTS}
        for shots, own in found.items():
            for index in draw(
                source.y, r.classes, shots + r.queries, r.episodes
            ):  # (ways, shots + queries)
                f = (
                    alone[index]
                    if alone is not None
                    else _together(network, prepare, source, index)
                )
                right = predict(f, shots) == torch.arange(r.classes)[:, None]
                own.append(round(float(right.float().mean()), 6))
        return found


def interval(accuracies: Sequence[float]) -> str:
    """Mean and half-width of the 95 % interval, in percent.

    >>> interval([0.5, 0.6, 0.7, 0.6])
    '60.0 ± 8.0'
    """
    return f"{100 * statistics.mean(accuracies):.1f} ± {100 * (half_width(accuracies) or 0):.1f}"


def half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of a mean; None for a single value."""
    return 1.96 * statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


@torch.no_grad()
def features(network: FewShotNetwork, source: InMemory, prepare: loop.Prepare) -> Tensor:
    """(M, K), in eval mode."""
    network.eval()
    batches = map(prepare, source.evaluation(loop.EVALUATION_BATCH))
    return torch.cat([network.features(x).float().cpu() for x, _ in batches])


def draw(y: Tensor, ways: int, images: int, episodes: int) -> Iterator[Tensor]:
    """Episodes as (ways, images) indices, the same at every call."""
    draws = generator(ways, images)
    own = [torch.nonzero(y == k).flatten() for k in range(int(y.max()) + 1)]
    for _ in range(episodes):
        classes = torch.randperm(len(own), generator=draws)[:ways].tolist()
        yield torch.stack(
            [own[k][torch.randperm(len(own[k]), generator=draws)[:images]] for k in classes]
        )


def predict(f: Tensor, shots: int) -> Tensor:
    """Classify queries: (ways, shots + queries, K) features -> (ways, queries) classes.

    The class is the one whose imprinted weights are nearest to the query.
    """
    ways, _, K = f.shape
    support, queries = f[:, :shots], f[:, shots:]
    weights = imprint(support.reshape(-1, K), torch.arange(ways).repeat_interleave(shots), ways)
    return F.linear(F.normalize(queries, dim=-1), weights).argmax(-1)


def _together(
    network: FewShotNetwork, prepare: loop.Prepare, source: InMemory, index: Tensor
) -> Tensor:
    """Features with the statistics of the episode itself; running ones stay as they were."""
    state = {name: value.clone() for name, value in network.named_buffers()}
    network.train()
    x, _ = prepare((source.x[index.flatten()], source.y[index.flatten()]))
    found: Tensor = network.features(x).float().cpu()
    for name, value in network.named_buffers():
        value.copy_(state[name])
    network.eval()
    return found.view(*index.shape, -1)

"""Unsupervised domain adaptation with contrastive adaptation (CAN, Kang et al. 2019).

The paper does this on Office-31. A loop clusters the target's images, starting from the centers of
the source's classes, and takes the clusters for labels. Then the network learns from the source's
labels and, class by class, to make both domains alike and classes different. Normalizers have a
copy for each domain. Loops end when the clusters no longer change.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn_lab import models, norms
from bgn_lab.data import aware, domains
from bgn_lab.data.aware import EACH
from bgn_lab.data.domains import DomainData
from bgn_lab.data.sources import Batch, InMemory, generator
from bgn_lab.experiments.adaptation import clustering, figure
from bgn_lab.experiments.adaptation.discrepancy import cdd
from bgn_lab.experiments.adaptation.network import SOURCE, TARGET, Adapting, begin_anew
from bgn_lab.experiments.adaptation.recipe import AdaptationRecipe
from bgn_lab.models import pretrained
from bgn_lab.norms import Norm
from bgn_lab.recipe import Recipe
from bgn_lab.training import loop
from bgn_lab.training.loop import Learned
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.result import Images, Result, Summary
from bgn_lab.training.task import Scoring, Task

PICTURE = "features.png"
STILL = 0.001  # shift, gap and share of changed labels below which loops end
SPLIT = 10_000  # keeps apart the random numbers of clustering and of training


class Adaptation(Task):
    """Classification of the source, with the target drawn after it."""

    recipe: AdaptationRecipe
    data: DomainData

    @staticmethod
    def load(recipe: Recipe) -> DomainData:
        """Two domains."""
        assert isinstance(recipe, AdaptationRecipe)
        return domains.load(recipe, recipe.task)

    def network(self) -> nn.Module:
        """Pretrained, if there are weights."""
        r, data = self.recipe, self.data

        def build(norm: Norm) -> nn.Module:
            return models.network(
                r.model, norm, len(data.classes), data.shape[0], r.width, r.stride
            )

        head = models.head(r.model)
        if r.weights is None:
            backbone = build(norms.constructor(r))
        else:
            backbone = pretrained.load(Path(r.weights), build, r, f"{head}.")
        setattr(backbone, head, nn.Identity())
        return Adapting(backbone, len(data.classes), fixed=r.weights is not None)

    def build(self) -> nn.Module:
        """The network, with normalizers per domain."""
        return bgn.convert_domains(super().build(), (SOURCE, TARGET))

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The last layer learns ten times as fast."""
        r = self.recipe
        last = [p for name, p in model.named_parameters() if name.startswith("head.")]
        rest = [p for name, p in model.named_parameters() if not name.startswith("head.")]
        groups = [{"params": rest, "factor": 1.0}, {"params": last, "factor": 10.0}]
        if r.optimizer == "adam":
            return torch.optim.Adam(groups, r.lr, weight_decay=r.decay)
        return torch.optim.SGD(groups, r.lr, r.momentum, weight_decay=r.decay, nesterov=r.nesterov)

    def begin(self, epoch: int, model: nn.Module) -> None:
        """Cluster the target, once there is something to begin from."""
        r, before = self.recipe, self.plan
        done = int(before["done"]) + int(before["steps"]) if before else 0
        if not r.adapt or epoch < r.warm:
            steps = len(self.data.train) // r.batch_size
            self.plan = {
                "done": torch.tensor(done),
                "steps": torch.tensor(min(steps, r.iterations or steps)),
            }
            return
        if epoch == r.warm:
            begin_anew(model)
        K = len(self.data.classes)
        start = clustering.centers(
            self._features(model, self.data.train, SOURCE, epoch), self.data.train.y, K
        )
        found = clustering.cluster(self._features(model, self.data.test, TARGET, epoch), start)
        moved = [1.0, clustering.shift(found.centers, start), 1.0]
        if "labels" in before:
            moved[0] = clustering.shift(found.centers, before["centers"])
            moved[2] = float((found.labels != before["labels"]).float().mean())
        kept = clustering.trusted(found, r.trust_limit, EACH)
        self.plan = {
            "done": torch.tensor(done), "labels": found.labels, "kept": kept,
            "centers": found.centers, "moved": torch.tensor(moved),
        }  # fmt: skip
        steps = (
            aware.steps(self.data.train.y, found.labels, kept, r.ways)
            or len(self.data.train) // r.batch_size
        )
        self.plan["steps"] = torch.tensor(min(steps, r.iterations or steps))

    @torch.no_grad()
    def _features(self, model: nn.Module, source: InMemory, domain: str, epoch: int) -> Tensor:
        """(M, K), in eval mode, of images as training sees them: cut and flipped at random."""
        draws, prepare = (
            generator(self.recipe.seed, SPLIT + epoch, domain == TARGET),
            loop.Prepare(self.data, self.recipe),
        )
        model.eval()
        with bgn.domain(model, domain), loop.autocast(self.recipe)():
            pieces = torch.split(torch.arange(len(source)), loop.EVALUATION_BATCH)
            found = [
                model(prepare(source.augmented(piece, draws))[0], both=True)[0].float().cpu()
                for piece in pieces
            ]
        return torch.cat(found)

    def over(self) -> bool:
        """Whether nothing moves any more: shift, gap and changed labels; or the gap alone."""
        if "moved" not in self.plan:
            return False
        still = self.plan["moved"] < STILL
        return bool(still[1] if self.recipe.stop == "gap" else still.all())

    def images(self) -> int:
        """Number of images with labels in a loop."""
        return (
            int(self.plan["steps"]) * self.recipe.batch_size if self.plan else len(self.data.train)
        )

    def batches(self, epoch: int, numbers: Sequence[int]) -> Iterator[Batch]:
        """Batches of an epoch: labeled images of the source, then images of both domains by class.

        The target's images have the labels of their clusters.
        """
        r, (ours, theirs) = self.recipe, (self.data.train, self.data.test)
        draws = generator(r.seed, epoch)
        labels = self.plan.get("labels", torch.zeros_like(theirs.y))
        some = aware.stream(torch.arange(len(ours)), r.batch_size, draws)
        pairs = aware.pairs(
            ours.y,
            labels,
            self.plan.get("kept", torch.zeros_like(labels, dtype=torch.bool)),
            r.ways,
            draws,
        )
        wanted = frozenset(numbers)
        for number, index, (own, other) in zip(
            range(int(self.plan["steps"])), some, pairs, strict=False
        ):
            if number not in wanted:
                continue
            own_draws = generator(r.seed, epoch, number)
            x, y = ours.augmented(torch.cat([index, own]), own_draws)
            new, _ = theirs.augmented(other, own_draws)
            yield torch.cat([x, new]), torch.cat([y, labels[other]])

    def loss(self, network: nn.Module, batch: Batch) -> Learned:
        """Cross-entropy on the source, and the discrepancy of features and of probabilities."""
        r, (x, y) = self.recipe, batch
        n = (len(x) - r.batch_size) // 2  # images of each domain, by classes
        parts = [(SOURCE, r.batch_size), *([(SOURCE, n), (TARGET, n)] if n else [])]
        with bgn.domain(network, parts):
            found, logits = network(x, both=True)
        labeled = logits[: r.batch_size], y[: r.batch_size]
        loss = F.cross_entropy(*labeled)
        if n:
            for values in (found, logits.softmax(1)):
                ours, theirs = values[r.batch_size :].float().view(2, n // EACH, EACH, -1)
                loss = loss + r.alpha * cdd(ours, theirs, len(self.data.classes))
        return loss, *labeled

    def forward(self, model: nn.Module, x: Tensor) -> Any:
        """A forward pass of the source."""
        with bgn.domain(model, SOURCE):
            return model(x)

    def deployed(self, model: nn.Module) -> nn.Module:
        """With the target's normalizers."""
        return bgn.keep_domain(model, TARGET)

    def supports_one_pass(self, model: nn.Module) -> bool:  # noqa: ARG002
        """The discrepancy is no mean over the images."""
        return False

    def rate(self, epoch: int, step: int, steps: int) -> float:
        """The rate by steps since the beginning, or by loops."""
        if self.recipe.schedule == "inverse":
            return self.recipe.lr / math.pow(1 + 0.001 * (int(self.plan["done"]) + step), 0.75)
        return super().rate(epoch, step, steps)

    def measure(
        self,
        history: list[Metrics],  # noqa: ARG002
        model: nn.Module,
        score: Scoring,
    ) -> Measured:
        """The target, after every loop, because any may be the last."""
        adapting = "labels" in self.plan
        metrics = Measured()
        own: dict[str, float] = {"steps": int(self.plan["steps"])}
        if self.recipe.test:
            with bgn.domain(model, TARGET if adapting else SOURCE):
                found, _ = score(self.data.test, None)
            metrics = metrics.with_test(found)
        if adapting:
            kept = self.plan["kept"]
            own |= dict(zip(("shift", "gap", "changed"), self.plan["moved"].tolist(), strict=True))
            own |= {
                "kept": int(kept.sum()),
                "kept_classes": len(torch.unique(self.plan["labels"][kept])),
            }
        return replace(metrics, measures=own)

    def summary(self, history: list[Metrics]) -> Summary:
        """Result of the last loop."""
        return replace(
            super().summary(history[-1:]),
            images=Images(len(self.data.train), 0, len(self.data.test)),
            source=self.data.source,
            target=self.data.target,
        )

    def result_line(self, result: Result) -> str:
        """Accuracy on the target."""
        if result.test_accuracy is None:
            return super().result_line(result)
        how = (
            f"adapted from {self.data.source}"
            if self.recipe.adapt
            else f"from {self.data.source} alone"
        )
        images = result.images.test
        reached = f"{result.test_accuracy:.2%} of the {images} images of {self.data.target}"
        return f"{reached}, {how} in {result.epochs} loops"

    def illustrate(self, model: nn.Module, folder: Path) -> None:
        """Both domains before and after."""
        shown = {"before": self.build(), "after": model.cpu()}
        target = TARGET if self.recipe.adapt else SOURCE
        sets = self.data.train, self.data.test
        some = figure.choose((sets[0].y, sets[1].y))
        ours, theirs = (own.part(index) for own, index in zip(sets, some, strict=True))
        found = {
            when: (self._features(own, ours, SOURCE, 0), self._features(own, theirs, target, 0))
            for when, own in shown.items()
        }
        K = len(self.data.classes)
        few = "" if K <= figure.CLASSES else f"; {figure.CLASSES} of {K} classes"
        title = f"{self.data.source} to {self.data.target}, {norms.label(self.recipe)}{few}"
        figure.picture(
            found, (ours.y, theirs.y), (self.data.source, self.data.target), title, folder / PICTURE
        )

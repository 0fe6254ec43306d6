"""A training run that can be stopped and resumed at any step, in one process or several.

The weights come from the seed; order and augmentation of an epoch from the seed and the epoch. So a
run that was killed and resumed from its checkpoint ends with the same bits, on the CPU, as one that
was not.
"""

from __future__ import annotations

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import astuple, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from bgn_lab.data.sources import Batch, Source, mixed, seed, share
from bgn_lab.system import files, reading, signals
from bgn_lab.system.signals import Interrupted
from bgn_lab.training import checkpoint, loop
from bgn_lab.training import record as records
from bgn_lab.training.loop import Score
from bgn_lab.training.metrics import Measured, Metrics
from bgn_lab.training.record import Record
from bgn_lab.training.result import FINISHED, NOT_CONVERGED, Layer, Result
from bgn_lab.training.task import Task, View
from bgn_lab.training.workers import Workers, workers_per_pass

WEIGHTS = "model.safetensors"


@dataclass
class Watcher:
    """Callbacks for a run's progress. ``step`` may raise ``bgn_lab.system.signals.Interrupted``."""

    begin: Callable[[int, int], None] = lambda epochs, steps: None  # noqa: ARG005
    step: Callable[[int, int], None] = lambda epoch, step: None  # noqa: ARG005
    epoch: Callable[[Metrics], None] = lambda metrics: None  # noqa: ARG005


def run(
    task: Task, folder: Path, watcher: Watcher | None = None, workers: Workers | None = None
) -> Result:
    """Train in a folder of its own, or resume there; the result, at once if there is one already.

    With several processes all call this; the first one alone reads and writes the folder.
    """
    recipe, data = task.recipe, task.data
    workers = workers or Workers(recipe.simulate_workers)
    task.check()
    workers.check_same("images", data.fingerprint)
    with Record(folder, recipe) if workers.is_first else nullcontext() as record:
        done = None
        if record is not None:
            records.check_data(folder, data)
            done = record.result() if is_finished(folder) else None
        done = workers.broadcast(done)
        if done is not None:
            return done
        if record is not None:
            record.begin(data)
        training = _Training(task, folder, record, watcher or Watcher(), workers)
        with loop.convolutions(training.onednn):
            return training.run()


def is_finished(folder: Path) -> bool:
    """Whether nothing is left to do for the run in a folder, its pictures included."""
    return (folder / records.RESULT).exists() and not (folder / checkpoint.NAME).exists()


class _Training:
    """A run in progress."""

    def __init__(
        self, task: Task, folder: Path, record: Record | None, watcher: Watcher, workers: Workers
    ) -> None:
        self.task, self.recipe, self.data, self.record, self.watcher, self.workers = (
            task, task.recipe, task.data, record, watcher, workers,
        )  # fmt: skip
        recipe = self.recipe
        self.folder, self.path = folder, folder / checkpoint.NAME
        self.normalizers = task.description()  # now: at the end its files may be gone
        self.model = task.build()
        self.optimizer = task.optimizer(self.model)
        self.optimizers = {"optimizer": self.optimizer, **task.extra_optimizers(self.model)}
        self.scaler = torch.amp.GradScaler(enabled=recipe.amp and recipe.device.startswith("cuda"))
        self.progress = self._restore()
        self.history = workers.broadcast(
            [] if record is None else record.rewind(self.progress.epoch)
        )
        compiled = torch.compile(self.model) if recipe.compile else self.model
        self.compiled: nn.Module = compiled  # type: ignore[assignment]
        self.network = workers.wrap(self.compiled)
        self.prepare = loop.Prepare(task.data, recipe)
        self.per_pass = 1  # workers
        if task.supports_one_pass(self.model):
            self.per_pass = workers_per_pass(recipe, task.data.shape, workers.per_process)
        self.onednn = workers.broadcast(
            record is not None and record.choose("onednn", self._onednn_is_faster)
        )
        task.plan = self.progress.plan
        self.saved, self.saves = time.monotonic(), 0

    def _onednn_is_faster(self) -> bool:
        shape = (self.per_pass * self.recipe.batch_size, *self.data.shape)
        return loop.onednn_is_faster(self.model, self.recipe, shape, self.task.forward)

    def _restore(self) -> checkpoint.Progress:
        content = self.workers.broadcast(
            reading.read_bytes(self.path) if self.workers.is_first and self.path.exists() else None
        )
        if content is None:
            return checkpoint.Progress()
        progress = checkpoint.restore(content, self.path, self.recipe, self.model, self.optimizers)
        if progress.scaler:
            self.scaler.load_state_dict(progress.scaler)
        return progress

    def run(self) -> Result:
        """Train for the remaining epochs; the result."""
        recipe = self.recipe
        # a damaged image shall not turn up after days; those for training do in the first epoch
        if not self.history:
            for source in (self.data.validation, self.data.test):
                share(source, self.workers.rank, self.workers.processes).check()
        board = _board(self.folder) if recipe.tensorboard and self.record is not None else None
        for epoch in range(self.progress.epoch, recipe.epochs):
            if _trouble(self.history) or not self._begin(epoch):
                break
            metrics = self._epoch(epoch)
            if board is not None:
                for name, value in metrics.to_json().items():
                    if isinstance(value, float):
                        board.add_scalar(name, value, epoch + 1)
                board.flush()
            self.watcher.epoch(metrics)
        if board is not None:
            board.close()
        result = _result(
            self.task, self.model, self.history, self.progress.seconds, self.normalizers
        )
        if self.record is None:
            return result
        known = self.record.result()  # then only the pictures are missing
        if known is None:
            weights = save(checkpoint.separate(self.model.state_dict()))
            files.write(self.folder / WEIGHTS, weights)
            known = replace(result, weights_sha256=hashlib.sha256(weights).hexdigest())
            self.record.finish(known)
        self._illustrate()
        return known

    def _illustrate(self) -> None:
        """Draw the task's pictures. The checkpoint stays until that worked, to draw them later."""
        path = self.folder / records.WARNINGS
        try:
            self.task.illustrate(self.model, self.folder)
        except Interrupted:
            raise
        except Exception as error:  # whatever it is, it must not cost the result
            reason = (
                f"the pictures of {self.folder} could not be drawn "
                f"({type(error).__name__}: {error}); the result is kept. "
                "Run the same command to draw them again."
            )
            files.write(path, reason + "\n")
            warnings.warn(reason, stacklevel=2)
        else:
            path.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def _begin(self, epoch: int) -> bool:
        """Plan an epoch, unless it has begun; whether there is something to do."""
        if not self.progress.step:
            self.task.begin(epoch, self.compiled)
            self.progress.plan = self.task.plan
        self.steps = self.task.images() // self.recipe.batch_size // self.recipe.batches
        self.watcher.begin(self.recipe.epochs, self.steps)
        return not self.task.over()

    def _epoch(self, epoch: int) -> Metrics:
        recipe, workers, begun = self.recipe, self.workers, self.progress
        begin = time.perf_counter() - begun.spent
        with signals.defer_signals():
            trained = self._train(epoch, begin)
            long = workers.broadcast(
                time.monotonic() - self.saved > 60
            )  # it may take long until all is tested
            if long or workers.sum(signals.requested()) != (0,):
                self._save(
                    replace(
                        begun, step=self.steps, score=trained, spent=time.perf_counter() - begin
                    )
                )
        seconds = time.perf_counter() - begin
        measured = Measured()
        if math.isfinite(trained.loss):
            workers.broadcast_buffers(self.model)
            measured = self.task.measure(self.history, self.compiled, self._score)
        metrics = Metrics(
            **vars(measured),
            epoch=epoch + 1,
            lr=self.optimizer.param_groups[0]["lr"],
            seconds=seconds,
            images_per_second=self.steps * recipe.batch_size * recipe.batches / seconds,
            train_loss=trained.loss,
            train_accuracy=trained.accuracy,
        )
        with signals.defer_signals():
            self.history.append(metrics)
            if self.record is not None:
                self.record.add(metrics)
            self._save(
                checkpoint.Progress(
                    epoch + 1,
                    seconds=begun.seconds + time.perf_counter() - begin,
                    plan=self.task.plan,
                )
            )
        return metrics

    def _train(self, epoch: int, begin: float) -> Score:
        recipe, workers, begun = self.recipe, self.workers, self.progress
        batches = workers.batches(begun.step * recipe.batches, self.steps * recipe.batches)

        def after(number: int, score: Callable[[], Score]) -> None:
            step, wish = begun.step + number, signals.requested()
            try:
                self.watcher.step(epoch, step)
            except Interrupted as interrupted:
                wish = interrupted.code
            late = workers.is_first and time.monotonic() - self.saved > 60 * recipe.save_every
            stop, save = workers.delayed_max(wish, self.saves + 1 if late else 0)
            if (
                stop or save == self.saves + 1
            ):  # a wish from before the last checkpoint is fulfilled
                self._save(
                    replace(
                        begun,
                        step=step,
                        score=self._joined(score()),
                        spent=time.perf_counter() - begin,
                    )
                )
            if stop:
                raise Interrupted(stop)

        trained = loop.train(
            self.network, self.optimizer, self._batches(epoch, batches), recipe, self.task.loss,
            lambda number: self.task.rate(epoch, begun.step + number, self.steps), self.scaler,
            after, workers, begun.score if workers.is_first else None, self.task.clip,
            lambda batch: self.task.before_step(self.compiled, batch), self.per_pass,
        )  # fmt: skip
        return self._joined(trained)

    def _batches(self, epoch: int, numbers: list[int]) -> Iterator[Batch]:
        """Examples, of as many workers together as one pass has."""
        numbered = zip(numbers, self.task.batches(epoch, numbers), strict=True)
        while found := list(islice(numbered, self.per_pass)):
            # one transfer and one normalization of pixels, whatever the number of workers
            x, y = self.prepare(_concatenated([batch for _, batch in found]))
            examples = []
            for (number, _), *own in zip(
                found, x.chunk(len(found)), y.chunk(len(found)), strict=True
            ):
                # for whatever in a network or an attack draws numbers
                seed(mixed(self.recipe.seed, epoch, number))
                examples.append(self.task.example(self.compiled, (own[0], own[1])))
            yield _concatenated(examples)

    def _score(self, source: Source, view: View | None) -> tuple[Score, Score]:
        """On all images, seen as they are or so, and on those of this process' first worker."""
        own = [
            loop.evaluate(
                self.compiled,
                map(self.prepare, part.evaluation(loop.EVALUATION_BATCH)),
                self.recipe,
                view,
            )
            for part in (share(source, worker, self.workers.count) for worker in self.workers.local)
        ]
        return self._joined(*own), own[0]

    def _joined(self, *scores: Score) -> Score:
        """Over all processes."""
        total, right, images = self.workers.sum(
            *(sum(column) for column in zip(*map(astuple, scores), strict=True))
        )
        return Score(total, int(right), int(images))

    def _save(self, progress: checkpoint.Progress) -> None:
        progress.scaler = self.scaler.state_dict() if self.scaler.is_enabled() else None
        if self.record is not None:
            checkpoint.store(self.path, self.recipe, self.model, self.optimizers, progress)
        self.workers.broadcast(None)  # nobody leaves before it is written
        self.progress, self.saved, self.saves = progress, time.monotonic(), self.saves + 1


def _concatenated(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    return x, y


def _trouble(history: list[Metrics]) -> str:
    """Why there is no use in going on: a loss of the last epoch that is not a finite number."""
    lost = history[-1].not_finite if history else []
    return f"{' and '.join(lost)} of epoch {history[-1].epoch} not finite" if lost else ""


def _result(
    task: Task,
    model: nn.Module,
    history: list[Metrics],
    seconds: float,
    normalizers: Iterable[Layer] = (),
) -> Result:
    found, trouble = task.summary(history), _trouble(history) or task.failure(history)
    return Result(
        **vars(found),
        status=NOT_CONVERGED if trouble else FINISHED,
        reason=trouble,
        epochs=len(history),
        seconds=seconds,
        parameters=sum(p.numel() for p in model.parameters()),
        layers=tuple(normalizers),
    )


def _board(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard")

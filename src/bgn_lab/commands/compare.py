"""``bgn compare``: every normaliser at every batch size, side by side."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from bgn import checks
from bgn.factory import NAMES
from bgn_lab import experiments, norms, paper
from bgn_lab.commands.run import PRESETS
from bgn_lab.data.domains import PLAIN, TEXTURED
from bgn_lab.engines import local
from bgn_lab.experiments.adaptation.task import AdaptationRecipe
from bgn_lab.recipe import Damaged, Recipe
from bgn_lab.report import text
from bgn_lab.report.collect import Run, read
from bgn_lab.report.comparison import compare, named
from bgn_lab.report.write import check_out, write
from bgn_lab.system import files

RUNS = "runs"


@dataclass(frozen=True)
class Compare:
    """Train a network with each normaliser at each batch size and compare the accuracies.

    Runs go side by side, one per core. Ctrl-C keeps what is done; the same command goes on from there. Learning rates follow the
    paper's rules; nothing is tuned on test images. `bgn run EXPERIMENT --help` explains what an experiment does.
    """

    experiment: str = "classification"
    """classification, adversarial, fewshot, adaptation or nas-train"""
    preset: str = "laptop"
    """where options are not given: laptop (minutes for each run), or another of `bgn run EXPERIMENT`, such as paper"""
    data: str | None = None
    """fashion-mnist (the preset's, as a rule; a part ships with the package), cifar10, imagenet; or the path of a folder of class
    folders or of an .npz"""
    root: Path | None = None
    """where the data is; for fashion-mnist not needed, for cifar10 the cache of `bgn data get` unless given"""
    model: str | None = None
    """resnet8 14 20 32 44 56 110 (small images) or resnet10 18 34 50 101 (as torchvision's); wrn-DEPTH-WIDTH (adversarial)"""
    width: int | None = None
    """channels of the first stage; by default 16 for small images, 64 for large ones"""
    stride: int | None = None
    """of the first convolution; by default 1 for small images, 2 for large ones and for the data that ships with the package"""
    weights: str | None = None
    """of adaptation: pretrained weights, a file or the folder of a run; {norm} in it stands for the name of the normaliser"""
    tasks: tuple[str, ...] = ()
    """of adaptation: pairs of domains, one column each; by default the paper's six, of fashion-mnist plain-textured"""
    norms: tuple[str, ...] = NAMES
    """bn in ln gn pn gbgn bgn"""
    batch_sizes: tuple[int, ...] = ()
    """images that are normalised together; by default 2 8 32 for classification, else the experiment's own"""
    groups: tuple[str, ...] = ()
    """G of BGN, one row each: numbers, or paper for the paper's G; by default paper, and 8 too for classification"""
    instances: tuple[int, ...] = ()
    """further rows of BGN: in each layer as many groups of whole channels as leave so many values per statistic"""
    epochs: int | None = None
    """passes over the training images; by default 2 for classification, else the preset's"""
    seeds: int = 2
    """runs of each kind, with seeds 0, 1, ..."""
    lr: float | None = None
    """learning rate; for classification that at 32 images, scaled in proportion to the batch size"""
    limit: int | None = None
    """use at most so many training images; by default all, but 3600 of the data that ships with the package"""
    image_size: int | None = None
    """pixels to which images of folders are cut; by default 224"""
    jobs: int | None = None
    """runs side by side; by default one per core on the CPU, one on other devices"""
    decoders: int = 2
    """processes that decode images of folders, for each job"""
    damaged: Damaged = "refuse"
    """what to do with image files that cannot be read: refuse to go on, or skip them"""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto is cuda where there is one, else cpu"""
    amp: bool = False
    """mixed precision"""
    compile: bool = False
    """torch.compile the networks"""
    channels_last: bool | None = None
    """channels_last memory format; by default for adversarial, fewshot and nas-train, where it takes less time on the CPU"""
    out: Path = Path("runs/compare")
    """folder for results.json, table.md, pictures, report.html and the runs"""

    def recipes(self) -> list[Recipe]:
        """All runs, those of the first seed first, so that an early table is a whole one."""
        for norm in self.norms:
            checks.one_of("norms", norm, NAMES)
        if not self.norms:
            raise ValueError("norms is empty; expected at least one")
        checks.positive_int("seeds", self.seeds)
        base = self._base()
        plain = self.experiment == "classification"
        rows_of_bgn = [(groups, None) for groups in self._groups()] + [
            (None, least) for least in dict.fromkeys(self.instances)
        ]
        sizes = dict.fromkeys(self.batch_sizes or ((2, 8, 32) if plain else (base.batch_size,)))
        return [
            replace(
                base,
                norm=norm,
                groups=groups,
                instances=instances,
                batch_size=size,
                seed=seed,
                **self._place(place, norm),
            )
            for seed, size, place in product(range(self.seeds), sizes, self._places(base))
            for norm in dict.fromkeys(self.norms)
            for groups, instances in (rows_of_bgn if norm == "bgn" else ((None, None),))
        ]

    def _places(self, base: Recipe) -> list[dict[str, Any]]:
        """Tasks of adaptation, each with and without."""
        if not isinstance(base, AdaptationRecipe):
            if self.tasks or self.weights:
                raise ValueError(
                    f"tasks and weights have no meaning for experiment={self.experiment!r}; expected none"
                )
            return [{}]
        usual = (
            (f"{PLAIN}-{TEXTURED}",)
            if base.data == "fashion-mnist"
            else tuple(paper.ADAPTATION_GROUPS)
        )
        return [
            {"task": task, "adapt": adapt}
            for task in self.tasks or usual
            for adapt in (False, True)
        ]

    def _place(self, place: dict[str, Any], norm: str) -> dict[str, Any]:
        return (
            place
            if self.weights is None
            else {**place, "weights": self.weights.replace("{norm}", norm)}
        )

    def _base(self) -> Recipe:
        """What the runs have in common: the preset's, and what is given."""
        checks.one_of(
            "experiment",
            self.experiment,
            [name for name in experiments.EXPERIMENTS if not name.endswith("-search")],
        )
        presets = (
            {"laptop": Recipe(epochs=2)}
            if self.experiment == "classification"
            else PRESETS[self.experiment]
        )
        checks.one_of("preset", self.preset, tuple(presets))
        preset = presets[self.preset]
        given: dict[str, Any] = {
            "data": self.data, "root": self.root, "model": self.model, "width": self.width, "stride": self.stride,
            "epochs": self.epochs, "lr": self.lr, "limit": self.limit, "image_size": self.image_size, "device": self.device,
            "channels_last": self.channels_last,
        }  # fmt: skip
        shipped = self.data in (None, "fashion-mnist") and self.root is None
        if shipped and self.experiment == "classification":  # then it shall take minutes
            given |= {"stride": self.stride or 2, "limit": self.limit or 3600}
        milestones = preset.milestones
        if (
            self.epochs is not None and self.experiment != "classification"
        ):  # where the preset has them, in proportion
            milestones = tuple(round(m * self.epochs / preset.epochs) for m in milestones)
        return replace(
            preset, milestones=milestones, decoders=self.decoders, amp=self.amp, compile=self.compile,
            damaged=self.damaged, **{k: v for k, v in given.items() if v is not None},
        )  # fmt: skip

    def _groups(self) -> Iterator[int | None]:
        for word in dict.fromkeys(
            self.groups or (("paper", "8") if self.experiment == "classification" else ("paper",))
        ):
            if word == "paper":
                yield None
            elif word.isdecimal() and int(word) > 0:
                yield int(word)
            else:
                raise ValueError(f"groups={word!r} is neither a positive number nor 'paper'")

    def __call__(self, console: Console) -> int:
        """Run, report."""
        recipes = {recipe.key(): recipe for recipe in self.recipes()}
        check_out(self.out)
        self._check([recipe for recipe in recipes.values() if recipe.seed == 0])
        jobs = local.jobs_for(self.jobs, next(iter(recipes.values())).device)
        folder = self.out / RUNS
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"out={self.out} cannot be made a folder: {error.strerror}") from None
        handle = files.lock(self.out)
        try:
            return self._run(console, recipes, folder, jobs)
        finally:
            files.unlock(handle)

    def _check(self, recipes: list[Recipe]) -> None:
        """Refuse what would fail after minutes."""
        for _, own in groupby(
            recipes, key=lambda recipe: getattr(recipe, "task", None)
        ):  # which have images of their own
            first, *others = own
            task = experiments.task(first)
            task.check()
            for recipe in others:
                experiments.task(recipe, task.data).check()

    def _run(self, console: Console, recipes: dict[str, Recipe], folder: Path, jobs: int) -> int:
        done = {
            key: read(folder / key) for key in recipes if (folder / key / "result.json").exists()
        }
        if done:
            said = f"{len(done)} of {len(recipes)} runs are there already, in {folder}"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
        started = time.perf_counter()
        failures: list[str] = []
        with _Show(console, recipes, done) as show:

            def hear(outcome: local.Outcome) -> None:
                if outcome.result is None:
                    failures.append(f"{_name(outcome.recipe)}: {outcome.error}")
                else:
                    done[outcome.key] = read(folder / outcome.key)
                show.over(outcome)

            stopped = ""
            try:
                local.run(
                    {k: r for k, r in recipes.items() if k not in done},
                    folder,
                    jobs,
                    hear,
                    show.refresh,
                )
            except KeyboardInterrupt:
                stopped = "interrupted"
            except local.Broken:
                stopped = "a process was killed, perhaps for lack of memory" + (
                    ": fewer --jobs need less" if jobs > 1 else ""
                )
        return self._end(console, recipes, done, failures, stopped, time.perf_counter() - started)

    def _end(
        self,
        console: Console,
        recipes: dict[str, Recipe],
        done: dict[str, Run],
        failures: list[str],
        stopped: str,
        seconds: float,
    ) -> int:
        if done:
            for found in write([done[key] for key in recipes if key in done], self.out):
                console.print(text.terminal(found, found.title()))
                console.print(Text(found.caption(), style="dim"))
            spent = f"{seconds / 60:.1f} min this time"
            said = f"\n{len(done)} of {len(recipes)} runs are done ({spent}); report: {self.out / 'report.html'}"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
        for failure in failures:
            console.print(Text(f"failed: {failure}", style="red"), soft_wrap=True)
        if stopped:
            console.print(
                f"{stopped}; what is done is kept, the same command goes on from there",
                soft_wrap=True,
            )
        return 130 if stopped == "interrupted" else 1 if stopped or failures else 0


def _name(recipe: Recipe) -> str:
    return f"{norms.label(recipe)}, {named(recipe.place)}, seed {recipe.seed}"


class _Show:
    """Live on a terminal: accuracies so far, runs done, time left. Elsewhere: one line per run."""

    def __init__(self, console: Console, recipes: dict[str, Recipe], done: dict[str, Run]) -> None:
        self.console, self.recipes, self.done = console, recipes, done
        # of an epoch, roughly: short steps are mostly overhead
        self.cost = {key: 1 + 4 / recipe.batch_size for key, recipe in recipes.items()}
        self.total = sum(self.cost.values())
        self.past = self.before = sum(self.cost[key] for key in done)
        self.begin = time.perf_counter()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.task = self.bar.add_task("", total=self.total, left="")
        self.stack = ExitStack()
        self.live: Live | None = None

    def __enter__(self) -> _Show:
        if self.console.is_terminal and len(self.done) < len(self.recipes):
            self.live = self.stack.enter_context(
                Live(console=self.console, refresh_per_second=4, transient=True)
            )
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def left(self) -> str:
        """In words."""
        fresh = self.past - self.before
        if not fresh:
            return "time left: not known yet"
        seconds = (time.perf_counter() - self.begin) * (self.total - self.past) / fresh
        return f"about {seconds / 60:.1f} min left"

    def over(self, outcome: local.Outcome) -> None:
        """A run is over."""
        self.past += self.cost[outcome.key]
        if self.live is None:
            r, result = outcome.recipe, outcome.result
            key = r.measures[0].key
            said = (
                outcome.error
                if result is None
                else result["status"]
                if result["reason"]
                else f"{result[key]:.1%}"
            )
            spent = "" if result is None else f" in {result['seconds']:.0f} s"
            line = (
                f"[{len(self.done)}/{len(self.recipes)}] {_name(r)}: {said}{spent}; {self.left()}"
            )
            self.console.print(line, highlight=False, markup=False)

    def refresh(self) -> None:
        """Draw anew."""
        if self.live is not None:
            self.bar.update(
                self.task,
                completed=self.past,
                description=f"{len(self.done)}/{len(self.recipes)} runs",
                left=self.left(),
            )
            waiting = [
                Run(Path(key), recipe, {}, (), None)
                for key, recipe in self.recipes.items()
                if key not in self.done
            ]
            tables = [text.terminal(found) for found in compare([*self.done.values(), *waiting])]
            self.live.update(
                Group(self.bar, *tables)
            )  # the bar first: a low terminal cuts off the end

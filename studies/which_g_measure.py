"""What a number of groups does to a trained network, measured: noise, confusion, disagreement.

    python -m studies.which_g_measure --cell mini --sizes 2 8

For the networks of finished runs (every row of the study, first seed, at the rate chosen), on their
training images at their batch size, it measures for each normalizer layer:

- noise: how far a batch's mean lies from the population's, in population standard deviations (root
  mean square), and how far the logarithm of its standard deviation does. This is what the paper
  calls noisy statistics.
- confusion: the share of the variance within a group that is differences between the channels' own
  means, and how far their standard deviations lie apart (root mean square of the logarithm). This
  is what the paper calls confused statistics: a group of one channel has none.

For the whole network it measures:

- disagreement: how often the class is another with statistics of the batch than with running ones,
  and the accuracy with each.
- recalibrated: the validation accuracy with exact statistics of training images in place of running
  ones, beside that without.
- gradient agreement: the cosine between the mean gradient of one half of the batches and that of
  the other.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

import bgn
from bgn.surgery.kinds import identify, normalizers
from bgn.surgery.modules import observed
from bgn_lab import data as data_sets
from bgn_lab import experiments, norms
from bgn_lab.data.sources import Data
from bgn_lab.recipe import Recipe
from bgn_lab.report import text
from bgn_lab.report.collect import read
from bgn_lab.system import files
from bgn_lab.training import loop
from bgn_lab.training.run import WEIGHTS
from studies import which_g
from studies.runner import folder_name

LAYER_FIGURES = (
    "noise_of_mean",
    "noise_of_deviation",
    "confusion_of_means",
    "confusion_of_deviations",
)
BATCHES, EXAMPLES = 100, 512  # batches for the noise; images for the population


@dataclass(frozen=True)
class Layer:
    """Measurements of one normalizer."""

    name: str
    channels: int
    values: int  # per statistic
    groups: int
    noise_of_mean: float
    noise_of_deviation: float
    confusion_of_means: float
    confusion_of_deviations: float


def _seen(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """What reaches each normalizer, (N, C, P), in eval mode."""
    found: dict[str, Tensor] = {}
    names = {layer: name for name, layer in normalizers(model).items()}

    def see(layer: nn.Module, value: Tensor) -> None:
        found[names[layer]] = value.detach().flatten(2)

    with observed(model, names, see), torch.no_grad():
        model(x)
    return found


def _statistics(x: Tensor, G: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the G slices of the features of (N, C, P), over the batch."""
    N = len(x)
    slices = x.reshape(N, -1)
    cuts = [g * slices.shape[1] // G for g in range(G + 1)]
    groups = [slices[:, a:b].double() for a, b in pairwise(cuts)]
    return torch.stack([g.mean() for g in groups]), torch.stack(
        [g.var(correction=0) for g in groups]
    )


def layers(
    model: nn.Module, recipe: Recipe, population: Tensor, batches: list[Tensor]
) -> list[Layer]:
    """Noise and confusion of all batch-wide normalizers."""
    whole = _seen(model, population)
    kinds = {name: identify(layer) for name, layer in normalizers(model).items()}
    wide = {name: kind for name, kind in kinds.items() if kind is not None and kind.batch_wide}
    true = {name: _statistics(whole[name], kind.num_groups) for name, kind in wide.items()}
    means: dict[str, list[Tensor]] = defaultdict(list)
    deviations: dict[str, list[Tensor]] = defaultdict(list)
    for x in batches:
        seen = _seen(model, x)
        for name, kind in wide.items():
            mean, var = _statistics(seen[name], kind.num_groups)
            true_mean, true_var = true[name]
            means[name].append((mean - true_mean) / (true_var + 1e-12).sqrt())
            deviations[name].append(0.5 * ((var + 1e-12) / (true_var + 1e-12)).log())
    found = []
    for name, kind in wide.items():
        x = whole[name].double()  # (N, C, P)
        C, G = x.shape[1], kind.num_groups
        own_mean, own_var = x.mean((0, 2)), x.var((0, 2), correction=0)
        per = max(1, C // G)
        grouped_mean, grouped_var = (
            own_mean[: C // per * per].view(-1, per),
            own_var[: C // per * per].view(-1, per),
        )
        between = grouped_mean.var(1, correction=0)
        found.append(
            Layer(
                name, C, recipe.batch_size * C * x.shape[2] // G, G,
                _rms(means[name]), _rms(deviations[name]),
                float((between / (between + grouped_var.mean(1) + 1e-12)).mean()),
                float((0.5 * (grouped_var + 1e-12).log()).var(1, correction=0).mean().sqrt()),
            )
        )  # fmt: skip
    return found


def _rms(values: list[Tensor]) -> float:
    return float(torch.stack(values).square().mean().sqrt())


def disagreement(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """How much training mode and eval mode disagree on the same images."""
    different = right_of_batch = right_of_running = total = 0
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for x, y in batches:
        with torch.no_grad():
            one, two = model.train()(x).argmax(1), model.eval()(x).argmax(1)
        model.load_state_dict(state)  # training mode moved the running statistics
        different += int((one != two).sum())
        right_of_batch += int((one == y).sum())
        right_of_running += int((two == y).sum())
        total += len(y)
    return {
        "different": different / total, "accuracy_of_batch": right_of_batch / total,
        "accuracy_of_running": right_of_running / total,
    }  # fmt: skip


def gradient_agreement(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """The cosine between the mean gradient of every other batch and that of the rest.

    It is 1 without noise, 0 with nothing else.
    """
    sums: list[Tensor] = []
    state = {name: value.clone() for name, value in model.state_dict().items()}
    for number, (x, y) in enumerate(batches):
        model.train().zero_grad()
        F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        own = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        if number < 2:
            sums.append(torch.zeros_like(own))
        sums[number % 2] += own
    model.load_state_dict(state)
    return float(F.cosine_similarity(sums[0], sums[1], dim=0))


def measure(folder: Path) -> dict[str, Any]:
    """All of it for a finished run."""
    run = read(folder)
    recipe, data = run.recipe, data_sets.load(run.recipe)
    model = experiments.task(recipe, data).build()
    model.load_state_dict(load_file(folder / WEIGHTS))
    model.eval()
    prepare = loop.Prepare(data, recipe)
    population = prepare(next(data.train.training(min(EXAMPLES, len(data.train)), 1, 0)))[0]
    batches = [
        prepare(batch) for batch in islice(data.train.training(recipe.batch_size, 2, 0), BATCHES)
    ]
    with loop.convolutions(recipe.onednn is not False):
        found = {
            "run": folder.name, "row": norms.label(recipe), "batch_size": recipe.batch_size,
            "train_accuracy": run.metrics[-1].train_accuracy,
            "validation": _accuracy(model, recipe, data),
            "gradient_agreement": gradient_agreement(model, batches),
            **disagreement(model, batches),
            "layers": [
                asdict(layer)
                for layer in layers(model, recipe, population, [x for x, _ in batches])
            ],
        }  # fmt: skip
        if found["layers"]:
            whole = data.train.training(recipe.batch_size, 3, 0)
            bgn.recalibrate(
                model,
                (prepare(batch)[0] for batch in islice(whole, 1000 // recipe.batch_size)),
                progress=False,
            )
            found["recalibrated"] = _accuracy(model, recipe, data)
        return found


def _accuracy(model: nn.Module, recipe: Recipe, data: Data) -> float:
    batches = map(loop.Prepare(data, recipe), data.validation.evaluation(loop.EVALUATION_BATCH))
    return loop.evaluate(model, batches, recipe).accuracy


def table(found: list[dict[str, Any]]) -> str:
    """A row for each network; of its layers the median and the worst."""

    def percent(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f}"

    def layer(one: dict[str, Any], name: str) -> str:
        values = [own[name] for own in one["layers"]]
        return f"{statistics.median(values):.2f}, {max(values):.2f}" if values else ""

    header = [
        "row",
        "noise of means",
        "noise of deviations",
        "confusion of means",
        "confusion of deviations",
        "gradients agree",
        "train accuracy",
        "validation accuracy",
        "recalibrated",
        "train and eval differ",
    ]
    rows = [
        [
            one["row"],
            *(layer(one, name) for name in LAYER_FIGURES),
            f"{one['gradient_agreement']:.2f}",
            *(
                percent(one.get(name))
                for name in ("train_accuracy", "validation", "recalibrated", "different")
            ),
        ]
        for one in found
    ]
    return text.table(header, rows)


def main() -> None:
    """Measure every row of a cell."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cell", choices=("mini", "fashion"), default="mini")
    parser.add_argument("--sizes", type=int, nargs="+", default=(2,))
    parser.add_argument("--mini", type=Path, default=Path("runs/which-g/mini20.npz"))
    parser.add_argument("--out", type=Path, default=Path("results/which-g"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    cell = which_g.cells(options.mini, None)[options.cell]
    parts = []
    for size in options.sizes:
        found = []
        for recipe in which_g.further(cell, (0,), (size,), which_g.ROWS):
            found.append(measure(which_g.FOLDER / folder_name(recipe)))
            print(found[-1]["row"], flush=True)
        parts += [f"## {options.cell}, batch {size}\n", table(found)]
        files.write_json(options.out / f"measured-{options.cell}-{size}.json", found)
    files.write(options.out / f"measured-{options.cell}.md", "\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()

"""Searching by gradients: the mixture learns, its architecture moves, and it goes on to the bit."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from bgn_lab import experiments
from bgn_lab.experiments.nas import darts
from bgn_lab.experiments.nas.bilevel import second_order
from bgn_lab.experiments.nas.darts import ALPHAS
from bgn_lab.experiments.nas.genotype import EDGES, NONE, OPERATIONS, Edge, derive, find
from bgn_lab.experiments.nas.recipe import DartsRecipe, NasTrainRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.run import run
from bgn_lab.training.task import floor
from tests.lab.interrupting import same_bits
from tests.lab.small_images import small

TINY = DartsRecipe(
    onednn=True,
    norm="bgn",
    groups=4,
    width=4,
    channels_last=False,
    cells=3,
    epochs=2,
    batch_size=16,
    limit=128,
    arch_lr=0.01,
    order="first",
)


def test_the_strongest_two_edges_of_each_node() -> None:
    weights = torch.full((14, 8), 0.01)
    weights[:, OPERATIONS.index(NONE)] = 0.9  # never chosen
    wanted = {2: (0, 1), 3: (0, 2), 4: (1, 3), 5: (2, 4)}
    for i, (state, to) in enumerate(EDGES):
        if state in wanted[to]:
            weights[i, 4 + (i % 4)] = 0.5 + i / 100
    cell = derive(weights.tolist())
    assert [tuple(edge.state for edge in node) for node in cell] == list(wanted.values())
    expected = [
        tuple(Edge(OPERATIONS[4 + EDGES.index((state, to)) % 4], state) for state in states)
        for to, states in wanted.items()
    ]
    assert list(cell) == expected


@pytest.mark.parametrize("order", ["first", pytest.param("second", marks=pytest.mark.slow)])
def test_interrupted_it_ends_with_the_same_bits(order: Any, tmp_path: Path) -> None:
    whole, parts = same_bits(lambda: small(replace(TINY, order=order, limit=64)), tmp_path, (1, 1))
    assert parts.details["genotype"] == whole.details["genotype"]


def test_what_a_search_leaves(tmp_path: Path) -> None:
    result = run(small(TINY), tmp_path)
    assert find(str(tmp_path / GENOTYPE)).to_json() == result.details["genotype"]
    epochs = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    first, last = (torch.tensor(epoch["mix"]) for epoch in epochs)
    assert first.shape == (2, 14, 8)
    assert not torch.equal(first, last)
    assert (tmp_path / "cells.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "mix.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "cells.svg").read_bytes()


def test_weights_and_architecture_have_optimizers_of_their_own() -> None:
    task = small(TINY)
    model = task.build()
    weights, others = task.optimizer(model), task.extra_optimizers(model)
    alphas = others[ALPHAS].param_groups[0]["params"]
    assert [p.shape for p in alphas] == [(2, 14, 8)]
    assert not any(p is alphas[0] for group in weights.param_groups for p in group["params"])
    before = alphas[0].detach().clone()
    task.begin(0, model)
    torch.manual_seed(0)
    x, y = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    task.before_step(model, (x, y))
    assert not torch.equal(alphas[0], before)
    assert all(p.grad is None for p in model.parameters()), "nothing is left for the weights' step"


def test_both_halves_are_augmented_and_have_no_image_in_common() -> None:
    data: Any = experiments.task(TINY).data
    assert (data.train.pad, data.train.flip) == (data.validation.pad, data.validation.flip)
    assert data.train.flip
    assert len(data.train) == len(data.validation) == 64
    ours, theirs = (
        {image.numpy().tobytes() for image in part.x} for part in (data.train, data.validation)
    )
    assert len(ours) == 64
    assert not ours & theirs


def test_second_order_takes_the_step_from_the_weights_half(monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = small(replace(TINY, order="second"))
    model = task.build()
    task.optimizer(model)
    task.extra_optimizers(model)
    task.begin(0, model)
    heard: list[Any] = []

    def spy(*arguments: Any) -> Any:
        heard.extend(arguments)
        return second_order(*arguments)

    monkeypatch.setattr(darts, "second_order", spy)
    own = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    task.before_step(model, own)
    _, _, learned, judged, _ = heard
    assert learned is own
    assert judged is not own


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["bn", "bgn"])
def test_the_mixture_learns(norm: str, tmp_path: Path) -> None:
    recipe = replace(
        TINY,
        norm=norm,
        groups=None,
        width=8,
        channels_last=True,
        limit=2000,
        epochs=4,
        batch_size=32,
        lr=0.1,
    )
    result = experiments.run(recipe, tmp_path)
    assert result.validation_accuracy > 0.5


def test_normalizers_that_leave_nothing_to_learn_are_named() -> None:
    """With a statistic for each image and map of the last cell, there is nothing to classify.

    The mean of every map is zero then.
    """
    for norm, groups, spread in (
        ("in", None, False),
        ("gn", 16, False),
        ("gn", None, True),
        ("bgn", 16, True),
        ("ln", None, True),
    ):
        task = small(replace(TINY, norm=norm, groups=groups))
        with (
            nullcontext()
            if spread
            else pytest.warns(UserWarning, match=f"norm='{norm}'.*: .* nothing can be learned")
        ):
            task.check()
        x = torch.randn(4, 1, 8, 8) + torch.arange(4).view(4, 1, 1, 1)
        with torch.no_grad():
            differ = float(task.build()(x).std(0).max())
        assert (differ > 1e-3) == spread, (norm, groups, differ)


def test_groups() -> None:
    """The paper's, but for GN in narrower networks than its own."""
    assert [DartsRecipe(norm="gn", width=width).usual_groups for width in (4, 8, 16, 36)] == [
        8,
        16,
        32,
        32,
    ]
    assert [DartsRecipe(norm="bgn", width=width).usual_groups for width in (4, 16)] == [256, 256]


def test_guessing_is_judged_by_the_images_that_are_guessed() -> None:
    task: Any = small(TINY)
    found = task.summary([Metrics.from_json({"epoch": 1, "validation_accuracy": 0.1})])
    y = task.data.validation.y
    assert found.judged == "validation"
    assert found.floor == pytest.approx(floor(float(y.bincount().max()) / len(y), len(y)))
    assert len(task.data.validation) != len(task.data.test)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": "third"}, "order='third'"),
        ({"validation": 0.0}, "validation=0.0: the architecture learns from it"),
        ({"arch_lr": 0.0}, "arch_lr=0.0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_folders_of_images_are_refused(tmp_path: Path) -> None:
    """Not after minutes, and with what would do."""
    for name in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (tmp_path / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (40, 40)).save(tmp_path / name / f"{i}.png")
    with pytest.raises(
        ValueError,
        match=r"data='folder' is read from files one by one.*"
        r"expected fashion-mnist, cifar10 or an \.npz",
    ):
        experiments.task(replace(TINY, data=str(tmp_path)))
    with pytest.raises(
        ValueError,
        match=r"images of 28x28 pixels are too small .* expected an image_size of 32 or more",
    ):
        experiments.task(NasTrainRecipe(data=str(tmp_path), image_size=28))

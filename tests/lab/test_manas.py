"""Searching by agents: one path at a time, heard of afterwards, and it goes on to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bgn.surgery.kinds import normalizers
from bgn_lab import experiments
from bgn_lab.experiments.nas.agents import zipf
from bgn_lab.experiments.nas.genotype import EDGES, OPERATIONS, find
from bgn_lab.experiments.nas.recipe import ManasRecipe
from bgn_lab.experiments.nas.search import GENOTYPE
from bgn_lab.training import loop
from bgn_lab.training.run import run
from tests.lab.interrupting import same_bits
from tests.lab.small_images import small

TINY = ManasRecipe(
    onednn=True,
    norm="bgn",
    groups=4,
    width=4,
    channels_last=False,
    cells=3,
    epochs=2,
    batch_size=16,
    limit=160,
    window=8,
)


@pytest.mark.slow  # darts' is not
@pytest.mark.parametrize("credit", ["squares", "weights"])
def test_interrupted_it_ends_with_the_same_bits(credit: Any, tmp_path: Path) -> None:
    whole, parts = same_bits(lambda: small(replace(TINY, credit=credit)), tmp_path, (1, 3))
    assert parts.details["genotype"] == whole.details["genotype"]
    assert find(str(tmp_path / "parts" / GENOTYPE)).to_json() == parts.details["genotype"]


def begun(recipe: ManasRecipe = TINY) -> tuple[Any, Any, Any]:
    task: Any = small(recipe)
    model = task.build()
    optimizer = task.optimizer(model)
    task.begin(0, model)
    return task, model, optimizer


def test_agents_hear_of_a_path_after_its_step() -> None:
    task, model, _ = begun()
    batch = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    task.before_step(model, batch)
    first = model.path.clone()
    assert int(task.plan["rounds"]) == 0
    task.before_step(model, batch)
    assert int(task.plan["rounds"]) == 1
    assert torch.equal(task.plan["choices"][0], first.flatten())
    assert float(task.plan["losses"][0]) > 0
    assert not torch.equal(model.path, first)


def test_only_the_weights_of_the_path_learn() -> None:
    task, model, optimizer = begun()
    batch = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    task.before_step(model, batch)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    task.loss(model, batch)[0].backward()
    optimizer.step()
    for name, p in model.named_parameters():
        words = name.split(".")
        if "edges" in words:
            cell, edge, operation = int(words[2]), int(words[4]), int(words[5])
            if int(model.path[cell, edge]) != operation:
                assert torch.equal(p, before[name]), name
    assert any(
        not torch.equal(p, before[name]) for name, p in model.named_parameters() if "edges" in name
    )


def test_policies_begin_uniform_and_move() -> None:
    task, model, _ = begun()
    uniform = task.plan["policy"].clone()
    assert uniform.shape == (3 * 14, 8)
    batch = torch.randn(16, 1, 8, 8), torch.arange(16) % 10
    task.before_step(model, batch)
    task.before_step(model, batch)
    assert torch.equal(task.plan["policy"], uniform), "not before a quarter of the window"
    for _ in range(3):
        task.before_step(model, batch)
    assert not torch.equal(task.plan["policy"], uniform)


def test_an_edge_is_as_strong_as_it_lowers_the_loss() -> None:
    """Where ranks are alike on all edges, not the first ones are kept."""
    task, _, _ = begun()
    strong = {2: (0, 1), 3: (1, 2), 4: (2, 3), 5: (0, 4)}
    for i, (state, to) in enumerate(EDGES):
        credit = torch.zeros(len(OPERATIONS), dtype=torch.float64)
        credit[4 + i % 4] = -0.2 if state in strong[to] else -0.1
        credit[OPERATIONS.index("none")] = -0.05 if state in strong[to] else -0.3  # first in rank
        task.plan["credit"].view(3, 14, 8)[:, i] = credit
    task.plan["policy"].copy_(zipf(task.plan["credit"]))
    for cell in task.found(task.mix(None)).cells:
        assert [tuple(edge.state for edge in node) for node in cell] == list(strong.values())
        assert all(edge.operation.startswith(("sep", "dil")) for node in cell for edge in node)


def test_a_loss_that_is_not_finite_teaches_nothing() -> None:
    task, model, _ = begun(replace(TINY, credit="weights"))
    task.before_step(model, (torch.randn(16, 1, 8, 8), torch.arange(16) % 10))
    with torch.no_grad():
        model.network.fc.weight.fill_(float("nan"))
    task.before_step(model, (torch.randn(16, 1, 8, 8), torch.arange(16) % 10))
    assert int(task.plan["rounds"]) == 0
    assert bool((task.plan["policy"] == 1 / 8).all())


def test_every_normalizer_is_described() -> None:
    """Also those that the first path would not reach."""
    task = small(replace(TINY, groups=None, instances=64))
    layers = {row.layer: row.G for row in task.description()}
    assert len(layers) == len(normalizers(task.initial_network()))
    assert max(layers.values()) > 1


def test_a_path_is_judged_with_statistics_of_its_own() -> None:
    """And not of those that came before it."""
    task, model, _ = begun(replace(TINY, limit=800))
    for _ in range(5):
        task.before_step(model, (torch.randn(16, 1, 8, 8), torch.arange(16) % 10))
        model(torch.randn(16, 1, 8, 8))
    images = []

    def score(source: Any, _: Any) -> Any:
        x = loop.Prepare(task.data, task.recipe)(next(source.evaluation(200)))[0]
        with torch.no_grad():
            images.append((model.eval()(x), model.train()(x)))
        return loop.Score(0.0, 0, len(x)), None

    task.measure([], model, score)
    ((own, batch),) = images
    # 0.15 of it; with the statistics of the paths before, 0.8
    assert float((own - batch).abs().mean()) < 0.4 * float(batch.std())


@pytest.mark.slow
def test_all_edges_or_two(tmp_path: Path) -> None:
    both = {
        keep: run(small(replace(TINY, keep=keep, epochs=1)), tmp_path / keep)
        for keep in ("two", "all")
    }  # type: ignore[arg-type]
    assert all(len(result.details["genotype"]["cells"]) == 3 for result in both.values())
    assert [len(node) for node in both["two"].details["genotype"]["cells"][0]] == [2, 2, 2, 2]
    assert [len(node) for node in both["all"].details["genotype"]["cells"][0]] == [2, 3, 4, 5]


@pytest.mark.slow
def test_the_path_learns_and_what_is_found_can_be_trained(tmp_path: Path) -> None:
    recipe = replace(
        TINY,
        groups=None,
        width=8,
        channels_last=True,
        limit=2000,
        epochs=6,
        batch_size=32,
        window=128,
    )
    result = experiments.run(recipe, tmp_path / "search")
    assert result.validation_accuracy > 0.3
    network = experiments.recipe(
        {
            "experiment": "nas-train",
            "genotype": str(tmp_path / "search" / GENOTYPE),
            "cells": 3,
            "width": 8,
        }
    )
    trained = experiments.run(
        replace(network, epochs=3, limit=1500, batch_size=32, lr=0.1), tmp_path / "train"
    )
    assert trained.test_accuracy > 0.4
    assert trained.details["genotype"] == result.details["genotype"]


def test_agents_need_time() -> None:
    """Or a genotype would be left that nobody found."""
    task = small(replace(TINY, window=44))  # 2 epochs of 5 rounds
    with pytest.raises(
        ValueError,
        match="window=44: policies stay uniform .* have 10 rounds; "
        "expected at most 40, or more epochs",
    ):
        task.check()
    small(replace(TINY, window=40)).check()
    small(replace(TINY, window=44, credit="weights")).check()


def test_names() -> None:
    assert len(EDGES) * len(OPERATIONS) == 112
    assert ManasRecipe(norm="bgn").usual_groups == 64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"credit": "luck"}, "credit='luck'"),
        ({"keep": "three"}, "keep='three'"),
        ({"window": 0}, "window=0"),
        ({"validation": 0.0}, "validation=0.0: the architecture learns from it"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)

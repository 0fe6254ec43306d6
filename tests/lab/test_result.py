"""Results of runs as dataclasses, and as their files have them."""

import json
from typing import Any

import pytest

from bgn_lab.experiments.classification.recipe import ClassificationRecipe as Recipe
from bgn_lab.training.result import Layer, Result
from tests.lab.report_runs import result

FILE = result(Recipe(norm="bn"), 70.0, 100, 3)
WHOLE: dict[str, Any] = FILE | {
    "train_accuracy": 0.5, "judged": "validation", "shard_accuracy": 0.4, "shard_images": 10,
    "source": "amazon", "target": "dslr", "episodes": {"test_1": [0.5, 1.0], "test_5": None},
    "weights_sha256": "00", "test_1": 0.75, "best_epoch": 2, "genotype": {"cells": [1, 2]},
}  # fmt: skip


def test_a_result_is_written_as_it_was_read() -> None:
    assert Result.from_json(WHOLE).to_json() == WHOLE
    assert json.loads(json.dumps(Result.from_json(WHOLE).to_json())) == WHOLE


def test_what_was_not_measured() -> None:
    found = Result.from_json(FILE)
    assert found.train_accuracy is None
    assert found.to_json() == FILE | {"train_accuracy": None, "judged": ""}


def test_numbers_and_other_values_of_an_experiment() -> None:
    found = Result.from_json(WHOLE)
    assert found.measures == {"test_1": 0.75, "best_epoch": 2}
    assert found.details == {"genotype": {"cells": [1, 2]}}
    assert (found.measure("test_1"), found.measure("test_accuracy")) == (0.75, 0.7)
    assert found.measure("test_5") is None
    assert found.layers[0] == Layer("bn1", (16, 28, 28), 16, 32 * 28 * 28, "BN")


@pytest.mark.parametrize("name", ["status", "seconds", "images", "image", "layers", "epochs"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"it has no {name}"):
        Result.from_json({key: value for key, value in FILE.items() if key != name})

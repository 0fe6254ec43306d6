"""Metrics of epochs as dataclasses, and as lines of their file."""

import json
import math
from dataclasses import replace

from bgn_lab.training.loop import Score
from bgn_lab.training.metrics import Measured, Metrics

LINE = {
    "epoch": 2, "lr": 0.1, "seconds": 2.0, "images_per_second": 900.0, "train_loss": 1.5,
    "train_accuracy": 0.5, "validation_loss": 1.25, "validation_accuracy": 0.75, "choice_1": 0.25,
    "steps": 3, "genotype": {"cells": [1]},
}  # fmt: skip


def test_a_line_is_written_as_it_was_read() -> None:
    found = Metrics.from_json(LINE)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False)) == LINE
    assert list(found.to_json()) == list(LINE)
    assert found.measures == {"choice_1": 0.25, "steps": 3}
    assert found.details == {"genotype": {"cells": [1]}}
    assert found.not_finite == []


def test_what_is_not_finite_is_null_and_what_was_not_measured_is_absent() -> None:
    found = Metrics.from_json(LINE)
    found = replace(found, train_loss=math.inf, measures={"shift": math.nan})
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert (written["train_loss"], written["shift"]) == (None, None)
    assert "test_loss" not in written
    for own in (found, Metrics.from_json(written)):
        assert own.not_finite == ["train_loss", "shift"]
        assert [own.value(key) for key in ("train_loss", "shift", "test_loss")] == [None] * 3
        assert own.value("train_accuracy") == 0.5


def test_a_score_on_test_images() -> None:
    found = Measured(validation_loss=1.0).with_test(Score(total=20.0, right=5, images=10))
    assert (found.test_loss, found.test_accuracy, found.test_images) == (2.0, 0.5, 10)
    assert found.validation_loss == 1.0

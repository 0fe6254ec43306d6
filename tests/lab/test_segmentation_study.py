"""The study of segmentation: what it runs, in what order, and what its report says of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from studies.ledger import Ledger, key
from studies.segmentation import plan, report
from studies.segmentation.plan import CORE, SEEDS, STAGES, Stage, wanted
from studies.segmentation.rows import CELLS, RATES, ROWS, Sources, recipe, row

from bgn_lab.recipe import Recipe
from bgn_lab.report.collect import Run
from bgn_lab.training.metrics import Metrics
from bgn_lab.training.result import FINISHED, Images, Result

SOURCES = Sources(Path("/data/camvid.npz"), Path("/weights/net.pth"))


class Known(Ledger):
    """A ledger of runs with these scores."""

    def __init__(self, scores: Mapping[str, tuple[Recipe, float]]) -> None:
        self.scores = scores

    def __contains__(self, own: Recipe) -> bool:
        return key(own) in self.scores

    def get(self, own: Recipe) -> Run | None:
        if own not in self:
            return None
        _, score = self.scores[key(own)]
        measures = {"test_iou": score, "validation_iou": score, "test_iou_recalibrated": score}
        result = Result(
            status=FINISHED, reason="", epochs=own.epochs, seconds=1.0, parameters=1, layers=(),
            chance=0.03, floor=0.05, classes=11, images=Images(367, 101, 233), image=(3, 120, 160),
            test_accuracy=0.8, judged="validation", measures=measures,
        )  # fmt: skip
        metrics = Metrics(epoch=1, lr=0.1, seconds=1.0, images_per_second=1.0, train_loss=1.0,
                          train_accuracy=0.5)  # fmt: skip
        return Run(Path("x"), own, {}, (metrics,), result)


def done(stages: int, best: float = 0.1) -> Known:
    """Everything of the first stages; the second rate is best, earlier rows are better."""
    scores: dict[str, tuple[Recipe, float]] = {}
    known = Known(scores)
    for stage in STAGES[:stages]:
        while left := [own for own in wanted(stage, SOURCES, known) if own not in known]:
            for number, own in enumerate(left):
                score = 0.5 - 0.001 * number - (0.1 if getattr(own, "lr", 0) != best else 0)
                scores[key(own)] = (own, score + 0.0001 * own.seed)
    return known


def test_every_row_is_a_run_of_its_own() -> None:
    for cell in CELLS.values():
        keys = {key(recipe(cell, name, SOURCES)) for name in cell.rows}
        assert len(keys) == len(cell.rows)
    assert {*CORE} <= {*ROWS}
    assert "bn+frozen" not in CELLS["unet-2"].rows


def test_nothing_is_chosen_before_all_rates_were_tried() -> None:
    first = list(wanted(STAGES[0], SOURCES, Known({})))
    assert len(first) == len(CORE) * len(RATES)
    assert {own.epochs for own in first} == {3}
    assert [own.lr for own in first[: len(CORE)]] == [RATES[0]] * len(CORE)
    assert list(wanted(Stage("mobilenet-1", "deciding"), SOURCES, Known({}))) == []


def test_a_best_rate_at_an_edge_asks_for_more() -> None:
    known = done(1, best=0.4)
    own = row(CELLS["mobilenet-2"], "bn", SOURCES)
    assert replace(own.short, lr=1.6) in known
    assert plan.best("mobilenet-2", "bn", SOURCES, known) == replace(own.full, lr=0.4)


def test_stages_decide_what_follows() -> None:
    known = done(3)
    rows = plan.deciding("mobilenet-1", SOURCES, known)
    assert rows[:3] == ("bn", "bn+frozen", "gn")
    assert len(rows) == 6
    seeds = [own.seed for own in wanted(STAGES[2], SOURCES, known) if own.epochs == 12]
    assert sorted({*seeds}) == [*SEEDS]
    assert plan.deciding("unet-2", SOURCES, known) == ()
    for cell, where in {"mobilenet-4-neighbors": "mobilenet-4", "unet-4": "unet-4"}.items():
        assert plan.rate_cell(cell) == where
        assert plan.home(cell) == cell.partition("-")[0] + "-2"


def test_the_whole_study_ends() -> None:
    known = done(len(STAGES))
    for stage in STAGES:
        assert all(own in known for own in wanted(stage, SOURCES, known))
        assert list(wanted(stage, SOURCES, known))
    found = report.collect(SOURCES, known)
    assert set(found) == set(CELLS)
    said = report.text(found)
    assert "- At 2: BN is best, 50.0" in said or "is best" in said
    assert "recalibration of BN: no difference seen, +0.0 ± 0.0" in said
    assert "Four neighboring windows instead of four images, BN:" in said
    assert "| row | 1 | 2 | 4 | 16 | 4-neighbors |" in said


def test_pictures(tmp_path: Path) -> None:
    found = report.collect(SOURCES, done(3))
    report.curves(found, tmp_path / "iou.png")
    assert (tmp_path / "iou.png").stat().st_size > 5000
    report.pictures(found, tmp_path)


@pytest.mark.parametrize("name", list(ROWS))
def test_rows_begin_with_the_pretrained_weights_where_there_are_any(name: str) -> None:
    for cell in CELLS.values():
        if name in cell.rows:
            own = recipe(cell, name, SOURCES)
            assert (own.weights is None) == cell.scratch
            assert own.batch_size == cell.n

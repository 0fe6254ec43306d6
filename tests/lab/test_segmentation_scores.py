"""Scores from counts of pixels, the same as scikit-learn's; answers from windows."""

import math

import pytest
import torch
from torch import Tensor, nn

from bgn_lab.data.segmentation.pairs import Crops, Pairs, constant_iou
from bgn_lab.data.segmentation.windows import IGNORED
from bgn_lab.experiments.segmentation.confusion import Scores, count
from bgn_lab.experiments.segmentation.evaluate import evaluate, log_probabilities, places
from tests.tolerance import assert_close


def drawn(seed: int, classes: int = 6) -> tuple[Tensor, Tensor]:
    """Labels, some ignored, one class never seen nor answered; and answers, mostly right."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes - 1, (3, 20, 30), generator=draws)
    wrong = torch.rand(y.shape, generator=draws) < 0.3
    found = torch.where(wrong, torch.randint(0, classes - 1, y.shape, generator=draws), y)
    y[torch.rand(y.shape, generator=draws) < 0.1] = IGNORED
    return y.to(torch.uint8), found


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_scikit_learn(seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    y, found = drawn(seed)
    known = y != IGNORED
    truth, given = y[known].numpy(), found[known].numpy()
    scores = Scores(count(y, found, 6))
    expected = metrics.confusion_matrix(truth, given, labels=range(6))
    assert scores.matrix.tolist() == expected.tolist()
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(truth, given), abs=1e-12)
    ious = metrics.jaccard_score(truth, given, average=None)
    assert scores.ious[:5] == pytest.approx(ious, abs=1e-12)
    assert scores.ious[5] is None
    mean = metrics.jaccard_score(truth, given, average="macro")
    assert scores.mean_iou == pytest.approx(mean, abs=1e-12)


def test_a_class_that_is_only_answered_counts_as_zero() -> None:
    scores = Scores(count(torch.tensor([0, 0, 1]), torch.tensor([0, 2, 1]), 4))
    assert scores.ious == [0.5, 1.0, 0.0, None]
    assert scores.mean_iou == 0.5


def test_ignored_pixels_count_nowhere() -> None:
    y = torch.full((2, 4), IGNORED)
    scores = Scores(count(y, torch.zeros_like(y), 3))
    assert (scores.pixels, scores.accuracy, scores.mean_iou) == (0, 0.0, 0.0)


def test_a_constant_answer() -> None:
    y = torch.tensor([0] * 6 + [1] * 3 + [2])
    scores = Scores(count(y, torch.zeros_like(y), 4))
    assert constant_iou(torch.bincount(y, minlength=4)) == pytest.approx(scores.mean_iou)


@pytest.mark.parametrize(
    ("whole", "window"), [((180, 240), (120, 160)), ((33, 50), (16, 16)), ((8, 30), (16, 16))]
)
def test_windows_cover_an_image(whole: tuple[int, int], window: tuple[int, int]) -> None:
    seen = torch.zeros(whole)
    for place in places(whole, window):
        seen[place] += 1
        size = [own.stop - own.start for own in place]
        assert size == [min(a, b) for a, b in zip(whole, window, strict=True)]
    assert bool((seen > 0).all())


class Local(nn.Module):
    """Logits of a pixel from its own values: windows change nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, 1 - x.sum(1, keepdim=True)], 1)


def test_windows_change_nothing_where_answers_are_local() -> None:
    x = torch.rand(2, 2, 30, 41, generator=torch.Generator().manual_seed(0))
    whole = log_probabilities(Local(), x, None)
    assert_close(log_probabilities(Local(), x, (16, 16)), whole)
    assert_close(whole.exp().sum(1), torch.ones(2, 30, 41))


def test_evaluation_counts_all_images_of_all_sizes() -> None:
    draws = torch.Generator().manual_seed(1)
    shapes = [(12, 10), (12, 10), (9, 14)]
    xs = tuple(torch.randint(0, 256, (2, *s), generator=draws, dtype=torch.uint8) for s in shapes)
    ys = tuple(torch.randint(0, 3, s, generator=draws).to(torch.uint8) for s in shapes)
    ys[0][:2] = IGNORED
    source = Pairs(xs, ys, 3, Crops((8, 8)))
    prepare = lambda batch: (batch[0].float() / 255, batch[1])  # noqa: E731
    scores = evaluate(Local(), source, prepare)
    expected = torch.zeros(3, 3, dtype=torch.long)
    losses: list[float] = []
    for x, y in zip(xs, ys, strict=True):
        logits = Local()(x[None].float() / 255)
        expected += count(y, logits.argmax(1)[0], 3)
        loss = nn.functional.cross_entropy(
            logits, y[None].long(), ignore_index=IGNORED, reduction="none"
        )
        losses += loss[0][y != IGNORED].tolist()
    assert torch.equal(scores.matrix, expected)
    assert scores.pixels == sum(h * w for h, w in shapes) - 20
    assert scores.loss == pytest.approx(math.fsum(losses) / len(losses), rel=1e-5)

"""The example of a small detector: boxes, scores, and training at one and two images."""

from typing import Any

import pytest
import torch

from bgn_lab.data.segmentation import scenes
from tests.lab import scripts


@pytest.fixture(scope="module")
def example() -> Any:
    return scripts.load("detect_at_two_images", "examples")


def test_targets_say_where_boxes_are(example: Any) -> None:
    for scene in scenes.load(None)["test"][:10]:
        classes, distances, inside = example.targets(scene)
        assert torch.equal(classes.sum(0), inside.float())
        assert inside.any()
        assert distances.min() > 0
        rows, columns = inside.nonzero(as_tuple=True)
        x, y = (columns + 0.5) * example.STRIDE, (rows + 0.5) * example.STRIDE
        own = distances[:, rows, columns]
        boxes = torch.stack([x - own[0], y - own[1], x + own[2], y + own[3]], 1)
        assert (example.overlaps(boxes, scene.boxes).max(1).values > 0.999).all()


def test_average_precision(example: Any) -> None:
    test = scenes.load(None)["test"][:20]
    perfect = [(s.boxes, s.kinds, torch.rand(len(s.kinds))) for s in test]
    assert example.average_precision(perfect, test) == pytest.approx(100)
    twice = [tuple(torch.cat([t, t]) for t in own) for own in perfect]
    for _, _, scores in twice:
        scores[len(scores) // 2 :] -= 1  # a second answer to the same box is wrong, and comes last
    assert example.average_precision(twice, test) == pytest.approx(100)
    wrong = [(boxes, kinds % example.CLASSES + 1, scores) for boxes, kinds, scores in perfect]
    assert example.average_precision(wrong, test) < 20
    assert example.average_precision([(b[:0], k[:0], s[:0]) for b, k, s in perfect], test) == 0
    half = [(boxes[:1], kinds[:1], scores[:1]) for boxes, kinds, scores in perfect]
    assert 10 < example.average_precision(half, test) < 60


@pytest.mark.slow
def test_every_method_learns_at_one_and_two_images(example: Any) -> None:
    found = example.main(["--pretraining", "10", "--epochs", "2", "--tested", "60"])
    floor = found.pop("pretrained")["AP"]
    assert len(found) == 6
    for name, own in found.items():
        assert own["losses"][1] < own["losses"][0], name
        assert own["AP"] > floor / 2, name

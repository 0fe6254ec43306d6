"""Recalibration: the statistics of all the data, whatever the batches."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import bgn
from tests.tolerance import assert_close

data = torch.randn(11, 6, 5, 4, dtype=torch.float64) * 3 + 7


@pytest.mark.parametrize(
    "norm",
    [
        bgn.BatchGroupNorm2d(6, 4),
        bgn.BatchGroupNorm2d(6, 2),
        bgn.GeneralBatchGroupNorm2d(6, 2),
        nn.BatchNorm2d(6),
    ],
)
@pytest.mark.parametrize("sizes", [[11], [5, 4, 2], [2, 2, 2, 2, 3]])
def test_merged_over_the_loader_it_is_the_whole(norm: Any, sizes: list[int]) -> None:
    norm = copy.deepcopy(norm).double()
    whole = copy.deepcopy(norm)
    whole.momentum = 1.0
    whole(data)
    bgn.recalibrate(nn.Sequential(norm), data.split(sizes))
    assert_close(norm.running_mean, whole.running_mean)
    assert_close(norm.running_var, whole.running_var)
    assert norm.num_batches_tracked == len(sizes)


def model() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(6, 8, 3),
        bgn.BatchGroupNorm2d(8, 2),
        nn.Dropout(0.5),
        nn.Conv2d(8, 8, 1),
        nn.BatchNorm2d(8),
    ).double()


def test_deeper_layers_see_what_training_sees_without_dropout() -> None:
    net = model()
    expected = copy.deepcopy(net)
    expected[2].p = 0.0
    for layer in (expected[1], expected[4]):
        layer.momentum = 1.0
    expected(data)
    net.eval()
    net[4].train()
    assert bgn.recalibrate(net, [(data, "labels")]) is net
    for i in (1, 4):
        assert_close(net[i].running_mean, expected[i].running_mean)
        assert_close(net[i].running_var, expected[i].running_var)
        assert net[i].track_running_stats
    assert [net[i].training for i in range(5)] == [False, False, False, False, True]


def test_an_interruption_changes_nothing() -> None:
    net = model()
    before = copy.deepcopy(net.state_dict())

    def broken() -> Any:
        yield data
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bgn.recalibrate(net, broken())
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())
    assert net.training
    assert net[1].track_running_stats
    assert not net[1]._forward_pre_hooks


def test_frozen_layers_are_left_alone() -> None:
    net = bgn.freeze(model())
    with pytest.raises(
        ValueError, match="no normalizer with running statistics that is not frozen"
    ):
        bgn.recalibrate(net, [data])


def test_max_batches_progress_and_a_forward_of_ones_own(capsys: Any) -> None:
    net = model()
    calls = []

    def forward(net: nn.Module, batch: dict[str, torch.Tensor]) -> None:
        calls.append(batch)
        net(batch["image"])

    bgn.recalibrate(net, [{"image": data}] * 5, max_batches=3, forward=forward, progress=True)
    assert len(calls) == 3
    assert "recalibrate: 3 of 3, 0 s left" in capsys.readouterr().err
    assert net[1].num_batches_tracked == 3


def test_refusals() -> None:
    net = model()
    with pytest.raises(ValueError, match="loader gave no batch"):
        bgn.recalibrate(net, [])
    with pytest.raises(TypeError, match="loader gave a dict; expected a tensor"):
        bgn.recalibrate(net, [{"image": data}])
    with pytest.raises(ValueError, match="max_batches=0"):
        bgn.recalibrate(net, [data], max_batches=0)
    net.extra = nn.BatchNorm2d(4)
    net.forward = lambda batch: net[:5](batch)
    with pytest.warns(UserWarning, match="no data reached extra; their statistics stay"):
        bgn.recalibrate(net, [data])
    assert net[1].num_batches_tracked == 1
    assert net.extra.num_batches_tracked == 0


class Act(nn.Module):
    """Calls its normalizer by keyword, with a dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(6)
        self.norm.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert not self.norm.drop.training  # type: ignore[union-attr]
        out: torch.Tensor = self.norm(input=x)
        return out


def test_keywords_flags_and_iterators() -> None:
    net: Any = Act().double()
    bgn.recalibrate(net, [data])
    assert_close(net.norm.running_mean, data.mean((0, 2, 3)))
    iterator = iter([data] * 5)
    bgn.recalibrate(net, iterator, max_batches=2)
    assert len(list(iterator)) == 3
    net.norm.track_running_stats = False
    with pytest.raises(ValueError, match="no normalizer with running statistics"):
        bgn.recalibrate(net, [data])
    assert not net.norm.track_running_stats

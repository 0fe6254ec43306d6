"""What ``convert`` chooses when it is given a batch size alone, and that it says so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import bgn
from bgn.surgery import recommend
from bgn.surgery.standardized import Standardized


def new(channels: int = 16) -> Any:
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, bias=False), nn.BatchNorm2d(2 * channels),
    )  # fmt: skip


def trained(channels: int = 16) -> Any:
    torch.manual_seed(0)
    model = new(channels)
    for _ in range(12):
        model(torch.randn(8, 3, 12, 12) + 1)
    return model


@pytest.mark.parametrize(
    ("batch_size", "groups", "standardized"),
    [(1, 1, True), (2, 8, True), (7, 8, True), (8, 16, False), (255, 16, False), (256, 512, False)],
)
def test_a_new_model(batch_size: int, groups: int, standardized: bool) -> None:
    model = bgn.convert(new(), batch_size=batch_size)
    assert isinstance(model[1], bgn.BatchGroupNorm2d)  # type: ignore[index]
    assert model[1].num_groups == groups  # type: ignore[index]
    assert model[1].renorm is None  # type: ignore[index]
    assert isinstance(model[0], Standardized) is standardized  # type: ignore[index]


def test_few_images_leave_channels_whole() -> None:
    """Eight groups of four channels would be smaller, and noisier, than those of BN."""
    for batch_size, groups in {2: 4, 256: 512}.items():
        model: Any = bgn.convert(
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), batch_size=batch_size
        )
        assert model[1].num_groups == groups


@pytest.mark.parametrize(("batch_size", "renorm"), [(1, True), (2, True), (7, True), (8, False)])
def test_a_trained_model_keeps_its_output(batch_size: int, renorm: bool) -> None:
    model = trained().eval()
    x = torch.randn(2, 3, 12, 12)
    before = model(x)
    bgn.convert(model, batch_size=batch_size)
    assert [model[1].num_groups, model[4].num_groups] == [16, 32]
    assert (model[1].renorm is not None) is renorm
    assert not isinstance(model[0], Standardized)
    torch.testing.assert_close(model(x), before)
    if renorm:  # training begins with the same function
        torch.testing.assert_close(model.train()(x), before, rtol=1e-4, atol=1e-4)


def test_it_says_what_it_chose_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    bgn.convert(trained(), batch_size=2)
    bgn.convert(new(), batch_size=2)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith('bgn.convert: num_groups="channels", renorm=True, for a trained model:')
    assert second.startswith("bgn.convert: num_groups=8, standardize=True, for a new model:")
    assert str(bgn.recommend(new(), 2)) in second
    bgn.convert(new(), num_groups=1)
    bgn.convert(new(), num_groups="paper", batch_size=2)
    with pytest.raises(ValueError, match="batch_size=0"):
        bgn.convert(new(), batch_size=0)
    assert capsys.readouterr().err == ""


def test_what_it_says_can_be_pasted() -> None:
    for make in new, trained:
        for batch_size in (1, 2, 8, 256):
            chosen = bgn.convert(make(), batch_size=batch_size)
            arguments = str(bgn.recommend(make(), batch_size)).partition(", for ")[0]
            pasted = eval(f"bgn.convert(make(), {arguments})", {"bgn": bgn, "make": make})
            assert repr(pasted) == repr(chosen)


def test_partners_that_are_named_win(capsys: pytest.CaptureFixture[str]) -> None:
    assert bgn.convert(trained(), batch_size=2, renorm=False)[1].renorm is None  # type: ignore[index]
    assert capsys.readouterr().err.startswith('bgn.convert: num_groups="channels", for a trained')
    own = bgn.Renorm(2.0, 1.0, warmup=0)
    assert bgn.convert(trained(), batch_size=2, renorm=own)[1].renorm == own  # type: ignore[index]
    plain: Any = bgn.convert(new(), batch_size=2, standardize=False)
    assert not isinstance(plain[0], Standardized)
    assert plain[1].num_groups == 8
    with pytest.warns(UserWarning, match="only weight and bias are carried over"):
        untracked: Any = bgn.convert(trained(), batch_size=2, track_running_stats=False)
    assert untracked[1].running_mean is None


def test_standardized_weights_are_not_corrected_towards_statistics_of_others() -> None:
    with pytest.warns(UserWarning, match="statistics are those of the weights as they were"):
        model: Any = bgn.convert(trained(), batch_size=2, standardize=True)
    assert model[1].renorm is None


def test_a_new_model_whose_weights_cannot_be_standardized() -> None:
    model = new()
    model[0] = nn.utils.parametrizations.weight_norm(model[0])
    found = bgn.recommend(model, 2)
    assert (found.num_groups, found.standardize) == ("channels", False)
    assert "refused here: 0: it is parametrized by _WeightNorm" in found.why
    assert bgn.recommend(model, 1).num_groups == 1
    assert bgn.convert(model, batch_size=2)[1].num_groups == 16  # type: ignore[index]


def test_other_trained_models() -> None:
    """Without running statistics it is known to be trained by its weights; nothing is added."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16))
    assert bgn.recommend(model, 2).standardize
    nn.init.constant_(model[1].weight, 0.0)  # as the last normalizer of a block begins
    assert bgn.recommend(model, 2).standardize
    nn.init.constant_(model[1].weight, 0.5)
    assert bgn.recommend(model, 2) == recommend.Recommendation(
        "paper", model="a trained model", why=bgn.recommend(model, 2).why
    )
    mixed = trained()
    mixed[4] = nn.BatchNorm2d(32, track_running_stats=False)
    assert not bgn.recommend(mixed, 2).renorm
    assert "some layers have no running statistics" in bgn.recommend(mixed, 2).why
    with pytest.warns(UserWarning, match="only weight and bias are carried over.*: 4$"):
        bgn.convert(mixed, batch_size=2)


def test_only_some_layers_decide() -> None:
    model = nn.Sequential(trained(), nn.Conv2d(32, 8, 1), nn.SyncBatchNorm(8))
    with pytest.warns(UserWarning, match="no longer synchronized"):
        bgn.convert(model, batch_size=2, only=nn.SyncBatchNorm)
    assert isinstance(model[1], Standardized)
    assert type(model[0][1]) is nn.BatchNorm2d


def test_converting_twice_changes_nothing() -> None:
    for model in (new(), trained()):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            once = bgn.convert(model, batch_size=2)
            layers = list(once.modules())
            assert list(bgn.convert(once, batch_size=2).modules()) == layers


def test_regroup_by_batch_size_is_the_papers() -> None:
    model: Any = bgn.convert(trained(), num_groups=4)
    bgn.regroup(model, None, batch_size=8)
    assert model[1].num_groups == 16
    bgn.regroup(model, None, batch_size=2)
    assert model[1].num_groups == 1

"""Checkpoints of other normalizers: errors name the right way, which then works."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bgn
from tests.tolerance import assert_close

C = 8
Norm = Callable[[int], nn.Module]


def net(norm: Norm) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, C, 3, bias=False), norm(C), nn.ReLU(), nn.Conv2d(C, C, 3, bias=False), norm(C)
    )


def trained(model: nn.Module) -> nn.Module:
    for _ in range(3):
        model(torch.randn(4, 3, 8, 8))
    return model.eval()


def bn(C: int) -> nn.Module:
    return nn.BatchNorm2d(C)


def one_of(G: int, **options: str) -> Norm:
    return lambda C: bgn.BatchGroupNorm2d(C, G, **options)  # type: ignore[arg-type]


def message(model: nn.Module, state: dict[str, Tensor]) -> str:
    """What is told of the checkpoint: once, not for every layer."""
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(state)
    told = re.findall(r'[\w.]+: the checkpoint [^"\n]*', str(caught.value))
    assert len(told) == 1
    return str(told[0])


def test_batch_norm_into_bgn() -> None:
    source, x = trained(net(bn)), torch.randn(2, 3, 8, 8)
    told = message(net(one_of(2)), source.state_dict())
    assert told.startswith("1: the checkpoint has 8 statistics, and this layer num_groups=2.")
    assert "bgn.convert(model, num_groups=2)" in told
    right = net(bn).eval()
    right.load_state_dict(source.state_dict())
    assert_close(bgn.convert(right, num_groups=2)(x), source(x))


def test_other_groups() -> None:
    told = message(net(one_of(4)), net(one_of(2)).state_dict())
    assert "Build the model with num_groups=2 here, load it, then bgn.regroup" in told
    told = message(net(one_of(2)), net(one_of(4, center="channel")).state_dict())
    assert "is one of center='channel': build the model with that" in told
    told = message(net(one_of(2, center="channel")), net(one_of(2)).state_dict())
    assert told.endswith("bgn.convert(model, num_groups=2, center='channel')")


def test_a_folded_model_into_one_that_is_not() -> None:
    source, x = trained(net(one_of(2))), torch.randn(2, 3, 8, 8)
    plain = bgn.fold(source)
    told = message(net(one_of(2)), plain.state_dict())
    assert "has nothing of this layer. If it is one of a folded model, load it into" in told
    right = bgn.fold(net(one_of(2)).eval())
    right.load_state_dict(plain.state_dict())
    assert_close(right(x), source(x))
    assert "bgn.fold(model.eval())" in message(net(bgn.norm_layer("gn")), plain.state_dict())


def test_statistics_that_are_missing_or_too_many() -> None:
    gn, pn = bgn.norm_layer("gn"), bgn.PositionalNorm2d
    told = message(net(one_of(2)), net(gn).state_dict())
    assert "has no running statistics" in told
    assert "bgn.recalibrate(model, loader)" in told
    for norm, name in (gn, "gn"), (pn, "pn"):
        told = message(net(norm), net(one_of(2)).state_dict())
        assert told.endswith(f"load it, then bgn.convert(model, '{name}')")


def test_other_mistakes_are_told_by_torch_alone() -> None:
    model = nn.Sequential(bgn.BatchGroupNorm2d(C, 2))
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict({**model.state_dict(), "0.weight": torch.zeros(C + 1)})
    assert ": the checkpoint" not in str(caught.value)


def test_without_strict_only_shapes_are_errors() -> None:
    model = net(one_of(2))
    statistics = ["running_mean", "running_var", "num_batches_tracked"]
    found = model.load_state_dict(net(bgn.norm_layer("gn")).state_dict(), strict=False)
    assert found.missing_keys == [f"{i}.{name}" for i in (1, 4) for name in statistics[:2]]
    found = net(bgn.norm_layer("gn")).load_state_dict(model.state_dict(), strict=False)
    assert set(found.unexpected_keys) == {f"{i}.{name}" for i in (1, 4) for name in statistics}
    plain = bgn.fold(net(one_of(2)).eval())
    assert "1.weight" in model.load_state_dict(plain.state_dict(), strict=False).missing_keys
    with pytest.raises(RuntimeError, match="the checkpoint has 8 statistics"):
        model.load_state_dict(net(bn).state_dict(), strict=False)


def test_renormalization_and_standardized_weights_load_with_and_without() -> None:
    """Their own keys are completed, or left out."""
    plain = net(one_of(2))
    with_steps = net(lambda C: bgn.BatchGroupNorm2d(C, 2, renorm=True))
    with_gain = bgn.standardize(net(one_of(2)), gain=True)
    with_steps.load_state_dict(plain.state_dict())
    plain.load_state_dict(with_steps.state_dict())
    with_gain.load_state_dict(plain.state_dict())

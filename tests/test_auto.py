"""``num_groups="auto"``: decided by the first batch or by a sample; then as any other number."""

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import bgn
from bgn.groups import ENOUGH, enough_groups


def network(norm: object = "auto") -> nn.Sequential:
    """Maps of 4x4, 2x2 and 1x1."""
    make = (lambda C: bgn.BatchGroupNorm2d(C, norm)) if isinstance(norm, (int, str)) else norm  # type: ignore[arg-type]
    torch.manual_seed(0)
    blocks = [(3, 16), (16, 32), (32, 64)]
    layers = [m for C, K in blocks for m in (nn.Conv2d(C, K, 3, 2, 1), make(K), nn.ReLU())]  # type: ignore[operator]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))


def images(N: int = 8) -> Tensor:
    return torch.randn(N, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def groups(model: nn.Module) -> list[int]:
    return [m.num_groups for m in model.modules() if isinstance(m, bgn.BatchGroupNorm2d)]


@given(C=st.integers(1, 300), values=st.integers(1, 5000), least=st.integers(1, 2000))
def test_the_most_groups_of_whole_channels_with_enough_values(
    C: int, values: int, least: int
) -> None:
    G = enough_groups(C, values, least)
    assert C % G == 0
    assert G == 1 or C // G * values >= least
    for finer in range(G + 1, C + 1):
        assert C % finer or C // finer * values < least


@given(C=st.integers(1, 300), N=st.integers(2, 7), positions=st.integers(1, 1000))
def test_few_images_have_few_groups(C: int, N: int, positions: int) -> None:
    """However large the maps are: their values are of as few images."""
    G = bgn.auto_groups(C, N, positions)
    assert C % G == 0
    assert G <= 16
    for finer in range(G + 1, min(C, 16) + 1):
        assert C % finer or C // finer * N * positions < ENOUGH
    assert bgn.auto_groups(C, 8, positions) == enough_groups(C, 8 * positions, ENOUGH)


def test_two_images_decide_for_sixteen_groups() -> None:
    model = network()
    model(torch.randn(2, 3, 64, 64))
    assert groups(model) == [16, 16, 16]
    planned = bgn.convert(network(), num_groups="auto", batch_size=7, sample=(3, 64, 64))
    assert groups(planned) == [16, 16, 16]


def test_the_first_training_batch_decides() -> None:
    model = network()
    assert "num_groups='auto'" in repr(model[1])
    model.eval()
    model(images())
    assert model[1].undecided, "a batch in eval mode does not decide"
    model.train()
    model(images())
    assert groups(model) == [16, 32, 32], (
        "8*16, 8*4 and 8*1 values a channel: 16 take 1, 1 and 2 channels"
    )
    shapes = [m.running_mean.shape for m in model if isinstance(m, bgn.BatchGroupNorm2d)]
    assert shapes == [(16,), (32,), (64,)], "one entry per channel, before and after"
    model(images(64))
    assert groups(model) == [16, 32, 32], "the second does not"
    assert "num_groups=16" in repr(model[1])


def test_it_is_the_layer_with_that_number() -> None:
    auto, given = network(), network(bgn.norm_layer("bgn", num_groups=8))
    bgn.regroup(given, lambda layer: {16: 16, 32: 32, 64: 32}[layer.num_features])
    for step in range(3):
        x = images() + step
        torch.testing.assert_close(auto(x), given(x), rtol=0, atol=0)
    for (name, one), (_, two) in zip(
        auto.state_dict().items(), given.state_dict().items(), strict=True
    ):
        expected = two.repeat_interleave(len(one) // len(two)) if one.dim() == 1 else two
        assert torch.equal(one, expected), name


def test_before_the_first_batch_it_is_batch_norm_in_eval_mode() -> None:
    model, other = network().eval(), network(nn.BatchNorm2d).eval()
    torch.testing.assert_close(model(images()), other(images()))


def test_a_saved_model_goes_on() -> None:
    trained = network()
    trained(images())
    stored = io.BytesIO()
    torch.save(trained.state_dict(), stored)
    stored.seek(0)
    fresh = network()
    fresh.load_state_dict(torch.load(stored, weights_only=True))
    torch.testing.assert_close(fresh.eval()(images()), trained.eval()(images()), rtol=0, atol=0)
    for model in (fresh, trained):
        model.train()(images())
    assert groups(fresh) == groups(trained)
    for name, value in fresh.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name


def test_a_checkpoint_with_one_statistic_per_group_is_spread_over_the_channels() -> None:
    given = bgn.BatchGroupNorm2d(8, 2)
    given(torch.randn(4, 8, 3, 3))
    auto = bgn.BatchGroupNorm2d(8, "auto")
    auto.load_state_dict(given.state_dict())
    assert auto.num_groups == 2
    x = torch.randn(2, 8, 3, 3)
    torch.testing.assert_close(auto.eval()(x), given.eval()(x), rtol=0, atol=0)


def test_statistics_of_a_checkpoint_without_a_count_are_kept() -> None:
    trained = nn.BatchNorm2d(8)
    for _ in range(20):
        trained(torch.randn(8, 8, 3, 3) + 5)
    trained.num_batches_tracked.zero_()
    layer = bgn.BatchGroupNorm2d(8, "auto")
    layer.load_state_dict(trained.state_dict())
    assert layer.undecided, "a batch norm does not decide"
    layer(torch.randn(2, 8, 2, 1))
    assert layer.num_groups == 2
    assert layer.running_mean.min() > 3


def test_batch_norms_state_dict_loads_as_batch_norm() -> None:
    other = network(nn.BatchNorm2d)
    other(images())
    fresh = network()
    fresh.load_state_dict(other.state_dict())
    torch.testing.assert_close(fresh.eval()(images()), other.eval()(images()))
    fresh.train()(images())
    assert groups(fresh) == [16, 32, 32]


@pytest.mark.parametrize("use_buffers", [True, False])
def test_averages_made_before_the_first_batch_go_on(use_buffers: bool) -> None:
    model = network()
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=use_buffers)
    for _ in range(3):
        model(images())
        average.update_parameters(model)
    assert average.eval()(images()).isfinite().all()
    assert average.module[7].running_mean.shape == model[7].running_mean.shape


def test_a_first_batch_in_inference_mode_leaves_ordinary_buffers() -> None:
    model, other = network(), network()
    with torch.inference_mode():
        model(images())
    other(images())
    model.load_state_dict(other.state_dict())
    model(images())
    assert not model[1].running_mean.is_inference()


def test_a_copy_decides_for_itself() -> None:
    model = network()
    copied = copy.deepcopy(model)
    model(images())
    copied(images(16))
    assert groups(model) == [16, 32, 32]
    assert groups(copied) == [16, 32, 64]


def test_optimizers_need_not_wait() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = [p.clone() for p in model.parameters()]
    model(images()).square().mean().backward()
    optimizer.step()
    changed = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert sum(changed) >= len(changed) - 3, "all but biases before a normalizer"


def test_without_running_statistics() -> None:
    layer = bgn.BatchGroupNorm2d(64, "auto", track_running_stats=False)
    layer(torch.randn(8, 64, 1, 1))
    assert layer.num_groups == 32
    assert layer.running_mean is None


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (bgn.BatchGroupNorm1d(64, "auto"), (8, 64)),
        (bgn.BatchGroupNorm3d(64, "auto"), (9, 64, 1, 1, 1)),
    ],
)
def test_other_dimensions(layer: nn.Module, x: tuple[int, ...]) -> None:
    layer(torch.randn(*x))
    assert layer.num_groups == enough_groups(64, torch.Size(x).numel() // 64, ENOUGH)


def test_a_single_image_has_one_group() -> None:
    model = network()
    with pytest.warns(
        UserWarning, match="batches of one image is 1 group; GroupNorm does better there"
    ):
        model(images(1))
    assert groups(model) == [1, 1, 1]
    with pytest.warns(UserWarning, match="one image"):
        bgn.convert(network(nn.BatchNorm2d), num_groups="auto", batch_size=1, sample=(3, 8, 8))


def test_an_empty_batch_does_not_decide() -> None:
    layer = bgn.BatchGroupNorm2d(8, "auto")
    assert layer(torch.randn(0, 8, 4, 4)).shape == (0, 8, 4, 4)
    assert layer.undecided


def test_bad_first_batches_change_nothing() -> None:
    layer = bgn.BatchGroupNorm2d(8, "auto")
    layer.weight = nn.Parameter(torch.ones(7))
    with pytest.raises(ValueError, match=r"weight has shape \(7,\)"):
        layer(torch.randn(2, 8, 2, 1))
    assert (layer.undecided, layer.num_groups) == (True, 8)
    layer = bgn.BatchGroupNorm2d(8, "auto")
    with pytest.raises(ValueError, match="7 channels|num_features=8"):
        layer(torch.randn(2, 7, 4, 4))
    assert layer.undecided


def test_convert_with_a_sample_keeps_the_output() -> None:
    model = network(nn.BatchNorm2d)
    for step in range(5):
        model(images(8) + step)
    expected = model.eval()(images())
    bgn.convert(model, num_groups="auto", batch_size=8, sample=(3, 8, 8))
    assert groups(model) == [16, 32, 32]
    torch.testing.assert_close(model(images()), expected, rtol=1e-4, atol=1e-5)
    same = network(nn.BatchNorm2d)
    bgn.convert(same, num_groups="auto", batch_size=8, sample=images(1))
    assert groups(same) == groups(model)
    bgn.convert(model, num_groups="auto", batch_size=64, sample=(3, 8, 8))
    assert groups(model) == [16, 32, 64], "a larger batch: batch normalization again"
    torch.testing.assert_close(model(images()), expected, rtol=1e-4, atol=1e-5)


def test_a_layer_that_is_called_twice_has_enough_in_both() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(32)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.norm(nn.functional.avg_pool2d(self.norm(x), 4))
            return y

    model = bgn.convert(Twice(), num_groups="auto", batch_size=2, sample=(32, 8, 8))
    assert model.norm.num_groups == enough_groups(32, 2 * 2 * 2, ENOUGH)  # type: ignore[union-attr]


def test_what_is_missing_is_said() -> None:
    with pytest.raises(
        ValueError,
        match="num_groups='auto' needs batch_size.* and sample.*got batch_size=2, sample=None",
    ):
        bgn.convert(network(nn.BatchNorm2d), num_groups="auto", batch_size=2)
    with pytest.raises(
        ValueError,
        match="sample is for norm='bgn' with num_groups='auto'; norm='bgn', num_groups=8",
    ):
        bgn.convert(network(nn.BatchNorm2d), num_groups=8, sample=(3, 8, 8))
    with pytest.raises(
        ValueError,
        match="num_groups='Auto'; expected an int, 'paper', 'auto', 'channels' or a function",
    ):
        bgn.convert(network(nn.BatchNorm2d), num_groups="Auto", batch_size=2)
    with pytest.raises(ValueError, match="num_groups='Auto'; expected an int.* or 'auto'"):
        bgn.BatchGroupNorm2d(8, "Auto")
    with pytest.raises(TypeError, match="BatchGroupNorm2d: num_groups=None; expected an int"):
        bgn.BatchGroupNorm2d(8)
    with pytest.raises(ValueError, match="num_groups='auto'; expected an int of at least 1$"):
        bgn.GeneralBatchGroupNorm2d(8, "auto")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="number of groups is still to be decided"):
        bgn.convert_sync(network())


def test_describe_tells_what_it_will_be() -> None:
    model = network()
    assert [row.G for row in bgn.describe(model, (3, 8, 8), 8)] == [16, 32, 32]
    assert model[1].undecided
    assert [row.G for row in bgn.describe(model, (3, 8, 8), 16)] == [16, 32, 64]


def test_by_name() -> None:
    assert network(bgn.norm_layer("bgn", num_groups="auto"))[1].undecided
    assert bgn.norm_layer("bgn", num_groups="paper", batch_size=8)(64).num_groups == 16
    with pytest.raises(TypeError, match="num_groups='auto' is a str"):
        bgn.norm_layer("gn", num_groups="auto")
    with pytest.raises(ValueError, match="num_groups='auto' has no meaning for 'bn'"):
        bgn.norm_layer("bn", num_groups="auto")


@pytest.mark.slow
def test_compiled_models_need_a_batch_before() -> None:
    model = network()
    with pytest.raises(Exception, match="not compiled"):
        torch.compile(model, fullgraph=True)(images())
    torch._dynamo.reset()
    model(images())
    compiled = torch.compile(copy.deepcopy(model))
    torch.testing.assert_close(compiled(images()), model(images()), rtol=1e-4, atol=1e-5)


def test_an_untrained_state_dict_decides_nothing() -> None:
    target = network()
    target.load_state_dict(network().state_dict())
    assert target[1].undecided
    target(images())
    assert groups(target) == [16, 32, 32]


def test_without_running_statistics_a_batch_in_eval_mode_decides() -> None:
    layer = bgn.BatchGroupNorm2d(64, "auto", track_running_stats=False).eval()
    layer(torch.randn(8, 64, 1, 1))
    assert layer.num_groups == 32


@pytest.mark.parametrize("norm", ["bgn", "gbgn", "bn"])
def test_conversions_decide(norm: str) -> None:
    options = {"num_groups": 8} if norm != "bn" else {}
    model = bgn.convert(network(), norm, **options)  # type: ignore[arg-type]
    before = repr(model)
    model(images())
    assert repr(model) == before
    assert "auto" not in before
    planned = bgn.convert(network(), num_groups="auto", batch_size=8, sample=(3, 8, 8))
    assert groups(planned) == [16, 32, 32]
    assert not any(m.undecided for m in planned.modules() if isinstance(m, bgn.BatchGroupNorm2d))
    bgn.convert_sync(planned)


def test_replicas_do_not_decide() -> None:
    model = network()
    for module in model.modules():
        module._is_replica = True  # type: ignore[assignment]
    with pytest.raises(
        RuntimeError, match="in one process and not compiled; otherwise decide before: bgn.convert"
    ):
        model(images())
    with pytest.raises(TypeError, match="num_groups='auto' is a str; expected a positive int"):
        bgn.SyncBatchGroupNorm(8, "auto")  # type: ignore[arg-type]


def test_a_checkpoint_that_does_not_fit_decides_nothing() -> None:
    layer = bgn.BatchGroupNorm2d(8, "auto")
    state = bgn.BatchGroupNorm2d(8, 2).state_dict()
    state["weight"] = torch.ones(7)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        layer.load_state_dict(state)
    assert layer.undecided

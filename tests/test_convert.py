"""Conversion: the same output in eval mode, and nothing lost on the way."""

import copy
import inspect
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bgn
from tests.tolerance import assert_close


class Residual(nn.Module):
    """Convolutions and normalizers of several widths, a shared one, and a path around."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.again = self.norm
        self.wide = nn.Conv2d(16, 24, 1)
        self.norm_wide = nn.BatchNorm2d(24)
        self.head = nn.Linear(24, 12)
        self.norm_head = nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.again(self.conv2(torch.relu(self.norm(self.conv1(x))))))
        x = torch.relu(self.norm_wide(self.wide(x))).mean((2, 3))
        return self.norm_head(self.head(x))


def trained(
    model: nn.Module, size: tuple[int, ...] = (3, 9, 9), dtype: torch.dtype = torch.float64
) -> Any:
    """Statistics and affine away from their initial values."""
    torch.manual_seed(0)
    model = model.to(dtype).train()
    for _ in range(5):
        model(torch.randn(8, *size, dtype=dtype) * 2 + 1)
    with torch.no_grad():
        for layer in bgn.surgery.kinds.normalizers(model).values():
            for parameter in layer.parameters(recurse=False):
                parameter.add_(torch.randn_like(parameter))
    return model.eval()


x = torch.randn(4, 3, 9, 9, dtype=torch.float64)


@pytest.mark.parametrize("G", [1, 2, 4, 8, "C", "2C", "3C"])
def test_eval_output_stays(G: Any) -> None:
    model = trained(Residual())
    before = model(x)
    count = sum(p.numel() for p in model.parameters())
    groups = (
        G
        if isinstance(G, int)
        else lambda layer: layer.num_features * (1 if G == "C" else int(G[0]))
    )
    groups_fit = (
        groups
        if not isinstance(groups, int)
        else lambda layer: bgn.nearest_groups(layer.num_features, groups)
    )
    assert (
        bgn.convert(
            model,
            num_groups=lambda m: (
                None if m is model.norm_head and G in ("2C", "3C") else groups_fit(m)
            ),
        )
        is model
    )
    assert isinstance(model.norm, bgn.BatchGroupNorm2d)
    assert model.norm is model.again
    assert_close(model(x), before)
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize(
    ("cls", "shape"),
    [(nn.BatchNorm1d, (8,)), (nn.BatchNorm1d, (8, 5)), (nn.BatchNorm3d, (8, 2, 3, 3))],
)
def test_one_and_three_dimensions(cls: Any, shape: tuple[int, ...]) -> None:
    model = trained(nn.Sequential(cls(8)), shape)
    batch = torch.randn(3, *shape, dtype=torch.float64)
    before = model(batch)
    bgn.convert(model, num_groups=2)
    assert type(model[0]).__name__ == cls.__name__.replace("BatchNorm", "BatchGroupNorm")
    assert_close(model(batch), before)


def test_the_model_itself_may_be_a_normalizer() -> None:
    norm = trained(nn.BatchNorm2d(3))
    before = norm(x)
    new = bgn.convert(norm, num_groups=1)
    assert isinstance(new, bgn.BatchGroupNorm2d)
    assert_close(new(x), before)


@pytest.mark.parametrize("dead", [0.0, 1e-3, 1.0])
def test_float32_error_is_bounded_by_the_distance_of_the_means(dead: float) -> None:
    """|error| <= a few eps * |w| * (sigma_g + |mu_g - mu_c|) / sigma_c * |x - mu_g| / sigma_g."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8).eval()
    norm.running_mean = torch.linspace(-30, 50, 8)
    norm.running_var = torch.cat([torch.full((2,), dead), torch.ones(6)])
    batch = norm.running_mean.view(1, 8, 1, 1) + torch.randn(4, 8, 5, 5)
    exact = copy.deepcopy(norm).double()(batch.double())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new: Any = bgn.convert(norm, num_groups=2)
    sigma_c = (
        (torch.cat([torch.full((2,), dead), torch.ones(6)]) + 1e-5)
        .sqrt()
        .repeat_interleave(1)
        .view(1, 8, 1, 1)
    )
    mean_g = new.running_mean.repeat_interleave(4).view(1, 8, 1, 1)
    sigma_g = (new.running_var + 1e-5).sqrt().repeat_interleave(4).view(1, 8, 1, 1)
    mean_c = torch.linspace(-30, 50, 8).view(1, 8, 1, 1)
    growth = (sigma_g + (mean_g - mean_c).abs()) / sigma_c * (1 + (batch - mean_g).abs() / sigma_g)
    error = (new(batch).double() - exact).abs()
    assert (error <= 4 * torch.finfo(torch.float32).eps * growth).all()
    if dead == 0:  # next to no variance: the weight is large, and so is what rounding leaves
        assert new.weight[:2].min() > 1000
        assert growth.max() > 5000


def test_a_dead_channel_is_said() -> None:
    norm = nn.BatchNorm2d(4).eval()
    norm.running_var = torch.tensor([0.0, 4.0, 4.0, 4.0])
    with pytest.warns(UserWarning, match=r"next to no variance .*: 0 \(x\d{3}\)"):
        bgn.convert(nn.Sequential(norm), num_groups=1)


def test_other_groups_are_refused_with_the_nearest_and_nothing_changes() -> None:
    model = trained(Residual())
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ValueError,
        match=r"2 layers \(norm_wide \(BatchNorm2d\), norm_head \(BatchNorm1d\)\): num_groups=16"
        r" neither divides the channels .* fits: 12 for 24 channels, 12 for 12 channels",
    ) as error:
        bgn.convert(model, num_groups=16)
    assert "stem" not in str(error.value)
    assert type(model.norm) is nn.BatchNorm2d
    assert all(torch.equal(model.state_dict()[k], v) for k, v in state.items())


def test_other_groups_are_converted_when_asked() -> None:
    model = trained(Residual())
    before = model(x)
    with pytest.warns(UserWarning, match=r"changes \(exact=False\): norm_wide$"):
        bgn.convert(model, num_groups=16, exact=False, only=nn.BatchNorm2d)
    after = model(x)
    assert 0 < (after - before).abs().max() < 10
    assert torch.corrcoef(torch.stack([after.flatten(), before.flatten()]))[0, 1] > 0.8


@pytest.mark.parametrize("norm", ["in", "ln", "gn", "pn"])
def test_to_and_from_per_sample_normalizers(norm: str) -> None:
    model = nn.Sequential(trained(Residual()).stem)
    weight = model[0][1].weight.clone()
    options = {"num_groups": 32} if norm == "gn" else {}
    with pytest.warns(UserWarning, match="only weight and bias are carried over"):
        bgn.convert(model, norm, **options)
    assert torch.equal(model[0][1].weight, weight)
    assert model[0][1].eps == 1e-5
    with pytest.warns(UserWarning, match="only weight and bias are carried over"):
        bgn.convert(model, "bgn", num_groups="paper", batch_size=4)
    assert isinstance(model[0][1], bgn.BatchGroupNorm2d)
    assert torch.equal(model[0][1].weight, weight)


def test_to_gbgn_and_back_to_batch_norm() -> None:
    model = trained(Residual().stem)
    before = model(x)
    bgn.convert(model, "gbgn", num_groups=5)
    assert model[1].running_mean.shape == (5,)
    assert_close(model(x), before)
    bgn.convert(model, "bn")
    assert type(model[1]) is nn.BatchNorm2d
    assert_close(model(x), before)


def test_regroup_and_back() -> None:
    model = trained(Residual())
    bgn.convert(model, num_groups=1)
    model = trained(model)
    before = model(x)
    for groups in (4, 2, lambda layer: layer.num_features):
        bgn.regroup(model, groups)
        assert_close(model(x), before)
    bgn.convert(model, "bn")
    assert type(model.norm) is nn.BatchNorm2d
    assert type(model.norm_head) is nn.BatchNorm1d
    assert_close(model(x), before)
    with pytest.raises(ValueError, match="has no normalizer of type"):
        bgn.regroup(model, 2)


def test_regroup_refines_strips() -> None:
    norm: Any = trained(nn.Sequential(bgn.BatchGroupNorm2d(2, 6)), (2, 12, 5))
    batch = torch.randn(2, 2, 12, 5, dtype=torch.float64)
    before = norm(batch)
    bgn.regroup(norm, 12)
    assert_close(norm(batch), before)
    with pytest.raises(ValueError, match="its 12 groups cannot become 2 with the same output"):
        bgn.regroup(norm, 2)


def test_twice_is_once() -> None:
    model = trained(Residual())
    bgn.convert(model, num_groups=4)
    layer, state = model.norm, copy.deepcopy(model.state_dict())
    bgn.convert(model, num_groups=4)
    assert model.norm is layer
    assert all(torch.equal(model.state_dict()[k], v) for k, v in state.items())


def test_refusals_of_arguments() -> None:
    with pytest.raises(
        ValueError, match="has no normalizer that is known here; nothing to convert"
    ):
        bgn.convert(nn.Sequential(nn.Conv2d(3, 4, 3)), num_groups=1)
    model = Residual()
    with pytest.raises(ValueError, match="num_groups=None and batch_size=None"):
        bgn.convert(model)
    with pytest.raises(ValueError, match="norm='BGN' is not known; .* did you mean 'bgn'"):
        bgn.convert(model, "BGN", num_groups=1)
    with pytest.raises(ValueError, match="num_groups='auto'"):
        bgn.convert(model, num_groups="auto")
    with pytest.raises(ValueError, match="num_groups='paper' needs batch_size"):
        bgn.convert(model, num_groups="paper")
    with pytest.raises(ValueError, match="num_groups=3 has no meaning for 'ln'"):
        bgn.convert(model, "ln", num_groups=3)
    with pytest.raises(TypeError, match=r"num_groups\(layer\) for BatchNorm2d.*=2.5"):
        bgn.convert(model, num_groups=lambda _: 2.5)
    with pytest.raises(ValueError, match="norm_head .*'pn' exists for"):
        bgn.convert(model, "pn")
    state = copy.deepcopy(model.state_dict())
    for option in ("momentun", "bias", "dtype"):
        with pytest.raises(
            TypeError,
            match=f"convert got the options {option}; accepted for the layers: eps, momentum",
        ):
            bgn.convert(model, num_groups=2, **{option: False})
    with pytest.raises(ValueError, match="it is on the meta device"):
        bgn.convert(nn.Sequential(nn.BatchNorm2d(4, device="meta")), num_groups=2)
    with pytest.raises(ValueError, match="momentum=7"):
        bgn.convert(model, num_groups=2, momentum=7)
    assert type(model.norm) is nn.BatchNorm2d
    assert all(torch.equal(model.state_dict()[k], v) for k, v in state.items())


def test_from_instance_norm_the_new_layer_tracks_statistics() -> None:
    with pytest.warns(UserWarning, match="only weight and bias"):
        model: Any = bgn.convert(nn.Sequential(nn.InstanceNorm2d(4, affine=True)), num_groups=2)
    assert model[0].running_mean.shape == (2,)


def test_paper_groups_from_the_batch_size() -> None:
    def groups(channels: int, batch_size: int) -> Any:
        model = nn.Sequential(nn.BatchNorm2d(channels))
        return bgn.convert(model, num_groups="paper", batch_size=batch_size)[0].num_groups  # type: ignore[index]

    assert [groups(64, n) for n in (8, 2)] == [16, 1]
    assert groups(24, 8) == 12  # 16 would change its output


def test_what_is_attached_survives() -> None:
    model: Any = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, eps=1e-3, momentum=0.05), nn.ReLU()
    ).bfloat16()
    old = model[1]
    old.bias.requires_grad_(False)
    old.note = "mine"
    calls: list[str] = []
    handle = old.register_forward_hook(lambda *_: calls.append("hook"))
    model.eval()
    bgn.convert(model, num_groups=2)
    new = model[1]
    assert new is not old
    assert (new.weight.dtype, new.running_mean.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (new.weight.requires_grad, new.bias.requires_grad) == (True, False)
    assert (new.eps, new.momentum, new.note, new.training) == (1e-3, 0.05, "mine", False)
    model(torch.randn(2, 3, 5, 5).bfloat16())
    assert calls == ["hook"]
    handle.remove()
    model(torch.randn(2, 3, 5, 5).bfloat16())
    assert calls == ["hook"]
    meta = bgn.convert(nn.Sequential(nn.BatchNorm2d(8)), num_groups=2, momentum=None, eps=1e-2)
    assert (meta[0].momentum, meta[0].eps) == (None, 1e-2)


def test_another_eps_keeps_the_output() -> None:
    model = trained(Residual().stem)
    before = model(x)
    assert_close(bgn.convert(model, num_groups=4, eps=1e-2)(x), before)


def test_without_affine() -> None:
    model = trained(nn.Sequential(nn.BatchNorm2d(4, affine=False)), (4, 6, 6))
    batch = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    before = model(batch)
    with pytest.raises(
        ValueError, match="no weight and bias to take up the difference .* affine=True adds them"
    ):
        bgn.convert(model, num_groups=2)
    assert_close(bgn.convert(copy.deepcopy(model), num_groups=8)(batch), before)
    new = bgn.convert(model, num_groups=2, affine=True)
    assert_close(new(batch), before)
    assert all(p.requires_grad for p in new.parameters())


def test_without_running_statistics() -> None:
    model: Any = nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.warns(UserWarning, match="only weight and bias"):
        bgn.convert(model, num_groups=2)
    assert model[0].running_mean is None


def test_affine_is_not_thrown_away() -> None:
    with pytest.raises(ValueError, match="affine=False would throw its weight and bias away"):
        bgn.convert(nn.Sequential(nn.BatchNorm2d(4)), num_groups=4, affine=False)


def test_full_backward_hooks_survive() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    calls: list[int] = []
    model[1].register_full_backward_hook(lambda *_: calls.append(1))
    bgn.convert(model, num_groups=2)(torch.randn(2, 3, 5, 5)).sum().backward()
    assert calls == [1]


def test_blocks_and_names_of_groups_survive() -> None:
    model: Any = bgn.convert(
        nn.Sequential(bgn.GeneralBatchGroupNorm2d(8, 4, batch_blocks=2)), "gbgn", num_groups=2
    )
    assert model[0].batch_blocks == 2
    with pytest.warns(UserWarning, match="only weight and bias"):
        model = bgn.convert(nn.Sequential(nn.BatchNorm2d(64)), "gn")
    layer = model[0]
    assert bgn.convert(model, "gn")[0] is layer
    x = torch.randn(2, 4, 5, 5)
    model = nn.Sequential(nn.InstanceNorm2d(4, affine=True))
    assert_close(
        bgn.convert(model, "in")(x), nn.InstanceNorm2d(4)(x)
    )  # the same statistics, so no warning


def test_narrow_layers_get_fewer_groups_of_group_norm_in_one_warning() -> None:
    model: Any = nn.Sequential(*(nn.BatchNorm2d(C) for C in (8, 64, 8, 24, 1)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bgn.convert(model, "gn")
    assert [layer.num_groups for layer in model] == [4, 32, 4, 12, 1]
    assert all(
        layer.num_groups == bgn.norm_layer("gn")(layer.num_channels).num_groups for layer in model
    )
    (text,) = [str(w.message) for w in caught if "narrow" in str(w.message)]
    assert "G=4 for 8 channels: 0, 2; G=12 for 24 channels: 3; G=1 for 1 channels: 4" in text


def test_an_int_of_groups_is_kept_and_a_function_may_not_split_channels() -> None:
    def model() -> Any:
        return nn.Sequential(nn.BatchNorm2d(8), nn.BatchNorm2d(12))

    with pytest.warns(UserWarning, match="only weight and bias"):
        kept = bgn.convert(model(), "gn", num_groups=32)
    assert [layer.num_groups for layer in kept] == [32, 32]
    words = r"2 layers .*num_groups\(layer\)=32 splits channels; expected a divisor of 8, 12"
    with pytest.raises(ValueError, match=words):
        bgn.convert(model(), "gn", num_groups=lambda _: 32)
    with pytest.warns(UserWarning, match="only weight and bias"):
        fits = bgn.convert(model(), "gn", num_groups=lambda layer: layer.num_features // 4)
    assert [layer.num_groups for layer in fits] == [2, 3]


def test_many_layers_with_one_problem_are_one_line() -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(2**k) for k in range(3, 11) for _ in range(8)))
    with pytest.raises(ValueError, match="nothing was converted") as error:
        bgn.convert(model, num_groups=7)
    text = str(error.value)
    assert len(text.splitlines()) == 2
    assert "64 layers (0 (BatchNorm2d), " in text
    assert "and 59 more" in text
    assert "the nearest that fits: 8 for 8 channels, 8 for 16 channels, " in text


def test_many_problems_are_not_many_lines() -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(30)))
    for k, layer in enumerate(model):
        layer.register_buffer(f"extra{k}", torch.ones(1))
    with pytest.raises(ValueError, match=r"22 more layers for other reasons: 8 .*") as error:
        bgn.convert(model, num_groups=2)
    assert len(str(error.value).splitlines()) <= 10


def test_numpys_integers_are_accepted() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    bgn.convert(model, num_groups=np.int64(2))
    assert (model[1].num_groups, type(model[1].num_groups)) == (2, int)
    bgn.regroup(model, lambda _: np.int64(4))
    assert (model[1].num_groups, type(model[1].num_groups)) == (4, int)
    bgn.convert(model, num_groups="paper", batch_size=np.int64(2))
    assert model[1].num_groups == 1
    shape = tuple(np.int64(n) for n in (3, 8, 8))
    bgn.convert(model, num_groups="auto", batch_size=np.int64(2), sample=shape)
    assert model[1].num_groups == 8


@pytest.mark.parametrize("sample", [None, (3, 8, 8)])
def test_a_misspelled_word_is_told_the_right_ones(sample: Any) -> None:
    for word in ("Auto", "papr"):
        with pytest.raises(
            ValueError, match=rf"num_groups='{word}'.*'paper', 'auto'.*did you mean"
        ):
            bgn.convert(Residual(), num_groups=word, batch_size=2, sample=sample)
    with pytest.raises(TypeError, match="'paper', 'auto' and 'channels' are for 'bgn'"):
        bgn.convert(Residual(), "gn", num_groups="auto", batch_size=2, sample=sample)


needs_bias_option = pytest.mark.skipif(
    "bias" not in inspect.signature(nn.BatchNorm2d.__init__).parameters,
    reason="this torch has no bias= in its normalizers",
)


@needs_bias_option
class TestWithoutBias:
    """Layers with a weight but no bias."""

    def test_a_shift_of_the_means_adds_a_bias(self) -> None:
        model = trained(nn.Sequential(nn.BatchNorm2d(3, bias=False)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        before, weight = model(x), model[0].weight
        with pytest.warns(UserWarning, match="a bias is added, .* difference of the means: 0"):
            bgn.convert(model, num_groups=1, optimizer=optimizer)
        assert_close(model(x), before)
        assert model[0].weight is weight
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert id(model[0].bias) in known

    @pytest.mark.parametrize("G", [3, 6])
    def test_without_a_shift_there_is_none(self, G: int) -> None:
        model = trained(nn.Sequential(nn.BatchNorm2d(3, bias=False)))
        before = model(x[:, :, :8, :8])
        bgn.convert(model, num_groups=G)
        assert model[0].bias is None
        assert list(model.state_dict())[:2] == ["0.weight", "0.running_mean"]
        assert_close(model(x[:, :, :8, :8]), before)
        model.train()(x[:, :, :8, :8]).sum().backward()

    @pytest.mark.parametrize("norm", ["gn", "ln", "in", "pn"])
    def test_per_sample_normalizers_have_none_either(self, norm: str) -> None:
        options = {"num_groups": 2} if norm == "gn" else {}
        model: Any = nn.Sequential(nn.BatchNorm2d(8, bias=False))
        with pytest.warns(UserWarning, match="only weight and bias"):
            bgn.convert(model, norm, **options)
        assert (model[0].weight is not None, model[0].bias) == (True, None)
        model(torch.randn(2, 8, 4, 4))

    def test_group_norm_becomes_batch_group_norm(self) -> None:
        model: Any = nn.Sequential(nn.GroupNorm(2, 8, bias=False))
        nn.init.normal_(model[0].weight)
        weight = model[0].weight
        with pytest.warns(UserWarning, match="only weight and bias"):
            bgn.convert(model, num_groups=2)
        assert model[0].weight is weight
        assert model[0].bias is None

    def test_the_other_functions(self) -> None:
        model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, bias=False)))
        before = model(x)
        assert_close(bgn.fold(model)(x), before)
        (row,) = bgn.describe(model, (3, 9, 9), 2)
        assert (row.kind, row.G) == ("bn", 8)
        bgn.freeze(model).train()
        assert_close(model(x), before)
        bgn.unfreeze(model).eval()
        bgn.convert_sync(model)
        assert model[1].bias is None
        assert_close(model(x), before)


@pytest.mark.parametrize(
    "layer",
    [
        bgn.BatchGroupNorm2d(8, 2),
        bgn.BatchGroupNorm2d(8, "auto"),
        bgn.GeneralBatchGroupNorm2d(8, 2, batch_blocks=2),
    ],
)
@pytest.mark.filterwarnings("ignore:convert. statistics are no longer those of blocks")
def test_a_batch_norm_has_only_its_own_attributes(layer: nn.Module) -> None:
    layer.note = "mine"  # type: ignore[assignment]
    model = bgn.convert(nn.Sequential(layer), "bn")
    assert vars(model[0]).keys() - vars(nn.BatchNorm2d(8)).keys() == {"note"}
    assert model[0].note == "mine"
    (row,) = bgn.describe(model, (8, 4, 4), batch_size=2)
    assert (row.kind, row.G, row.acts_as) == ("bn", 8, "BN")
    assert bgn.convert(model, "bn")[0] is model[0], "it is what it should be"


def test_an_attribute_of_the_users_own_is_no_number_of_groups() -> None:
    model: Any = nn.Sequential(nn.BatchNorm2d(8))
    model[0].num_groups = 2
    assert bgn.convert(model, num_groups=4)[0].num_groups == 4


@pytest.mark.parametrize("G", [8, 16, 32, 64])
def test_a_layer_whose_groups_a_batch_decided_gets_those_that_are_asked_for(G: int) -> None:
    model: Any = nn.Sequential(bgn.BatchGroupNorm2d(64, "auto"))
    model(torch.randn(8, 64, 1, 1))
    assert model[0].num_groups == 32
    batch = torch.randn(2, 64, 2, 2)
    before = model.eval()(batch)
    bgn.convert(model, num_groups=G)
    assert (model[0].num_groups, model[0].running_mean.shape) == (G, (G,))
    assert_close(model(batch), before)


def test_as_many_groups_as_channels() -> None:
    """For renormalization of BN, by one word, whatever the layers' channels."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4)
    )
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        model(x)
    expected = model.eval()(x)
    bgn.convert(model, num_groups="channels", renorm=True)
    assert [model[1].num_groups, model[3].num_groups] == [6, 4]
    assert_close(model(x), expected)
    layer = bgn.norm_layer("bgn", num_groups="channels")(12)
    assert (layer.num_groups, bgn.BatchGroupNorm2d(5, "channels").num_groups) == (12, 5)

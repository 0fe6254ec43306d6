"""Standardized weights: the formula, what is standardized, and what is refused."""

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

import bgn
from bgn.surgery.standardized import Standardized, elements
from tests.test_convert import Residual, trained, x
from tests.test_fold import Tied
from tests.tolerance import assert_close

LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: nn.Conv1d(4, 8, 3), (4, 9)),
    (lambda: nn.Conv2d(4, 8, 3, stride=2, groups=2, bias=False), (4, 9, 9)),
    (lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1, padding_mode="reflect"), (8, 9, 9)),
    (lambda: nn.Conv3d(4, 8, 2), (4, 3, 4, 5)),
    (lambda: nn.ConvTranspose1d(4, 8, 3), (4, 9)),
    (lambda: nn.ConvTranspose2d(4, 8, 3, stride=2, groups=2, bias=False), (4, 5, 5)),
    (lambda: nn.ConvTranspose2d(8, 8, 2, groups=8, stride=2), (8, 5, 5)),
    (lambda: nn.ConvTranspose3d(4, 8, 2, dilation=2), (4, 3, 4, 5)),
    (lambda: nn.Linear(5, 8), (5,)),
]


def behind(layer: Any, shape: tuple[int, ...]) -> Any:
    """The layer with a normalizer, in float64."""
    spatial = max(len(shape) - 1, 1)
    norm = getattr(bgn, f"BatchGroupNorm{spatial}d")(8, 2)
    return nn.Sequential(layer, norm, nn.ReLU()).double()


def by_hand(layer: Any, eps: float, gain: Tensor | None = None) -> Tensor:
    """The formula, one output channel after the other."""
    weight = layer.weight.detach().clone()
    transposed = "Transpose" in type(layer).__name__
    width = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    for o in range(width):
        if transposed:
            inner, rows = weight.shape[1], len(weight) // layer.groups
            group = slice(o // inner * rows, (o // inner + 1) * rows)
            own = weight[group, o % inner]
        else:
            own = weight[o]
        mean = own.mean()
        own.sub_(mean).div_((own.square().mean() + eps).sqrt())
        if gain is not None:
            own.mul_(gain[o])
    return weight


def plain(layer: Any) -> Any:
    """A copy that the library does not touch."""
    return copy.deepcopy(layer)


@pytest.mark.parametrize("gain", [False, True])
@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_the_formula_by_hand(make: Any, shape: tuple[int, ...], gain: bool) -> None:
    model = behind(make(), shape)
    expected = plain(model)
    bgn.standardize(model, eps=1e-3, gain=gain, only=(type(expected[0]),))
    gains = None
    if gain:
        with torch.no_grad():
            gains = model[0].gain.copy_(torch.linspace(0.5, 2.0, 8))
    weight = by_hand(expected[0], 1e-3, gains)
    assert_close(model[0].standardized_weight(), weight)
    expected[0].weight.data = weight
    batch = torch.randn(2, *shape, dtype=torch.float64)
    assert_close(model(batch), expected(batch))


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_folding_bakes_it_in(make: Any, shape: tuple[int, ...]) -> None:
    layer = make()
    model = bgn.standardize(behind(layer, shape), gain=True, only=type(layer))
    model = trained(model, shape)
    batch = torch.randn(2, *shape, dtype=torch.float64)
    expected = model(batch)
    folded: Any = bgn.fold(model)
    assert type(folded[0]) is type(make())
    assert set(folded.state_dict()) == {"0.weight", "0.bias"}
    assert_close(folded(batch), expected)
    assert_close(model(batch), expected)


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_gradients(make: Any, shape: tuple[int, ...]) -> None:
    model = bgn.standardize(behind(make(), shape), gain=True, only=type(make()))
    batch = torch.randn(1, *shape, dtype=torch.float64)
    inputs = model[0].weight, model[0].gain

    def function(weight: Tensor, gain: Tensor) -> Tensor:
        values = {"weight": weight, "gain": gain}
        return torch.func.functional_call(model[0], values, (batch,))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_timms_formula() -> None:
    conv = nn.Conv2d(6, 8, 3)
    model: Any = bgn.standardize(nn.Sequential(conv, nn.BatchNorm2d(8)))
    weight = F.batch_norm(
        conv.weight.reshape(1, 8, -1), None, None, training=True, momentum=0.0, eps=1e-6
    )
    assert_close(model[0].standardized_weight(), weight.reshape_as(conv.weight))


def test_that_the_normalizer_follows_is_what_counts() -> None:
    model: Any = bgn.standardize(Residual())
    names = {name for name, m in model.named_modules() if isinstance(m, Standardized)}
    assert names == {"stem.0", "conv1", "conv2", "wide"}, "with the shared normalizer's, no linear"
    bgn.standardize(model, only=nn.Linear)
    assert isinstance(model.head, Standardized)


@pytest.mark.parametrize("norm", ["bn", "in", "ln", "gn", "pn", "gbgn", "bgn"])
def test_every_normalizer_counts(norm: str) -> None:
    make = bgn.norm_layer(norm, batch_size=2)
    model = bgn.standardize(nn.Sequential(nn.Conv2d(3, 64, 3), make(64), nn.Conv2d(64, 3, 1)))
    assert [isinstance(m, Standardized) for m in model] == [True, False, False]


def test_twice_is_once_and_keys_stay() -> None:
    model = Residual()
    before = copy.deepcopy(model.state_dict())
    weight = model.conv1.weight
    assert bgn.standardize(bgn.standardize(model)) is model
    assert model.conv1.weight is weight
    assert type(model.conv1).__mro__.count(nn.Conv2d) == 1
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)
    model.load_state_dict(Residual().state_dict())
    with pytest.raises(
        ValueError, match=r"standardized with eps=1e-06, gain=False already; expected the same"
    ):
        bgn.standardize(model, eps=1e-5)


def test_plain_checkpoints_load_with_a_gain_too() -> None:
    checkpoint = Residual().state_dict()
    model: Any = bgn.standardize(Residual(), gain=True)
    model.conv1.gain.data.fill_(3.0)
    model.load_state_dict(checkpoint)
    assert torch.equal(model.conv1.gain, torch.ones(16))
    assert "conv1.gain" not in checkpoint
    assert "conv1.gain" in model.state_dict()


class Readers(nn.Module):
    """One convolution has a second reader, another is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.read, self.twice = (nn.Conv2d(3, 3, 1) for _ in range(3))
        self.a, self.b, self.c, self.d = (nn.BatchNorm2d(3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        y = self.read(x)
        return self.a(self.own(x)) + self.b(y) + y + self.c(self.twice(x)) + self.d(self.twice(y))


def test_other_readers() -> None:
    model: Any = bgn.standardize(Readers())
    found = {name for name, m in model.named_modules() if isinstance(m, Standardized)}
    assert found == {"own"}


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        self.conv, self.norm = nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return self.norm(self.conv(y)) if y.sum() > 0 else y


def test_what_cannot_be_traced_is_named() -> None:
    with pytest.warns(UserWarning, match=r"cannot be traced as a whole.*: norm$"):
        model: Any = bgn.standardize(Untraceable())
    assert isinstance(model.body[0], Standardized)
    assert not isinstance(model.conv, Standardized)


class OwnForward(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() else x  # control flow that no tracer follows


class OwnConvolution(nn.Conv2d):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, 2 * weight, bias)


def assigned() -> nn.Module:
    conv: Any = nn.Conv2d(3, 8, 3)
    conv.forward = lambda x: x
    return conv


def with_gain() -> nn.Module:
    conv: Any = nn.Conv2d(3, 8, 3)
    conv.gain = 1.0
    return conv


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OwnForward(3, 8, 3), r"1.0: its class tests.*OwnForward has a forward of its own"),
        (lambda: OwnConvolution(3, 8, 3), "OwnConvolution has a forward of its own"),
        (assigned, "Conv2d has a forward of its own"),
        (with_gain, "attribute gain or weight_eps of its own"),
        (lambda: nn.LazyConv2d(8, 3), "1.0: it is lazy; run a batch"),
        (
            lambda: parametrizations.weight_norm(nn.Conv2d(3, 8, 3)),
            "1.0: it is parametrized by _WeightNorm; .*remove_parametrizations first",
        ),
        (
            lambda: parametrizations.spectral_norm(nn.Conv2d(3, 8, 3)),
            "1.0: it is parametrized by _SpectralNorm",
        ),
        (lambda: nn.utils.weight_norm(nn.Conv2d(3, 8, 3)), r"before every call \(WeightNorm\)"),
        (lambda: nn.utils.spectral_norm(nn.Conv2d(3, 8, 3)), r"every call \(SpectralNorm\)"),
        (
            lambda: prune.random_unstructured(nn.Conv2d(3, 8, 3), "weight", 0.5),
            r"every call \(RandomUnstructured\)",
        ),
    ],
)
def test_refusals_by_name(make: Any, message: str) -> None:
    first = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
    model = nn.Sequential(nn.Sequential(*first), nn.Sequential(make(), nn.BatchNorm2d(8)))
    with pytest.raises(ValueError, match=f"(?s)nothing was standardized.*{message}"):
        bgn.standardize(model)
    assert not any(isinstance(m, Standardized) for m in model.modules())


def test_a_weight_that_others_use_as_it_is_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1))
    model[2].weight = model[0].weight
    with pytest.raises(ValueError, match=r"0: its weight is also 2.weight"):
        bgn.standardize(model)
    both: Any = nn.Sequential(*model, nn.BatchNorm2d(8))
    bgn.standardize(both)
    assert both[0].weight is both[2].weight
    assert_close(both[0].standardized_weight(), both[2].standardized_weight())
    with pytest.raises(ValueError, match="has no Linear that a normalizer follows"):
        bgn.standardize(Tied(), only=nn.Linear)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"eps": 0}, ValueError, "eps=0 is not accepted; expected a finite float above 0"),
        ({"eps": float("nan")}, ValueError, "eps=nan is not accepted"),
        ({"eps": "1e-5"}, ValueError, "eps='1e-5' is not accepted"),
        ({"gain": 1}, TypeError, "gain=1 is a int; expected a bool"),
        ({"only": nn.ReLU}, TypeError, "only=.* has .*ReLU.*; expected nn.Conv1d, .*nn.Linear"),
        ({"only": nn.Conv3d}, ValueError, "has no Conv3d that a normalizer follows"),
    ],
)
def test_arguments(values: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), **values)


def test_models_without_something_to_standardize() -> None:
    with pytest.raises(ValueError, match="has no normalizer that is known here"):
        bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3)))
    with pytest.raises(ValueError, match="has no convolution that a normalizer follows"):
        bgn.standardize(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3)))


def test_filters_of_one_number_are_left() -> None:
    model: Any = nn.Sequential(
        nn.Conv2d(8, 8, 1, groups=8), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, groups=8),
        nn.BatchNorm2d(8),
    )  # fmt: skip
    with pytest.warns(UserWarning, match="single number have no deviation, so left: 0$"):
        bgn.standardize(model)
    assert [isinstance(model[i], Standardized) for i in (0, 2)] == [False, True]
    assert elements(model[2]) == 9


def test_running_statistics_of_other_weights_get_a_warning() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    for _ in range(10):
        trained(model)
    lost: Any = copy.deepcopy(model)
    lost[1].num_batches_tracked.zero_()  # as in checkpoints without the counter
    for one in (model, lost):
        with pytest.warns(UserWarning, match="running statistics are those of the weights .*: 1$"):
            bgn.standardize(one)
    bgn.recalibrate(model, [x])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bgn.standardize(model)


def test_parametrized_afterwards() -> None:
    class Half(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight.tanh()

    model = bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    parametrize.register_parametrization(model[0], "weight", Half())  # type: ignore[arg-type]
    model = trained(model)
    folded: Any = bgn.fold(model)
    assert type(folded[0]) is nn.Conv2d
    assert_close(folded(x), model(x))


def test_hooks_stay_and_see_nothing_of_the_tracing() -> None:
    model: Any = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    seen: list[type] = []
    for module in (model[0], model[0][0]):
        module.register_forward_hook(lambda module, *_: seen.append(type(module)))
    bgn.standardize(model)
    assert seen == []
    model(torch.randn(2, 3, 8, 8))
    assert seen == [type(model[0][0]), nn.Sequential]


class Keeper(nn.Module):
    """Keeps what it computes, as networks do that are looked into."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.last: Any = None
        self.maps: list[Any] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = self.norm(self.conv(x))
        self.maps.append(self.last)
        return self.last  # type: ignore[no-any-return]


@pytest.mark.parametrize("change", [
    bgn.standardize,
    lambda model: bgn.convert(model, num_groups=2, fuse_act=True),
    lambda model: bgn.fold(model.eval()),
])  # fmt: skip
def test_tracing_leaves_nothing_behind(change: Any) -> None:
    model = change(Keeper())
    assert (model.last, model.maps, model.calls) == (None, [], 0)
    torch.save(model, io.BytesIO())


def test_a_weight_that_is_computed_before_every_call_is_not_folded() -> None:
    model = bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    prune.l1_unstructured(model[0], "weight", amount=0.3)  # type: ignore[index]
    match = (
        r"nothing was folded[\s\S]*0: its weight is computed before every call \(L1Unstructured\)"
    )
    with pytest.raises(ValueError, match=match):
        bgn.fold(model.eval())
    prune.remove(model[0], "weight")  # type: ignore[index]
    model.double()
    assert_close(bgn.fold(model)(x), model(x))


def test_a_gain_is_reset() -> None:
    model: Any = bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), gain=True)
    nn.init.constant_(model[0].gain, 777.0)
    model[0].reset_parameters()
    assert torch.equal(model[0].gain, torch.ones(8))


def test_script_says_what_to_do_instead() -> None:
    model = bgn.standardize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    with pytest.raises(RuntimeError, match="cannot compile StandardizedConv2d; use .* bgn.fold"):
        torch.jit.script(model)

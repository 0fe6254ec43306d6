"""Folding: the same output from convolutions alone."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import bgn
from tests.test_convert import Residual, trained, x
from tests.tolerance import assert_close


def norms_in(model: nn.Module) -> int:
    return len(bgn.surgery.kinds.normalizers(model))


@pytest.mark.parametrize("G", [1, 2, "C"])
def test_a_residual_model_through_fx(G: Any) -> None:
    model = trained(Residual())
    bgn.convert(model, num_groups=G if G != "C" else lambda layer: layer.num_features)
    before, keys = model(x), set(model.state_dict())
    with pytest.warns(
        UserWarning, match="left: norm$"
    ):  # the one that is shared between two convolutions
        folded: Any = bgn.fold(model)
    assert norms_in(folded) == 1
    assert type(folded) is Residual
    assert isinstance(folded.stem[1], nn.Identity)
    assert_close(folded(x), before)
    assert_close(model(x), before)
    assert set(model.state_dict()) == keys


@pytest.mark.parametrize(
    ("linear", "shape"),
    [
        (nn.Conv1d(4, 8, 3), (4, 9)),
        (nn.Conv2d(4, 8, 3, groups=4, bias=False), (4, 9, 9)),
        (nn.Conv2d(8, 8, 3, groups=8, padding=1, padding_mode="reflect"), (8, 9, 9)),
        (nn.Conv3d(4, 8, 2), (4, 3, 4, 5)),
        (nn.ConvTranspose1d(4, 8, 3), (4, 9)),
        (nn.ConvTranspose2d(4, 8, 3, groups=2, bias=False), (4, 5, 5)),
        (nn.ConvTranspose2d(8, 8, 2, groups=8, stride=2), (8, 5, 5)),
        (nn.ConvTranspose3d(4, 8, 2), (4, 3, 4, 5)),
        (nn.Linear(5, 8), (5,)),
    ],
)
@pytest.mark.parametrize("G", [1, 4, 8])
def test_every_kind_of_convolution(linear: Any, shape: tuple[int, ...], G: int) -> None:
    spatial = max(len(shape) - 1, 1)
    norm = getattr(bgn, f"BatchGroupNorm{spatial}d")(8, G)
    model = trained(nn.Sequential(linear, norm, nn.ReLU()), shape)
    batch = torch.randn(2, *shape, dtype=torch.float64)
    folded = bgn.fold(model)
    assert norms_in(folded) == 0
    assert_close(folded(batch), model(batch))


class Untraceable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3), bgn.BatchGroupNorm2d(16, 4), nn.ReLU(), nn.Conv2d(16, 3, 3)
        )
        self.block = Residual()

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if y.sum() > 1e9:  # control flow that no tracer follows
            return y
        return self.block(torch.nn.functional.pad(y, (2, 2, 2, 2)))


def test_parts_of_what_cannot_be_traced() -> None:
    model = trained(Untraceable())
    with pytest.warns(UserWarning, match="left: block.norm$"):
        folded = bgn.fold(model, example=x)
    assert norms_in(folded) == 1
    assert_close(folded(x), model(x))


class Twice(nn.Module):
    """A convolution whose output is used before the normalizer too must not be touched."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return y + self.norm(y)


def test_a_convolution_with_another_reader_is_left() -> None:
    model = trained(Twice())
    with pytest.warns(UserWarning, match="left: norm$"):
        folded = bgn.fold(model)
    assert_close(folded(x), model(x))


def test_weight_norm_is_resolved_and_hooks_stay() -> None:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Conv2d(3, 8, 3)), bgn.BatchGroupNorm2d(8, 2)
    )
    model = trained(model)
    seen: list[Tensor] = []
    model[1].register_forward_hook(lambda _m, _i, output: seen.append(output))
    folded = bgn.fold(model)
    assert_close(folded(x), model(x))
    assert_close(seen[0], seen[1])


def test_half_a_model_keeps_its_dtype_and_gradients() -> None:
    model = trained(
        nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 2)), dtype=torch.float32
    ).bfloat16()
    model[0].weight.requires_grad_(False)
    folded: Any = bgn.fold(model)
    assert (folded[0].weight.dtype, folded[0].weight.requires_grad) == (torch.bfloat16, False)


def test_refusals() -> None:
    with pytest.raises(
        ValueError,
        match=r"  1: num_groups=16 cuts channels, .* divides 8 channels, or bgn.regroup\(model",
    ):
        bgn.fold(nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 16)).eval())
    with pytest.raises(ValueError, match=r"1: num_groups=3 cuts channels"):
        bgn.fold(nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 3)).eval())
    with pytest.raises(ValueError, match=r"in training mode \(1\); call model.eval\(\)"):
        bgn.fold(nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 2)))
    with pytest.raises(ValueError, match="nothing to fold"):
        bgn.fold(nn.Sequential(nn.Conv2d(3, 8, 3)).eval())


def test_per_sample_normalizers_stay() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), bgn.GroupNorm(2, 8)).double()
    with pytest.warns(UserWarning, match="left: 1$"):
        assert_close(bgn.fold(model)(x), model(x))


def test_the_way_out_of_a_refusal() -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 16)))
    with pytest.warns(UserWarning, match="exact=False"):
        bgn.regroup(model, 8, exact=False)
    bgn.recalibrate(model, [x])
    assert_close(bgn.fold(model)(x), model(x))


class BatchNormRelu(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def test_a_forward_of_its_own_is_not_folded_away() -> None:
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), BatchNormRelu(8)))
    with pytest.warns(UserWarning, match="with a forward of their own, so left: 1$"):
        assert_close(bgn.fold(model)(x), model(x))
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    model[1].forward = lambda x: x.relu()
    with pytest.warns(UserWarning, match="left: 1$"):
        assert_close(bgn.fold(model)(x), model(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm = nn.Linear(6, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.norm(self.encode(x)).relu(), self.encode.weight.t())


class Optional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        y: Tensor = self.conv(x)
        return y if skip is None else self.norm(y) + skip


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight / self.weight.std(), self.bias)


class ByHand(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            return x
        a = self[0](x)
        return self[1](a) + a


@pytest.mark.parametrize(
    ("model", "shape", "extra"),
    [
        (Tied(), (6,), ()),
        (Optional(), (3, 9, 9), (torch.randn(2, 8, 7, 7, dtype=torch.float64),)),
        (
            nn.Sequential(
                Standardized(3, 8, 3), nn.BatchNorm2d(8), ByHand(nn.Conv2d(8, 8, 1), nn.ReLU())
            ),
            (3, 9, 9),
            (),
        ),
        (ByHand(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), (3, 9, 9), ()),
    ],
)
@pytest.mark.filterwarnings("ignore:fold")
def test_other_readers_of_a_convolution(
    model: nn.Module, shape: tuple[int, ...], extra: tuple[Tensor, ...]
) -> None:
    model = trained(model, shape)
    batch = torch.randn(2, *shape, dtype=torch.float64)
    assert_close(bgn.fold(model)(batch, *extra), model(batch, *extra))


class Features(nn.Module):
    """No trace shows that the convolution's output is a result of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        if x.sum() > 1e9:
            return {}
        y = self.block[0](x)
        return {"conv": y, "norm": self.block[1](y)}


def test_an_example_makes_sure() -> None:
    model = trained(Features())
    with pytest.warns(UserWarning, match="cannot be traced as a whole; pass example="):
        bgn.fold(model)
    with pytest.raises(
        ValueError, match=r"output for the example differs by .*; nothing was folded"
    ):
        bgn.fold(model, example=x)
    model = trained(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    assert_close(bgn.fold(model, example=x)(x), model(x))


class Awkward(nn.Module):
    """Outputs that a comparison stumbles over: nothing, truth values, NaN, strings."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        z = self.body(x) + self.body(y)
        return z, z[:0], z > 0, z / torch.zeros_like(z), "name"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.filterwarnings("ignore:fold")
def test_awkward_outputs_and_coarse_dtypes_are_compared(dtype: torch.dtype) -> None:
    model = trained(Awkward().body, dtype=torch.float32)
    net = Awkward()
    net.body = model
    batch = x.to(dtype)
    bgn.fold(net.eval().to(dtype), example=(batch, batch))


def test_behind_a_linear_layer_only_rows_are_folded() -> None:
    model = trained(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), (6,))
    folded = bgn.fold(model)
    with pytest.raises(ValueError, match="this normalizer was folded for"):
        folded(torch.randn(2, 5, 6, dtype=torch.float64))


def test_hooks_see_nothing_of_the_tracing() -> None:
    model = trained(nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), nn.ReLU()))
    seen: list[Any] = []
    model[0].register_forward_hook(lambda _m, _i, output: seen.append(type(output)))
    folded = bgn.fold(model)
    assert seen == []
    folded(x)
    assert seen == [Tensor]

"""The layers: equal to torch.nn where the two must agree, at home where a BatchNorm is."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn
from bgn import kernels
from bgn.kernels import cpu
from tests.tolerance import assert_close

SHAPES: dict[int, tuple[int, ...]] = {1: (5,), 2: (5, 4), 3: (3, 4, 2)}
PAIRS: list[tuple[Any, Any, tuple[int, ...]]] = [
    (bgn.BatchGroupNorm1d, nn.BatchNorm1d, (4, 6)),
    (bgn.BatchGroupNorm1d, nn.BatchNorm1d, (4, 6, 5)),
    (bgn.BatchGroupNorm2d, nn.BatchNorm2d, (4, 6, 5, 4)),
    (bgn.BatchGroupNorm3d, nn.BatchNorm3d, (2, 6, 3, 4, 2)),
]


def randomise(layer: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    return layer


def step(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """Output and all gradients."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y = layer(x)
    (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


def assert_same_step(ours: nn.Module, theirs: nn.Module, x: Tensor) -> None:
    pairs = list(zip(step(ours, x), step(theirs, x), strict=True))
    assert len(pairs) >= 2
    for a, b in pairs:
        assert_close(a, b)


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS)
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}]
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_group_per_channel_is_batch_norm(
    ours: Any, theirs: Any, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    C = shape[1]
    a, b = ours(C, C, dtype=dtype, **options), theirs(C, dtype=dtype, **options)
    randomise(b)
    a.load_state_dict(b.state_dict())
    for i in range(30):
        x = torch.randn(shape, dtype=dtype) * (1 + i) + i
        assert_same_step(a, b, x)
    for key, value in b.state_dict().items():
        assert_close(a.state_dict()[key], value, dtype)
    a.eval()
    b.eval()
    assert_same_step(a, b, torch.randn(shape, dtype=dtype))
    if options.get("track_running_stats", True):
        assert_same_step(a, b, torch.randn(1, *shape[1:], dtype=dtype))


@pytest.mark.parametrize(("ours", "theirs", "shape"), PAIRS)
def test_state_dicts_are_interchangeable_with_batch_norm(
    ours: Any, theirs: Any, shape: tuple[int, ...]
) -> None:
    C = shape[1]
    a, b = ours(C, C), theirs(C)
    b(torch.randn(shape))
    assert list(a.state_dict()) == list(b.state_dict())
    assert a.state_dict()._metadata == b.state_dict()._metadata
    a.load_state_dict(b.state_dict())
    c = theirs(C)
    c.load_state_dict(a.state_dict())
    for key, value in b.state_dict().items():
        assert torch.equal(c.state_dict()[key], value)
    assert sum(p.numel() for p in ours(C, 1).parameters()) == sum(p.numel() for p in b.parameters())


def test_an_old_state_dict_without_the_counter_loads() -> None:
    state = {k: v for k, v in nn.BatchNorm2d(4).state_dict().items() if k != "num_batches_tracked"}
    norm = bgn.BatchGroupNorm2d(4, 4)
    norm.load_state_dict(state)
    assert norm.num_batches_tracked == 0


def test_a_state_dict_of_other_groups_is_refused_with_a_reason() -> None:
    model = nn.Sequential(bgn.BatchGroupNorm2d(8, 2))
    state = nn.Sequential(nn.BatchNorm2d(8)).state_dict()
    with pytest.raises(
        RuntimeError,
        match=r"checkpoint has 8 statistics, .* num_groups=2. .* build the model with that, load",
    ):
        model.load_state_dict(state)


@pytest.mark.parametrize("G", [1, 2, 3, 6])
def test_one_sample_is_group_norm(G: int) -> None:
    assert_same_step(
        bgn.BatchGroupNorm2d(6, G, dtype=torch.float64),
        nn.GroupNorm(G, 6, dtype=torch.float64),
        torch.randn(1, 6, 4, 5, dtype=torch.float64),
    )


@pytest.mark.parametrize("G", [1, 2, 3, 6])
def test_gbgn_in_one_block_is_bgn_and_in_n_blocks_is_group_norm(G: int) -> None:
    x = torch.randn(4, 6, 4, 5, dtype=torch.float64)
    one = bgn.GeneralBatchGroupNorm2d(6, G, dtype=torch.float64)
    whole = bgn.BatchGroupNorm2d(6, G, dtype=torch.float64)
    for _ in range(3):
        assert_same_step(one, whole, x)
    assert_close(one.running_mean, whole.running_mean)
    assert_close(one.running_var, whole.running_var)
    assert_same_step(one.eval(), whole.eval(), x)
    blocks = bgn.GeneralBatchGroupNorm2d(6, G, batch_blocks=4, dtype=torch.float64)
    assert_same_step(blocks, nn.GroupNorm(G, 6, dtype=torch.float64), x)


def test_gbgn_has_at_most_one_group_per_channel() -> None:
    norm = bgn.GeneralBatchGroupNorm2d(16)
    assert norm.running_mean.shape == (16,)
    assert_same_step(
        norm.double(), nn.BatchNorm2d(16, dtype=torch.float64), torch.randn(3, 16, 2, 2).double()
    )


@pytest.mark.parametrize("G", [1, 2, 3, 6])
def test_group_norm_is_torchs(G: int) -> None:
    x = torch.randn(4, 6, 4, 5, dtype=torch.float64)
    ours, theirs = bgn.GroupNorm(G, 6, dtype=torch.float64), nn.GroupNorm(G, 6, dtype=torch.float64)
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict())
    assert_same_step(ours, theirs, x)
    assert_close(bgn.functional.group_norm(x, G, ours.weight, ours.bias), theirs(x))
    assert str(ours) == str(theirs)


def test_group_norm_at_its_ends_is_layer_norm_and_instance_norm() -> None:
    x = torch.randn(4, 6, 4, 5, dtype=torch.float64)
    layer = nn.LayerNorm((6, 4, 5), elementwise_affine=False)
    assert_same_step(bgn.GroupNorm(1, 6, affine=False), layer, x)
    assert_same_step(bgn.GroupNorm(6, 6, affine=False), nn.InstanceNorm2d(6), x)


def test_another_spatial_size_at_test_time() -> None:
    norm = bgn.BatchGroupNorm2d(6, 9)
    norm(torch.randn(4, 6, 8, 8))
    norm.eval()
    for size in [(5, 7), (16, 16), (2, 1)]:
        y = norm(torch.randn(2, 6, *size))
        assert y.shape == (2, 6, *size)
        assert y.isfinite().all()
    with pytest.raises(ValueError, match="num_groups=9 exceeds the 6 features"):
        norm(torch.randn(2, 6, 1, 1))


def test_an_empty_batch_is_counted_and_moves_nothing() -> None:
    norm = bgn.BatchGroupNorm2d(6, 2)
    norm(torch.randn(0, 6, 4, 4)).sum().backward()
    assert norm.num_batches_tracked == 1
    assert torch.equal(norm.running_mean, torch.zeros(2))
    assert norm.weight.grad is not None


@pytest.mark.parametrize(
    ("layer", "shape", "words"),
    [
        (
            bgn.BatchGroupNorm2d(4, 2),
            (2, 4, 3),
            r"BatchGroupNorm2d got a 3D input of shape \(2, 4, 3\); expected 4D",
        ),
        (bgn.BatchGroupNorm1d(4, 2), (2, 4, 3, 3), r"expected 2D \(N, C\) or 3D \(N, C, L\)"),
        (bgn.BatchGroupNorm3d(4, 2), (2, 4, 3, 3), r"expected 5D \(N, C, D, H, W\)"),
        (bgn.BatchGroupNorm2d(4, 2), (2, 5, 3, 3), r"has 5 channels; expected num_features=4"),
        (bgn.GroupNorm(3, 4), (2, 5, 3, 3), r"has 5 channels; expected num_channels=4"),
        (bgn.PositionalNorm2d(4), (2, 5, 3, 3), r"has 5 channels; expected num_features=4"),
        (bgn.PositionalNorm2d(4), (2, 4, 3), r"PositionalNorm2d got a 3D input"),
        (bgn.BatchGroupNorm2d(4, 4), (1, 4, 1, 1), r"leaves 1 value per statistic in training"),
        (
            bgn.GeneralBatchGroupNorm2d(4, 4, batch_blocks=3),
            (5, 4, 1, 1),
            r"leaves 1 value per statistic in training",
        ),
    ],
)
def test_layers_refuse(layer: nn.Module, shape: tuple[int, ...], words: str) -> None:
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=words):
        layer(torch.randn(shape))
    for key, value in before.items():
        assert torch.equal(layer.state_dict()[key], value)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: bgn.BatchGroupNorm2d(0, 1), ValueError, "num_features=0"),
        (
            lambda: bgn.BatchGroupNorm2d(4, "paper"),
            ValueError,
            "num_groups='paper'; expected an int of at least 1, 'channels' or 'auto'",
        ),
        (lambda: bgn.BatchGroupNorm2d(4, 1, momentum=-1.0), ValueError, "momentum=-1.0"),
        (lambda: bgn.BatchGroupNorm2d(4, 1, momentum="0.1"), TypeError, "momentum='0.1'"),
        (lambda: bgn.BatchGroupNorm2d(4, 1, eps=float("nan")), ValueError, "eps=nan"),
        (lambda: bgn.GeneralBatchGroupNorm2d(4, batch_blocks=0), ValueError, "batch_blocks=0"),
        (lambda: bgn.GroupNorm(0, 4), ValueError, "num_groups=0"),
    ],
)
def test_constructors_refuse(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.parametrize(
    "norm", [bgn.BatchGroupNorm2d(4, 2), bgn.GroupNorm(3, 4), bgn.PositionalNorm2d(4)]
)
def test_deepcopy_pickle_and_meta(norm: nn.Module) -> None:
    x = torch.randn(2, 4, 3, 3)
    norm(x)
    for twin in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
        for key, value in norm.state_dict().items():
            assert torch.equal(twin.state_dict()[key], value)
        assert torch.equal(twin.eval()(x), copy.deepcopy(norm).eval()(x))
    ghost = copy.deepcopy(norm).to("meta")
    assert ghost(x.to("meta")).shape == x.shape
    real = ghost.to_empty(device="cpu")
    real.load_state_dict(norm.state_dict())
    assert torch.equal(real.eval()(x), norm.eval()(x))


def test_device_and_dtype_arguments() -> None:
    norm = bgn.BatchGroupNorm2d(4, 2, device="meta", dtype=torch.float64)
    assert {t.device.type for t in norm.state_dict().values()} == {"meta"}
    assert norm.running_var.dtype == norm.weight.dtype == torch.float64
    assert norm.num_batches_tracked.dtype == torch.long


def test_repr_names_the_groups() -> None:
    assert repr(bgn.BatchGroupNorm1d(8, 2)) == (
        "BatchGroupNorm1d(8, num_groups=2, eps=1e-05, momentum=0.1, affine=True,"
        " track_running_stats=True)"
    )
    assert "batch_blocks=2" in repr(bgn.GeneralBatchGroupNorm2d(8, batch_blocks=2))


def test_without_running_statistics_eval_uses_the_batch() -> None:
    norm = bgn.BatchGroupNorm2d(4, 2, track_running_stats=False).eval()
    x = torch.randn(3, 4, 5, 5) * 7 + 3
    y = norm(x)
    assert_close(y.reshape(3, 2, -1).mean((0, 2)), torch.zeros(2))
    assert list(norm.state_dict()) == ["weight", "bias"]


@pytest.mark.parametrize(("N", "blocks"), [(1, 1), (3, 3)])
def test_uneven_groups_of_channels_with_one_sample_per_block(N: int, blocks: int) -> None:
    norm = bgn.GeneralBatchGroupNorm2d(100, 32, blocks, track_running_stats=False)
    x = torch.randn(N, 100, 4, 4)
    with kernels.use("definition"):
        expected = norm(x)
    assert_close(norm(x), expected)


def test_other_groups_start_a_cumulative_average_anew() -> None:
    norm = bgn.BatchGroupNorm2d(8, 8, momentum=None)
    for _ in range(9):
        norm(torch.randn(4, 8, 4, 4) + 5)
    norm.resolve_groups(2)
    norm(torch.randn(4, 8, 4, 4) + 5)
    assert norm.running_mean.min() > 4
    assert norm.num_batches_tracked == 1


def test_plain_attributes_come_before_parameters() -> None:
    x = torch.randn(4, 8, 3, 3)
    ours, theirs = bgn.BatchGroupNorm2d(8, 8), nn.BatchNorm2d(8)
    for norm in (ours, theirs):
        norm.__dict__["weight"] = torch.full((8,), 3.0)
    assert_close(ours(x), theirs(x))


def test_statistics_of_another_number_are_refused_in_training_as_in_eval() -> None:
    norm = bgn.BatchGroupNorm2d(8, 2)
    norm.running_mean, norm.running_var = torch.zeros(8), torch.ones(8)
    for mode in (True, False):
        with pytest.raises(ValueError, match=r"running_mean has shape \(8,\); expected \(2,\)"):
            norm.train(mode)(torch.randn(4, 8, 3, 3))


def test_a_synchronized_layer_tracks_nothing_where_it_is_told_so() -> None:
    norm = bgn.SyncBatchGroupNorm(8, 2)
    norm.track_running_stats = False
    assert norm._running(norm.running_mean, norm.running_var, norm.num_batches_tracked) is None


@pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}")
def test_a_negative_counter_is_no_lack_of_memory() -> None:
    norm = bgn.BatchGroupNorm2d(8, 4, momentum=None)
    norm.num_batches_tracked.fill_(-3)
    with kernels.use("cpu"), pytest.raises(RuntimeError, match="counter of batches below 0"):
        norm(torch.randn(2, 8, 4, 4))

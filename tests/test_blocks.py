"""Statistics of blocks of a batch: each block is normalized as a batch of its own."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bgn
from bgn import functional as F
from bgn import kernels
from bgn.partition import block_sizes

C = 6
BACKENDS = kernels.BACKENDS
EVEN_AND_RAGGED = [(6, 3), (7, 3), (5, 4), (3, 8), (9, 2)]  # N, B


def pair(G: int = C, B: int = 3, **options: Any) -> tuple[Any, Any]:
    """A layer with blocks and the same without, in float64, with some weight and bias."""
    torch.manual_seed(0)
    plain = bgn.BatchGroupNorm2d(C, G, dtype=torch.float64, **options)
    nn.init.uniform_(plain.weight, 0.5, 2.0)
    nn.init.normal_(plain.bias)
    blocks = bgn.BatchGroupNorm2d(C, G, dtype=torch.float64, batch_blocks=B, **options)
    blocks.load_state_dict(plain.state_dict())
    return blocks, plain


def batch(N: int, *, last: bool = False, dtype: torch.dtype = torch.float64) -> Tensor:
    x = (2 * torch.randn(N, C, 4, 5, dtype=torch.float64) + 3).to(dtype)
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("N", "B"), EVEN_AND_RAGGED)
def test_each_block_is_a_batch_of_batch_norm(N: int, B: int, backend: str, last: bool) -> None:
    """Output, all gradients and running statistics, against torch.nn.BatchNorm2d per block."""
    blocks, plain = pair(B=B, momentum=0.3)
    expected = nn.BatchNorm2d(C, dtype=torch.float64, momentum=1.0)
    expected.load_state_dict(plain.state_dict())
    x, gy = batch(N, last=last).requires_grad_(), torch.randn(N, C, 4, 5, dtype=torch.float64)
    outputs, sums, samples = [], torch.zeros(2, C, dtype=torch.float64), []
    other = x.detach().clone().requires_grad_()
    for part in other.split(block_sizes(N, B)):
        outputs.append(expected(part))
        stats = torch.stack([expected.running_mean, expected.running_var])  # type: ignore[list-item]
        sums += len(part) * stats
        samples.append(len(part))
    torch.cat(outputs).backward(gy)
    with kernels.use(backend):
        y = blocks(x)
        y.backward(gy)
    assert y.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(y, torch.cat(outputs), **close)  # type: ignore[arg-type]
    torch.testing.assert_close(x.grad, other.grad, **close)  # type: ignore[arg-type]
    torch.testing.assert_close(blocks.weight.grad, expected.weight.grad, **close)  # type: ignore[arg-type]
    torch.testing.assert_close(blocks.bias.grad, expected.bias.grad, **close)  # type: ignore[arg-type]
    mean, var = sums / N  # each block weighs its samples
    torch.testing.assert_close(blocks.running_mean, 0.3 * mean, **close)  # type: ignore[arg-type]
    torch.testing.assert_close(blocks.running_var, 0.7 + 0.3 * var, **close)  # type: ignore[arg-type]
    assert blocks.num_batches_tracked == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("G", [1, 3, C, 2 * C, 7])
@pytest.mark.parametrize("N", [6, 7])
def test_any_number_of_groups(N: int, G: int, backend: str) -> None:
    blocks, plain = pair(G)
    x = batch(N)
    with kernels.use(backend):
        found = blocks(x)
        expected = torch.cat([plain(part) for part in x.split(block_sizes(N, 3))])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("N", [6, 7])
@pytest.mark.parametrize("G", [2, C])
def test_running_statistics_of_the_first_block(
    N: int, G: int, momentum: float | None, backend: str
) -> None:
    """What a process of DistributedDataParallel would have, whose buffers are those of rank 0."""
    blocks, plain = pair(G, momentum=momentum)
    blocks.first_block = True
    for _ in range(3):
        x = batch(N)
        with kernels.use(backend):
            blocks(x)
            plain(x[: block_sizes(N, 3)[0]])
    for name, value in plain.named_buffers():
        torch.testing.assert_close(blocks.get_buffer(name), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("N", [6, 7])
@pytest.mark.parametrize("first", [False, True])
def test_gradcheck(N: int, first: bool) -> None:
    blocks, _ = pair(2)
    blocks.first_block = first
    x = batch(N)[:, :, :2, :2].contiguous().requires_grad_()

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        values = {"weight": weight, "bias": bias}
        return torch.func.functional_call(blocks, values, (x,))

    inputs = x, blocks.weight, blocks.bias
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("N", [6, 7])
def test_reduced_precision(N: int, backend: str, dtype: torch.dtype) -> None:
    blocks, _ = pair()
    low = copy.deepcopy(blocks).to(torch.float32)
    x = batch(N, dtype=dtype)
    with kernels.use(backend):
        y = low(x)
    assert y.dtype == dtype
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), blocks(x.double()), rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(low.running_var.double(), blocks.running_var, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("N", [6, 7])
def test_compile(N: int, first: bool) -> None:
    blocks, _ = pair(2)
    blocks.first_block = first
    eager, x = copy.deepcopy(blocks), batch(N)
    torch.compiler.reset()
    compiled: Any = torch.compile(blocks, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), eager(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(blocks.running_var, eager.running_var, rtol=1e-12, atol=1e-12)


def test_eval_mode_has_no_blocks() -> None:
    blocks, plain = pair()
    for layer in (blocks, plain):
        layer.running_mean.normal_(generator=torch.Generator().manual_seed(1))
        layer.eval()
    x = batch(7)
    assert torch.equal(blocks(x), plain(x))
    assert blocks.state_dict().keys() == plain.state_dict().keys()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (bgn.BatchGroupNorm1d(C, 2, batch_blocks=2), (4, C)),
        (bgn.BatchGroupNorm1d(C, 2, batch_blocks=2), (5, C, 3)),
        (bgn.BatchGroupNorm3d(C, 2, batch_blocks=2), (5, C, 2, 2, 2)),
        (bgn.GeneralBatchGroupNorm2d(C, 2, batch_blocks=2), (5, C, 2, 2)),
    ],
)
def test_other_dimensions(layer: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    n = block_sizes(shape[0], 2)[0]
    one = copy.deepcopy(layer)
    one.batch_blocks = 1
    torch.testing.assert_close(layer(x), torch.cat([one(x[:n]), one(x[n:])]))


def test_functions() -> None:
    x = batch(7)
    expected = torch.cat([F.batch_group_norm(part, 2, training=True) for part in x.split(3)])
    found = F.batch_group_norm(x, 2, training=True, batch_blocks=3)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found = F.general_batch_group_norm(x, 2, 3, training=True)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="batch_blocks=0"):
        F.batch_group_norm(x, 2, training=True, batch_blocks=0)


def test_a_last_block_of_one_value_is_refused_before_anything_moves() -> None:
    layer = bgn.BatchGroupNorm2d(C, C, batch_blocks=2)
    with pytest.raises(ValueError, match=r"shape \(1, 6, 1, 1\) .*1 value per statistic"):
        layer(torch.randn(3, C, 1, 1))
    assert layer.num_batches_tracked == 0
    assert torch.equal(layer.running_mean, torch.zeros(C))  # type: ignore[arg-type]


def test_empty_batch_and_mkldnn() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, batch_blocks=2)
    layer.first_block = True
    assert layer(torch.empty(0, C, 2, 2)).shape == (0, C, 2, 2)
    assert layer.num_batches_tracked == 1
    if torch.backends.mkldnn.is_available():
        x = torch.randn(3, C, 2, 2)
        same = copy.deepcopy(layer)
        torch.testing.assert_close(layer(x.to_mkldnn()).to_dense(), same(x))


def test_repr_and_number_of_groups_by_the_first_batch() -> None:
    assert "batch_blocks" not in repr(bgn.BatchGroupNorm2d(C, 2))
    assert repr(bgn.BatchGroupNorm2d(C, 2, batch_blocks=2)).count("batch_blocks=2") == 1
    assert repr(bgn.GeneralBatchGroupNorm2d(C, 2, 2)).count("batch_blocks=2") == 1
    one, blocks = bgn.BatchGroupNorm2d(8, "auto"), bgn.BatchGroupNorm2d(8, "auto", batch_blocks=4)
    x = torch.randn(8, 8, 2, 2)
    one(x[:2])
    blocks(x)
    assert one.num_groups == blocks.num_groups


def test_whole_models() -> None:
    """Conversions keep the blocks, say that they are gone, or refuse."""

    def model() -> Any:
        return nn.Sequential(nn.Conv2d(3, 8, 3), bgn.BatchGroupNorm2d(8, 8, batch_blocks=2))

    assert bgn.regroup(model(), 2)[1].batch_blocks == 2
    assert bgn.convert(model(), "gbgn", num_groups=4)[1].batch_blocks == 2
    assert bgn.convert(model(), num_groups=4, batch_blocks=3)[1].batch_blocks == 3
    assert (
        bgn.convert(nn.Sequential(nn.BatchNorm2d(8)), num_groups=8, batch_blocks=2)[0].batch_blocks
        == 2
    )  # type: ignore[union-attr]
    with pytest.warns(UserWarning, match="no longer those of blocks"):
        assert isinstance(bgn.convert(model(), "bn")[1], nn.BatchNorm2d)
    with pytest.raises(ValueError, match="batch_blocks=2 has no meaning for norm='bn'"):
        bgn.convert(model(), "bn", batch_blocks=2)
    with pytest.raises(ValueError, match="1: batch_blocks=2 is refused"):
        bgn.convert_sync(model())
    with pytest.raises(ValueError, match="batch_blocks=2: blocks across processes"):
        bgn.SyncBatchGroupNorm(8, 2, batch_blocks=2)
    folded = bgn.fold(model().eval())
    assert isinstance(folded[1], nn.Identity)
    assert bgn.freeze(model())[1].batch_blocks == 2
    calibrated = bgn.recalibrate(model(), [torch.randn(5, 3, 5, 5)], progress=False)
    assert calibrated[1].num_batches_tracked == 1


def test_describe() -> None:
    layers = nn.Sequential(
        bgn.BatchGroupNorm2d(8, 8, batch_blocks=2), bgn.BatchGroupNorm2d(8, 2, batch_blocks=4)
    )
    rows = list(bgn.describe(layers, (8, 4, 4), batch_size=5))
    assert [row.acts_as for row in rows] == ["BN in 2 blocks", "BGN in 3 blocks"]
    assert [row.instances for row in rows] == [2 * 16, 1 * 64], "of the smallest block"

"""What torch's own utilities, and code that asks for types, do with these layers."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import bgn
from tests.tolerance import assert_close

C = 8


def model(G: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, C, 3, bias=False), bgn.BatchGroupNorm2d(C, G), nn.ReLU(), nn.BatchNorm2d(C)
    )


def fused() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, C, 3, bias=False), bgn.BatchGroupNormAct2d(C, 2, act="relu"))


def norm_of(net: nn.Module) -> Any:
    return next(m for m in net.modules() if isinstance(m, bgn.BatchGroupNorm2d))


def test_the_layers_are_norms_but_no_batch_norms() -> None:
    layers = [bgn.BatchGroupNorm1d(C, 2), bgn.BatchGroupNorm2d(C, 2), bgn.BatchGroupNorm3d(C, 2)]
    for layer in [*layers, bgn.GeneralBatchGroupNorm2d(C, 2)]:
        assert isinstance(layer, _NormBase)
        assert not isinstance(layer, _BatchNorm)
    assert isinstance(bgn.GroupNorm(3, C), nn.GroupNorm)


def test_sync_batch_norm_conversion_leaves_them_as_they_are() -> None:
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model())
    assert type(converted[1]) is bgn.BatchGroupNorm2d
    assert type(converted[3]) is nn.SyncBatchNorm


def test_update_bn_passes_them_by() -> None:
    net = nn.Sequential(nn.Conv2d(3, C, 3), bgn.BatchGroupNorm2d(C, 2))
    update_bn([torch.randn(2, 3, 8, 8)], net)
    assert torch.equal(norm_of(net).running_mean, torch.zeros(2))


def test_weight_decay_is_excluded_by_base_class_and_by_dimension() -> None:
    net = model()
    by_type = [
        p
        for m in net.modules()
        if isinstance(m, _NormBase | nn.GroupNorm)
        for p in m.parameters(recurse=False)
    ]
    by_dimension = [p for p in net.parameters() if p.dim() <= 1]
    assert {id(p) for p in by_type} == {id(p) for p in by_dimension}
    assert len(by_type) == 4


def test_norm_eval_of_detectors_needs_the_base_class() -> None:
    net = model().train()
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
    assert norm_of(net).training
    for module in net.modules():
        if isinstance(module, _NormBase):
            module.eval()
    assert not norm_of(net).training


@pytest.mark.parametrize("G", [1, 2, C, 2 * C])
def test_fusing_is_right_or_refused(G: int) -> None:
    net = model(G)
    with torch.no_grad():
        norm_of(net).weight.normal_()
        norm_of(net).bias.normal_()
    x = torch.randn(2, 3, 8, 8)
    net(x)
    net.eval()
    expected = net[:2](x)
    if G in (1, C):
        fused = torch.nn.utils.fusion.fuse_conv_bn_eval(net[0], net[1])
        assert_close(fused(x), expected)
    else:
        with pytest.raises(RuntimeError, match="must match the size"):
            torch.nn.utils.fusion.fuse_conv_bn_eval(net[0], net[1])


def test_fx_fusion_leaves_them_in_place() -> None:
    from torch.fx.experimental.optimization import fuse

    net = model().eval()
    fused = fuse(net)
    assert any(isinstance(m, bgn.BatchGroupNorm2d) for m in fused.modules())
    x = torch.randn(2, 3, 8, 8)
    assert_close(fused(x), net(x))


def test_weight_average_with_buffers() -> None:
    net = model()
    ema: Any = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=True)
    means = []
    for _ in range(2):
        net(torch.randn(2, 3, 8, 8))
        ema.update_parameters(net)
        means.append(norm_of(net).running_mean.clone())
    assert_close(norm_of(ema).running_mean, 0.5 * means[0] + 0.5 * means[1])
    ema.eval()
    assert ema(torch.randn(1, 3, 8, 8)).isfinite().all()


@pytest.fixture
def one_process(tmp_path: Path) -> Any:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("torch was built without gloo")
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_process")
def test_fsdp2_wraps_and_trains_like_the_plain_model() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    plain, sharded = model(), model()
    mesh = init_device_mesh("cpu", (1,))
    try:
        fully_shard(nn.BatchNorm2d(C), mesh=mesh)(torch.randn(2, C, 4, 4))
    except AttributeError as error:  # torch 2.6 wants an accelerator's streams
        pytest.skip(f"this torch shards no BatchNorm on the CPU: {error}")
    fully_shard(sharded[1], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    torch.manual_seed(1)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        for net in (plain, sharded):
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            optimizer.zero_grad()
            net(x).pow(3).sum().backward()
            optimizer.step()
    assert_close(norm_of(sharded).weight.full_tensor(), norm_of(plain).weight)
    assert_close(norm_of(sharded).running_mean, norm_of(plain).running_mean)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("made", [model, fused])
def test_distributed_data_parallel(made: Callable[[], nn.Sequential]) -> None:
    plain, net = made(), made()
    wrapped = nn.parallel.DistributedDataParallel(net)
    x = torch.randn(2, 3, 8, 8)

    def gradient(of: nn.Module, root: nn.Module) -> Tensor:
        of(x).pow(3).sum().backward()
        grad: Tensor = norm_of(root).weight.grad
        return grad

    assert_close(gradient(wrapped, net), gradient(plain, plain))
    assert_close(norm_of(net).running_var, norm_of(plain).running_var)


def test_a_copy_shares_nothing() -> None:
    net = model()
    twin = copy.deepcopy(net)
    net(torch.randn(2, 3, 8, 8))
    assert torch.equal(norm_of(twin).running_mean, torch.zeros(2))

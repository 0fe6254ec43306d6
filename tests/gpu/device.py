"""What only a GPU can show: no waiting, CUDA graphs, streams, sizes. ``make test DEVICE=cuda``."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bgn
from bgn import kernels
from bgn.partition import slices
from tests.gpu.interpreter import DEVICE, assert_same, step

if DEVICE != "cuda":
    pytest.skip("needs a GPU", allow_module_level=True)


def training_step(norm: torch.nn.Module, x: torch.Tensor, gy: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(norm(leaf), [leaf, *norm.parameters()], gy)[0]


def test_plain_calls_get_the_gpu_core() -> None:
    y = bgn.BatchGroupNorm2d(64, 1)(torch.randn(2, 64, 32, 32, requires_grad=True))
    assert "triton" in type(y.grad_fn)._forward_cls.__module__
    assert "cuda: triton" in bgn.info().devices


@pytest.mark.parametrize("G", [1, 8, 64, 128, 7])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_nothing_waits_for_the_device(G: int, momentum: float | None) -> None:
    norm = bgn.BatchGroupNorm2d(64, G, momentum=momentum)
    x, gy = torch.randn(2, 4, 64, 32, 32)
    training_step(norm, x, gy)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        training_step(norm, x, gy)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("G", [1, 8, 64, 128, 7])
def test_a_cuda_graph_has_the_same_bits(G: int) -> None:
    x, gy = torch.randn(2, 4, 64, 32, 32)
    eager, recorded = (bgn.BatchGroupNorm2d(64, G) for _ in range(2))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        training_step(recorded, x, gy)
    torch.cuda.current_stream().wait_stream(stream)
    recorded.reset_running_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gx = training_step(recorded, x, gy)
    for _ in range(3):
        graph.replay()
        expected = training_step(eager, x, gy)
    assert torch.equal(gx, expected)
    for name, value in eager.named_buffers():
        assert torch.equal(value, dict(recorded.named_buffers())[name]), name


@pytest.mark.parametrize("options", [{"momentum": None}, {"renorm": True}], ids=str)
def test_a_cuda_graph_moves_statistics_at_every_replay(options: dict[str, Any]) -> None:
    """The counter of momentum=None, and what renormalization corrects towards, on the device."""
    eager, recorded = (bgn.BatchGroupNorm2d(64, 1, **options) for _ in range(2))
    x, gy = torch.randn(2, 4, 64, 32, 32)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        training_step(recorded, x, gy)
    torch.cuda.current_stream().wait_stream(stream)
    recorded.reset_running_stats()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gx = training_step(recorded, x, gy)
    for _ in range(3):
        x.normal_(mean=2)  # what is recorded reads the same memory
        graph.replay()
        assert torch.equal(gx, training_step(eager, x, gy))
    for name, value in eager.named_buffers():
        assert torch.equal(value, recorded.get_buffer(name)), name


def test_another_device_than_the_current_one() -> None:
    """Triton launches on the current device: calls make it that of x, in backward as well."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    assert torch.cuda.current_device() == 0
    x, gy = torch.randn(2, 4, 64, 32, 32)
    for G in 1, 64, 7:
        found = []
        for device in "cuda:0", "cuda:1":
            norm = bgn.BatchGroupNorm2d(64, G, device=device)
            gx = training_step(norm, x.to(device), gy.to(device))
            found.append([gx.to("cuda:0"), *(b.to("cuda:0") for b in norm.buffers())])
        for first, second in zip(*found, strict=True):  # other devices may have other plans
            torch.testing.assert_close(first, second)
    assert torch.cuda.current_device() == 0


def test_a_side_stream_sees_its_own_order() -> None:
    """Everything of a call is on the stream that is current, and backward on forward's."""
    norm = bgn.BatchGroupNorm2d(256, 1)
    stream = torch.cuda.Stream()
    for seed in range(5):
        torch.manual_seed(seed)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)  # work of another stream would be done before
            x, gy = torch.randn(2, 8, 256, 56, 56)
            gx = training_step(norm, x, gy)
        torch.cuda.current_stream().wait_stream(stream)
        assert torch.equal(gx, training_step(norm, x, gy))


def test_mixed_precision() -> None:
    """Half-precision maps with float32 parameters, as under autocast, with a scaled loss."""
    found = []
    for name in "triton", "definition":
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3), bgn.BatchGroupNorm2d(32, 1), torch.nn.ReLU()
        )
        x = torch.randn(4, 3, 32, 32)
        with kernels.use(name), torch.autocast("cuda", torch.float16):
            y = net(x)
            (y.float().square().mean() * 1024).backward()
        assert y.dtype is torch.float16
        found.append({"y": y.detach(), **{n: p.grad for n, p in net.named_parameters()}})
        assert net[1].weight.dtype is torch.float32
    assert_same(*found, torch.float16)


def test_the_same_bits_every_time() -> None:
    x, gy = torch.randn(2, 8, 256, 56, 56)
    norm = bgn.BatchGroupNorm2d(256, 1)
    first = training_step(norm, x, gy)
    for _ in range(20):
        assert torch.equal(training_step(norm, x, gy), first)


@pytest.mark.parametrize("shape", [(2, 256, 56, 56), (8, 1024, 14, 14), (8, 2048, 7, 7)], ids=str)
@pytest.mark.parametrize("last", [False, True])
def test_real_shapes(shape: tuple[int, ...], last: bool) -> None:
    N, C, H, W = shape
    layout = torch.channels_last if last else torch.contiguous_format
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x, gy = (torch.randn(shape).to(dtype).contiguous(memory_format=layout) for _ in range(2))
        affine = torch.rand(C), torch.rand(C)
        for G, B in (1, 1), (16, 1), (C, 1), (32, N):
            part = slices(N, C, H * W, G, B)
            ours, node = step("triton", x, part, affine, gy)
            wide = tuple(t.double() for t in affine)
            exact, _ = step("definition", x.double(), part, wide, gy.double())
            assert node == "triton"
            assert_same(ours, exact, dtype)


def test_more_than_2_to_the_31_elements() -> None:
    free, _ = torch.cuda.mem_get_info()
    shape = 1, 3, 27_000, 27_000
    if free < 5 * 2 * torch.Size(shape).numel():
        pytest.skip("needs 22 GB of free memory")
    x = torch.randn(shape, dtype=torch.bfloat16)
    with kernels.use("triton"), torch.no_grad():
        y = bgn.functional.batch_group_norm(x, 1, training=True)
    last = y[0, -1, -100:].float()
    mean = torch.stack([one.float().mean() for one in x[0]]).mean()
    var = torch.stack([(one.float() - mean).square().mean() for one in x[0]]).mean()
    right = (x[0, -1, -100:].float() - mean) * torch.rsqrt(var + 1e-5)
    torch.testing.assert_close(last, right, rtol=1e-2, atol=1e-2)

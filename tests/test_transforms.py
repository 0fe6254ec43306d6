"""compile, export, torch.func, checkpointing: where a BatchNorm can go, these layers go too."""

import copy
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import bgn
from tests.tolerance import assert_close

C = 6
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "bgn-whole-channels": lambda: bgn.BatchGroupNorm2d(C, 2),
    "bgn-ragged": lambda: bgn.BatchGroupNorm2d(C, 5),
    "bgn-strips": lambda: bgn.BatchGroupNorm2d(C, 12),
    "bgn-cumulative": lambda: bgn.BatchGroupNorm2d(C, 2, momentum=None),
    "bgn-untracked": lambda: bgn.BatchGroupNorm2d(C, 2, track_running_stats=False),
    "bgn-relu": lambda: bgn.BatchGroupNormAct2d(C, 2),
    "bgn-silu": lambda: bgn.BatchGroupNormAct2d(C, 5, act="silu"),
    "gbgn": lambda: bgn.GeneralBatchGroupNorm2d(C, 2, batch_blocks=2),
    "gn-merged": lambda: bgn.GroupNorm(4, C),
    "in": lambda: bgn.GroupNorm(C, C),
    "pn": lambda: bgn.PositionalNorm2d(C),
}
COMPILER = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


def assert_same_training(a: nn.Module, b: nn.Module, twin_a: nn.Module, twin_b: nn.Module) -> None:
    """Two steps through a and b leave the same outputs, gradients and buffers."""
    for _ in range(2):
        x = torch.randn(4, C, 4, 5)
        xs = [x.clone().requires_grad_() for _ in range(2)]
        ys = [a(xs[0]), b(xs[1])]
        for y in ys:
            y.square().mul(y.detach().cos()).sum().backward()
        assert_close(ys[0], ys[1])
        assert xs[0].grad is not None
        assert xs[1].grad is not None
        assert_close(xs[0].grad, xs[1].grad)
    for p, q in zip(twin_a.parameters(), twin_b.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert_close(p.grad, q.grad)
    for p, q in zip(twin_a.buffers(), twin_b.buffers(), strict=True):
        assert_close(p, q, torch.float32)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[COMPILER, pytest.mark.slow])]
)
def test_compile_in_one_graph(name: str, backend: str) -> None:
    torch.compiler.reset()
    eager, compiled = LAYERS[name](), LAYERS[name]()
    assert_same_training(
        torch.compile(compiled, fullgraph=True, backend=backend), eager, compiled, eager
    )
    x = torch.randn(4, C, 4, 5)
    assert_close(
        torch.compile(compiled.eval(), fullgraph=True, backend=backend)(x), eager.eval()(x)
    )


@COMPILER
def test_compile_with_the_default_backend() -> None:
    torch.compiler.reset()
    eager, compiled = LAYERS["bgn-ragged"](), LAYERS["bgn-ragged"]()
    assert_same_training(torch.compile(compiled, fullgraph=True), eager, compiled, eager)


@pytest.mark.parametrize("name", LAYERS)
def test_compile_with_dynamic_shapes(name: str) -> None:
    torch.compiler.reset()
    eager, compiled = LAYERS[name](), LAYERS[name]()
    run = torch.compile(compiled, fullgraph=True, backend="aot_eager", dynamic=True)
    for shape in [(4, C, 4, 5), (6, C, 7, 3), (2, C, 9, 9)]:
        x = torch.randn(shape)
        assert_close(run(x), eager(x))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_export(name: str, training: bool) -> None:
    layer = LAYERS[name]().train(training)
    x = torch.randn(4, C, 4, 5)
    exported = torch.export.export(layer, (x,)).module()
    assert_close(exported(x), LAYERS[name]().train(training)(x))


def test_eval_exports_with_dynamic_batch_and_size_in_plain_operations() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2).eval()
    dim = torch.export.Dim
    program = torch.export.export(
        layer, (torch.randn(4, C, 4, 5),), dynamic_shapes=({0: dim("N"), 2: dim("H"), 3: dim("W")},)
    )
    x = torch.randn(3, C, 9, 7)
    assert_close(program.module()(x), layer(x))
    assert all("bgn" not in str(node.target) for node in program.graph.nodes)


def loss_of(layer: nn.Module) -> Callable[..., Tensor]:
    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        output: Tensor = torch.func.functional_call(layer, (parameters, buffers), (x,))
        return output.pow(3).sum()

    return loss


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_func_grad(name: str, training: bool) -> None:
    layer = LAYERS[name]().double().train(training)
    x = torch.randn(2, C, 4, 4, dtype=torch.float64)
    parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
    grads = torch.func.grad(loss_of(layer))(parameters, buffers, x)
    loss_of(layer)(parameters, buffers, x).backward()
    for key, value in parameters.items():
        assert value.grad is not None
        assert_close(grads[key], value.grad)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_func_jvp_and_hessian(name: str, training: bool) -> None:
    layer: Any = LAYERS[name]().double().train(training)
    if training:  # as nn.BatchNorm2d: these transforms cannot move a running average
        layer.track_running_stats = False
    x = torch.randn(2, C, 2, 2, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        output: Tensor = layer(x)
        return output.pow(3).sum()

    tangent = torch.randn_like(x)
    _, directional = torch.func.jvp(loss, (x,), (tangent,))
    assert_close(directional, (torch.func.grad(loss)(x) * tangent).sum())
    hessian = torch.func.hessian(loss)(x)
    assert hessian.abs().max() > 0
    assert_close(hessian, hessian.movedim((0, 1, 2, 3), (4, 5, 6, 7)))


def test_vmap_where_batch_norm_allows_it() -> None:
    stacked = torch.randn(3, 2, C, 4, 4)
    for layer in (
        bgn.BatchGroupNorm2d(C, 4, track_running_stats=False),
        bgn.BatchGroupNorm2d(C, 4).eval(),
    ):
        assert_close(torch.vmap(layer)(stacked), torch.stack([layer(x) for x in stacked]))
    with pytest.raises(
        RuntimeError
    ):  # as nn.BatchNorm2d: one running average cannot follow three batches at once
        torch.vmap(bgn.BatchGroupNorm2d(C, 4))(stacked)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.inner = inner
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Any:
        return checkpoint(self.inner, x, use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_checkpointing_updates_statistics_once(name: str, use_reentrant: bool) -> None:
    plain, inner = LAYERS[name](), LAYERS[name]()
    assert_same_training(Checkpointed(inner, use_reentrant), plain, inner, plain)
    if getattr(inner, "num_batches_tracked", None) is not None:
        assert inner.num_batches_tracked == 2


@pytest.mark.xfail(
    torch.__version__ < "2.13",
    reason="older torch compiles a checkpoint's recomputation as one more forward",
    strict=False,
)
def test_checkpointing_inside_a_compiled_model_updates_statistics_once() -> None:
    torch.compiler.reset()
    plain, inner = LAYERS["bgn-whole-channels"](), LAYERS["bgn-whole-channels"]()
    compiled = torch.compile(Checkpointed(inner, use_reentrant=False), backend="aot_eager")
    assert_same_training(compiled, plain, inner, plain)
    assert inner.num_batches_tracked == 2


def test_gradient_accumulation_tracks_every_micro_batch() -> None:
    ours, theirs = bgn.BatchGroupNorm2d(C, C), nn.BatchNorm2d(C)
    for micro_batch in torch.randn(8, C, 4, 4).chunk(4):
        for layer in (ours, theirs):
            (layer(micro_batch).pow(3).sum() / 4).backward()
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 4
    assert_close(ours.running_var, theirs.running_var)
    assert ours.weight.grad is not None
    assert theirs.weight.grad is not None
    assert_close(ours.weight.grad, theirs.weight.grad)


def test_under_no_grad_and_inference_mode() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2)
    twin = copy.deepcopy(layer)
    x = torch.randn(4, C, 4, 4)
    with torch.no_grad():
        layer(x)
    twin(x)
    assert_close(layer.running_mean, twin.running_mean)
    with torch.inference_mode():
        inferred = layer.eval()(x)
    assert inferred.is_inference()
    assert_close(inferred.clone(), twin.eval()(x))
    assert layer.num_batches_tracked == 1

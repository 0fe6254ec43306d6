"""torch.compile: what is in its graphs, how often they are made, and that they do as eager mode."""

import copy
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import bgn
from bgn.kernels import cpu
from tests.test_transforms import COMPILER, LAYERS, C
from tests.tolerance import assert_close

pytestmark = [
    pytest.mark.skipif(not cpu.available(), reason=f"the cpu backend is {cpu.why_not}"),
    pytest.mark.skipif(
        not hasattr(torch.compiler, "is_exporting"),
        reason="this torch does not tell compiling from exporting: the definition is compiled",
    ),
]


def auto() -> nn.Module:
    layer = bgn.BatchGroupNorm2d(C, "auto")
    layer(torch.randn(4, C, 6, 6))  # decides
    return layer


ALL = {
    **LAYERS,
    "bgn-per-channel": lambda: bgn.BatchGroupNorm2d(C, C),
    "bgn-auto": auto,
    "bgn-1d": lambda: bgn.BatchGroupNorm1d(C, 2),
    "gbgn-uneven": lambda: bgn.GeneralBatchGroupNorm2d(C, 4, batch_blocks=2),
    "gn": lambda: bgn.GroupNorm(2, C),
}
ONE_OPERATOR = sorted(set(ALL) - {"pn"})


def example(name: str, N: int = 4, **options: Any) -> Tensor:
    return torch.randn(N, C, *[6] * (1 if name == "bgn-1d" else 2), **options)


def _is_ours(node: Any) -> bool:
    """Whether a node is one of our operators, or an auto_functionalized one."""
    return any("bgn.normalize" in str(target) for target in (node.target, *node.args))


def calls(graph: torch.fx.GraphModule) -> list[Any]:
    """The nodes that compute something: not those that pick one of several results, or detach."""
    nodes = [n for n in graph.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    nodes = [n for n in nodes if n.target is not torch.ops.aten.detach.default]
    picks = [n for n in nodes if n.target is operator.getitem and _is_ours(n.args[0])]
    return [n for n in nodes if n not in picks]


def graphs(layer: nn.Module, *inputs: Tensor) -> dict[str, list[Any]]:
    """The nodes of Dynamo's graph, and of AOTAutograd's forward and backward ones."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func

    found = {}

    def keep(name: str) -> Any:
        def compiler(graph: Any, _: Any) -> Any:
            found[name] = calls(graph)
            return make_boxed_func(graph.forward)

        return compiler

    def backend(graph: Any, inputs: Any) -> Any:
        keep("dynamo")(graph, inputs)
        return aot_autograd(fw_compiler=keep("forward"), bw_compiler=keep("backward"))(
            graph, inputs
        )

    torch.compiler.reset()
    torch.compile(layer, backend=backend, fullgraph=True)(*inputs).sum().backward()
    return found


@pytest.mark.parametrize("name", ONE_OPERATOR)
def test_a_training_step_is_one_node_forward_and_one_backward(name: str) -> None:
    found = graphs(ALL[name](), example(name, requires_grad=True))
    for nodes in found.values():
        assert len(nodes) == 1, nodes
    assert found["dynamo"][0].target is torch.ops.bgn.normalize
    forward = found["forward"][0]
    assert torch.ops.bgn.normalize.default in (forward.target, *forward.args)
    assert found["backward"][0].target is torch.ops.bgn.normalize_backward.default


@pytest.mark.parametrize("act", ["relu", "leaky_relu", "silu", "hardswish", "identity"])
@pytest.mark.parametrize(
    ("layout", "renorm"),
    [
        (torch.contiguous_format, False),
        *(
            pytest.param(layout, True, marks=pytest.mark.slow)
            for layout in (torch.contiguous_format, torch.channels_last)
        ),
    ],
    ids=str,
)
def test_a_fused_layer_is_equal_to_eager_mode(
    act: str, layout: torch.memory_format, renorm: bool
) -> None:
    """With a residual where there is one pass for both."""
    layer = bgn.BatchGroupNormAct2d(6, 4, act=act, renorm=renorm)
    x, r, gy = (t.contiguous(memory_format=layout) for t in torch.randn(3, 4, 6, 5, 7))
    given = (x,) if act in ("silu", "hardswish") else (x, r)
    results = []
    for compiled in (True, False):
        own, inputs = copy.deepcopy(layer), [t.clone().requires_grad_() for t in given]
        torch.compiler.reset()
        call = torch.compile(own, backend="aot_eager", fullgraph=True) if compiled else own
        y = call(*inputs)
        y.backward(gy)
        gradients = [t.grad for t in (*inputs, *own.parameters())]
        results.append([y, *gradients, *own.buffers()])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)
    if not renorm:
        found = graphs(copy.deepcopy(layer), *inputs)
        assert [len(nodes) for nodes in found.values()] == [1, 1, 1]


@pytest.mark.parametrize("name", ["bgn-whole-channels", "bgn-per-channel", "gbgn"])
def test_eval_takes_three_operations_per_element(name: str) -> None:
    x = example(name, requires_grad=True)
    found = graphs(ALL[name]().eval(), x)
    large = [n for n in found["forward"] if n.meta["val"].numel() == x.numel()]
    assert [n.target.overloadpacket for n in large] == [
        torch.ops.aten.sub,
        torch.ops.aten.mul,
        torch.ops.aten.add,
    ]


def times_compiled(layer: nn.Module, inputs: list[Tensor]) -> int:
    from torch._dynamo.backends.debugging import aot_eager

    found = []

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return aot_eager(graph, inputs)

    torch.compiler.reset()
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for x in inputs:
        compiled(x).sum().backward()
    return len(found)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_one_recompilation_when_the_batch_size_changes(name: str, training: bool) -> None:
    layer = ALL[name]().train(training)
    inputs = [example(name, N, requires_grad=True) for N in (2, 4, 8, 16)]
    assert times_compiled(layer, inputs) == 2


@pytest.mark.parametrize("name", ["bgn-ragged", "bgn-strips", "gbgn", "gn-merged"])
def test_one_recompilation_when_everything_but_channels_changes(name: str) -> None:
    shapes = (2, C, 4, 6), (4, C, 8, 12), (6, C, 16, 10), (16, C, 7, 5)
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    assert times_compiled(ALL[name](), inputs) == 2


def assert_same_steps(
    layer: nn.Module, inputs: list[Tensor], backend: str, **tolerance: Any
) -> None:
    """Steps of a compiled copy leave what those of the layer leave."""
    torch.compiler.reset()
    twin = copy.deepcopy(layer)
    compiled = torch.compile(twin, backend=backend, fullgraph=True)
    for x in inputs:
        xs = [x.detach().requires_grad_() for _ in range(2)]
        ys = layer(xs[0]), compiled(xs[1])
        for y in ys:
            y.pow(3).sum().backward()
        assert ys[0].stride() == ys[1].stride()
        assert ys[0].dtype is ys[1].dtype
        assert_close(ys[1], ys[0], **tolerance)
        assert xs[0].grad is not None
        assert xs[1].grad is not None
        assert_close(xs[1].grad, xs[0].grad, **tolerance)
    for p, q in zip(twin.parameters(), layer.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert_close(p.grad, q.grad, **tolerance)
    for p, q in zip(twin.buffers(), layer.buffers(), strict=True):
        assert_close(p, q, torch.float32)


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["bgn-per-channel", "bgn-ragged", "bgn-cumulative", "gbgn"])
def test_the_same_as_eager(name: str, dtype: torch.dtype, last: bool) -> None:
    layer = ALL[name]()
    if dtype is torch.float64:  # beside bfloat16 the layer stays in float32
        layer.double()
    form = torch.channels_last if last else torch.contiguous_format
    inputs = [example(name, N).to(dtype, memory_format=form) for N in (4, 8, 6)]
    assert_same_steps(layer, inputs, "aot_eager")


class Twice(nn.Module):
    """One layer in two places of a graph, behind a convolution."""

    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, C, 3)
        self.norm = bgn.BatchGroupNorm2d(C, 2, momentum=momentum)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(torch.relu(self.norm(self.convolution(x))))
        return y


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[COMPILER, pytest.mark.slow])]
)
def test_a_layer_used_twice_in_a_graph(momentum: float | None, backend: str) -> None:
    loose = {"rtol": 1e-3, "atol": 1e-3}  # gradients of many elements
    assert_same_steps(Twice(momentum), [torch.randn(4, 3, 8, 8)] * 2, backend, **loose)


@pytest.mark.slow
@COMPILER
def test_inductor_copies_neither_the_feature_map_nor_the_statistics() -> None:
    from torch._inductor.utils import fresh_cache, run_and_get_code

    layer = Twice(0.1)
    torch.compiler.reset()
    compiled = torch.compile(layer, fullgraph=True)
    with fresh_cache():
        _, code = run_and_get_code(lambda: compiled(torch.randn(4, 3, 8, 8)).sum().backward())
    forward, backward = code
    assert forward.count("torch.ops.bgn.normalize.default(") == 2
    assert backward.count("torch.ops.bgn.normalize_backward.default(") == 2
    assert "fused_normalize" not in forward  # the name of a copy to another layout
    assert "fused_copy" not in forward
    assert layer.norm.num_batches_tracked == 2


@pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[COMPILER, pytest.mark.slow])]
)
@pytest.mark.xfail(
    torch.__version__ < "2.13",
    reason="older torch compiles a checkpoint's recomputation as one more forward",
    strict=False,
)
def test_recomputation_in_a_compiled_backward_pass_moves_nothing(backend: str) -> None:
    torch.compiler.reset()
    model, plain = (nn.Sequential(Twice(None), nn.Conv2d(C, C, 1)) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    run = torch.compile(lambda x: checkpoint(model, x, use_reentrant=False), backend=backend)
    for _ in range(2):
        x = torch.randn(4, 3, 8, 8)
        run(x).pow(3).sum().backward()
        plain(x).pow(3).sum().backward()
    for p, q in zip(model.buffers(), plain.buffers(), strict=True):
        assert_close(p, q, torch.float32)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3)


Transform = Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Any]]
TRANSFORMS: dict[str, Transform] = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).pow(3).sum()),
    "grad-of-grad": lambda f: torch.func.grad(
        lambda x: torch.func.grad(lambda z: f(z).pow(3).sum())(x).square().sum()
    ),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "vmap": lambda f: lambda x: torch.vmap(f)(torch.stack([x, x.cos()])),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside_a_compiled_function(name: str) -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, track_running_stats=False).double()
    transformed = TRANSFORMS[name](layer)
    x = torch.randn(4, C, 3, 3, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(transformed, backend="aot_eager", fullgraph=True)
    assert_close(compiled(x), transformed(x))


def test_forward_mode_around_a_compiled_layer() -> None:
    """A graph that was made before is not used for dual numbers, whose tangents it would lose."""
    layer = bgn.BatchGroupNorm2d(C, 2, track_running_stats=False).double()
    x = torch.randn(4, C, 3, 3, dtype=torch.float64)
    torch.compiler.reset()
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    compiled(x)
    tangents = []
    for call in (layer, compiled):
        with forward_ad.dual_level():
            tangents.append(forward_ad.unpack_dual(call(forward_ad.make_dual(x, x.cos()))).tangent)
    assert_close(*tangents)


def test_a_negative_counter_is_an_error_before_anything_moves() -> None:
    layer = bgn.BatchGroupNorm2d(C, 2, momentum=None)
    layer.num_batches_tracked.fill_(-3)
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match="counter of batches below 0"):
        torch.compile(layer, backend="aot_eager")(torch.randn(4, C, 3, 3))
    assert layer.num_batches_tracked == -3
    assert layer.running_mean.tolist() == [0, 0]

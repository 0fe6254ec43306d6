"""Recorded graphs: eval mode is torch's batch_norm, and torch.jit.trace has nothing to warn of."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import bgn
from tests.tolerance import assert_close

C = 12
WHOLE: dict[str, Callable[[], nn.Module]] = {
    "bgn, G = C": lambda: bgn.BatchGroupNorm2d(C, C),
    "bgn, G = 4": lambda: bgn.BatchGroupNorm2d(C, 4),
    "bgn, G = 1": lambda: bgn.BatchGroupNorm2d(C, 1),
    "bgn, center": lambda: bgn.BatchGroupNorm2d(C, 4, center="channel"),
    "bgn, no bias": lambda: bgn.BatchGroupNorm2d(C, 4, bias=False),
    "bgn, not affine": lambda: bgn.BatchGroupNorm2d(C, 4, affine=False),
    "gbgn": lambda: bgn.GeneralBatchGroupNorm2d(C, 4, batch_blocks=2),
    "gbgn, ragged": lambda: bgn.GeneralBatchGroupNorm2d(C, 5),
}
LAYERS = {
    **WHOLE,
    "bgn, parts of channels": lambda: bgn.BatchGroupNorm2d(C, 2 * C),
    "bgn, across channels": lambda: bgn.BatchGroupNorm2d(C, 5),
    "bgn, renorm": lambda: bgn.BatchGroupNorm2d(C, 4, renorm=bgn.Renorm(warmup=3)),
    "in": lambda: bgn.GroupNorm(C, C),
    "ln": lambda: bgn.GroupNorm(1, C),
    "gn": lambda: bgn.GroupNorm(4, C),
    "gn, merged": lambda: bgn.GroupNorm(5, C),
    "pn": lambda: bgn.PositionalNorm2d(C),
}
whole = pytest.mark.parametrize("name", WHOLE)


def trained(layer: nn.Module) -> nn.Module:
    """In eval mode, with affine and statistics away from their first values."""
    for tensor in (*layer.parameters(), *layer.buffers()):
        if tensor.is_floating_point():
            tensor.data.uniform_(0.5, 1.5)
    return layer.eval()


def full_size(graph: Any, x: Tensor) -> list[str]:
    """The operators whose result is as large as x."""
    return [
        str(node.target)
        for node in graph.nodes
        if node.op == "call_function"
        and isinstance(value := node.meta.get("val"), Tensor)
        and value.numel() == x.numel()
    ]


def export(layer: nn.Module, x: Tensor) -> Any:
    dim = torch.export.Dim
    return torch.export.export(
        layer, (x,), dynamic_shapes=({0: dim("N"), 2: dim("H"), 3: dim("W")},)
    )


def jit_trace(layer: nn.Module, x: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.*deprecated", DeprecationWarning)
        return torch.jit.trace(layer, x, **options)  # type: ignore[no-untyped-call]


@whole
def test_one_operator_moves_the_feature_map(name: str) -> None:
    layer, x = trained(WHOLE[name]()), torch.randn(4, C, 5, 6)
    program = export(layer, x)
    assert full_size(program.graph, x) == ["aten.batch_norm.default"]
    assert len(full_size(make_fx(layer)(x).graph, x)) == 1
    kinds = [node.kind() for node in jit_trace(layer, x).inlined_graph.nodes()]
    assert kinds.count("aten::batch_norm") == 1
    assert not {"aten::sub", "aten::rsqrt"} & set(kinds)
    other = torch.randn(3, C, 9, 7)
    assert_close(program.module()(other), layer(other))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch's own
def test_a_group_per_channel_has_the_nodes_of_batch_norm() -> None:
    x = torch.randn(4, C, 5, 6)
    graphs = [export(layer.eval(), x) for layer in (nn.BatchNorm2d(C), bgn.BatchGroupNorm2d(C, C))]
    for lower in (lambda p: p, lambda p: p.run_decompositions()):
        theirs, ours = (lower(graph).graph.nodes for graph in graphs)
        assert len(ours) <= len(theirs)
    # what spreads the statistics of groups over channels is two operators
    assert (
        len(export(bgn.BatchGroupNorm2d(C, 4).eval(), x).graph.nodes)
        == len(graphs[0].graph.nodes) + 2
    )


@whole
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("half", [False, True])
def test_values_in_every_dtype(name: str, dtype: torch.dtype, half: bool) -> None:
    """With `half`, parameters and statistics are of the dtype of the input, not of float32."""
    wide = torch.promote_types(dtype, torch.float32)
    layer = trained(WHOLE[name]()).to(dtype if half else wide)
    x = torch.randn(4, C, 5, 6).to(dtype)
    expected = layer(x)
    for found in (make_fx(layer)(x)(x), torch.export.export(layer, (x,)).module()(x)):
        assert found.dtype is dtype
        assert_close(found, expected)


@whole
def test_values_under_autocast(name: str) -> None:
    net = nn.Sequential(nn.Conv2d(3, C, 3), trained(WHOLE[name]())).eval()
    x = torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = net(x)
        assert expected.dtype is torch.bfloat16
        program = torch.export.export(net, (x,))
    assert_close(program.module()(x), expected)


@whole
def test_other_dimensions_and_layouts(name: str) -> None:
    layer, x = trained(WHOLE[name]()), torch.randn(4, C, 5, 6)
    x = x.to(memory_format=torch.channels_last)
    found = make_fx(layer)(x)(x)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_close(found, layer(x))
    for make, shape in (bgn.BatchGroupNorm1d, (5, C)), (bgn.BatchGroupNorm3d, (2, C, 3, 4, 5)):
        layer, x = trained(make(C, 4)), torch.randn(shape)  # type: ignore[operator]
        assert_close(make_fx(layer)(x)(x), layer(x))


@whole
def test_derivatives_in_a_recorded_graph(name: str) -> None:
    """Those of the input and of the parameters, and the input's second one."""
    layer = trained(WHOLE[name]()).double()
    parameters = dict(layer.named_parameters())
    x = torch.randn(3, C, 2, 2, dtype=torch.float64, requires_grad=True)
    leaves = (x, *parameters.values())

    def derivatives(x: Tensor, *values: Tensor) -> list[Tensor]:
        own = dict(zip(parameters, values, strict=True))
        y = torch.func.functional_call(layer, own, (x,))
        first = torch.autograd.grad(y.pow(3).sum(), (x, *values), create_graph=True)
        second = torch.autograd.grad(first[0].pow(2).sum(), x)
        return [*first, *second]

    recorded = make_fx(derivatives)(*leaves)
    for found, expected in zip(recorded(*leaves), derivatives(*leaves), strict=True):
        assert_close(found, expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_jit_trace_warns_of_nothing(name: str, training: bool) -> None:
    """And computes what the layer does, running statistics included."""
    layer = trained(LAYERS[name]()).train(training)
    state, twin = copy.deepcopy(layer.state_dict()), copy.deepcopy(layer)
    traced = jit_trace(layer, torch.randn(4, C, 5, 6), check_trace=not training)
    layer.load_state_dict(state)  # tracing was a batch
    x = torch.randn(4, C, 5, 6)
    assert_close(traced(x), twin(x))
    for found, expected in zip(layer.buffers(), twin.buffers(), strict=True):
        assert_close(found.float(), expected.float())
    if name in WHOLE and not training:
        other = torch.randn(7, C, 3, 9)
        assert_close(traced(other), twin(other))
